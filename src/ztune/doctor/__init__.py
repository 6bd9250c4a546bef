"""What this machine can do for ztune, what is missing, and the command that brings it."""
