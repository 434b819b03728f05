"""Parts that both loops use: optimizer and schedule, checkpoint, device, run folder."""
