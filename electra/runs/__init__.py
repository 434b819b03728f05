"""What lies on disk between the verbs: run folders, checkpoints, weights in and out."""
