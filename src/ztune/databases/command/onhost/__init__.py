"""What runs of command beside the pool: standard library only."""
