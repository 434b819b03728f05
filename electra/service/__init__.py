"""The HTTP service around inference, and its page."""
