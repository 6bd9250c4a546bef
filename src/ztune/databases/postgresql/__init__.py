"""All that ztune knows of postgresql."""
