"""The paper: original tokens in, losses out. Knows nothing of files, devices or loops."""
