"""What runs of rocksdb beside the pool: standard library only."""
