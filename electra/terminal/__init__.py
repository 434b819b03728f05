"""All output to standard output and standard error."""
