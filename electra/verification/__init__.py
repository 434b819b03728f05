"""Verification: what a folder claims is compared, and computed again."""
