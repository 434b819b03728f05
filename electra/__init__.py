"""Pre-train text encoders by replaced token detection, and prove how good they are."""

__version__ = "0.1.0"
