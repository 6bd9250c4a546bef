"""All that ztune knows of command."""
