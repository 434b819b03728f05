"""Pre-training: shards in, a run out."""
