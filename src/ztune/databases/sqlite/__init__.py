"""All that ztune knows of sqlite."""
