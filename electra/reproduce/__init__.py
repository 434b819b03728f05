"""Suites: the paper's tables and figures, and a user's own, at equal compute."""
