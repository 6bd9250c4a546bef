"""All that ztune knows of orientdb."""
