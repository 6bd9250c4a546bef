"""What runs of mongodb beside the pool: standard library only."""
