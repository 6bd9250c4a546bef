"""Disks with the service times of a profile, and the way back: a profile measured on a disk."""
