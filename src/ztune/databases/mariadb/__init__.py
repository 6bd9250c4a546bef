"""All that ztune knows of mariadb."""
