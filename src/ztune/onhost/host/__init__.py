"""Reads and steers a host: its disks, mounts, processes and OpenZFS."""
