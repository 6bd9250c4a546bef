"""What runs beside the pool, on whatever host: standard library only, sent as one file."""
