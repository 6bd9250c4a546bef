"""How much of what was in the recorded host's caches the ARC of a layout has (``first_reads.py``)."""

from __future__ import annotations

from ztune.trace.manifest import Manifest

WHOLE = 1_000_000
"""The rank of the last of all that was cached."""


def share(manifest: Manifest, arc: int) -> float:
    """Return how much of what was in the recorded host's caches an ARC of ``arc`` bytes has: as large a part
    as it is of them, or of the files where these are smaller; 1 where it is larger, or that is not known."""
    files = sum(one.size_start for one in manifest.files if may_be_cached(one.role))
    held = manifest.environment.get("arc_max") or manifest.environment.get("memory")
    there = min(files, held) if isinstance(held, int) and held > 0 else files
    return min(1.0, arc / there) if there > 0 else 1.0


def may_be_cached(role: str | None) -> bool:
    """Return whether files of a role are looked at: a log is written, and read by nobody."""
    return role is not None and role != "wal"
