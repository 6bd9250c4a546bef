"""What runs of http beside the pool: standard library only."""
