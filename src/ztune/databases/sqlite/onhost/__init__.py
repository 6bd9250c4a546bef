"""What runs of sqlite beside the pool: standard library only."""
