"""All commands once, by default on the documentation of the installed Python packages."""
