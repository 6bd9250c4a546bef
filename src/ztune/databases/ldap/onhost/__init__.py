"""What runs of ldap beside the pool: standard library only."""
