"""Benchmarks of speed and memory; each module runs as `python -m benchmarks.NAME`."""
