"""All that ztune knows of Valkey and Redis."""
