"""What writes this repository's own README and pictures; not part of the package."""
