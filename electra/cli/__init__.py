"""The verbs and their words: the only place that parses arguments."""

from electra.cli.entry import app, main

__all__ = ["app", "main"]
