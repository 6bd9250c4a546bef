"""All that ztune knows of http."""
