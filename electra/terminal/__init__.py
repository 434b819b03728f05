"""Standard output and standard error: the only place that prints."""
