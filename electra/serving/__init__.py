"""Models in memory that answer records and score sentences."""
