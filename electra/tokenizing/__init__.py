"""Vocabularies: trained, read, extended; words to ids."""
