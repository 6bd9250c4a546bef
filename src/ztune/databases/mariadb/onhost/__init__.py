"""What runs of mariadb beside the pool: standard library only."""
