"""What the runs show: tables, curves, a page, the README's numbers; all read from their files."""
