"""What runs of fio beside the pool: standard library only."""
