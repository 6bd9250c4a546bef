"""Results: SQLite as the record. See docs/results.md."""
