"""What runs of postgresql beside the pool: standard library only."""
