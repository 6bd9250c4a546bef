"""Which layout to try next: knows axes and numbers, nothing of ZFS."""
