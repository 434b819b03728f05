"""From text files to a vocabulary, token shards and training examples."""
