"""What runs of Valkey and Redis beside the pool: standard library only."""
