"""Text in any format becomes a vocabulary, token shards and training examples."""
