"""Texts in, answers out: embed, detect, fill, score, predict."""
