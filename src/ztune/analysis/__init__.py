"""Statistics on stored results: ranking, trade-offs, one-factor effects. Runs nothing itself."""
