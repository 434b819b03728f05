"""Answers of a model: to a file without labels, to sentences."""
