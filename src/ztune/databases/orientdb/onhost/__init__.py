"""What runs of orientdb beside the pool: standard library only."""
