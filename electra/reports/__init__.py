"""Measurements of runs and fine-tunings: tables, curves, pages, all read from their files."""
