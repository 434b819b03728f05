"""Parts that both loops use: device and dtype, optimizer and schedule, seeds."""
