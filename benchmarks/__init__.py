"""Measurements of speed and memory, each a module run as `python -m benchmarks.NAME`."""
