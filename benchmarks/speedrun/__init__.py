"""The encoder speedrun: the score of the recipe `best` for fewer FLOPs (docs/SPEEDRUN.md)."""
