"""Every verb once, on text that every Python carries."""
