"""Tools for this repository, such as its README and checks; not in the package."""
