"""What runs and fine-tunings have measured: tables, curves, pages, all read from their files."""
