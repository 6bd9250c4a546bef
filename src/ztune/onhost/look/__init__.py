"""Reads what a host and its databases are and do, for an observation; changes nothing."""
