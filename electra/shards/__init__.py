"""From text to token shards, and from shards to rows."""
