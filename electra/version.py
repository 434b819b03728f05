"""The version of this release, in a separate file so that any module can read it."""

__version__ = "0.1.0"
