"""All that ztune knows of ldap."""
