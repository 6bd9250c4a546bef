"""All that ztune knows of mongodb."""
