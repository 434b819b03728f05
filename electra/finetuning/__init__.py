"""Fine-tuning: an encoder and a task in, scores out."""
