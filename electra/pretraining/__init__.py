"""Pre-training: from shards to a run folder."""
