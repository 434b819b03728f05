"""The contents of a run folder, and the readers of model folders."""
