"""All that ztune knows of rocksdb."""
