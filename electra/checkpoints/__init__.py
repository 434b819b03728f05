"""What lies in a run folder, and the readers of model folders."""
