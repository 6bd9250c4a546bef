"""Workloads: each makes a database do a job, says which files play which role, and proves it was done."""
