"""Replays on many machines, by Dask: `ztune screen TRACE --on dask://HOST:PORT` (docs/fleet.md)."""
