"""What the host's disks did between two readings of the kernel's counters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ztune.onhost.probes.procfs import DiskCounters, Number


def _sysfs(number: Number, name: str) -> str | None:
    try:
        return Path(f"/sys/dev/block/{number[0]}:{number[1]}/{name}").read_text(encoding="ascii").strip()
    except OSError:
        return None


def block_devices() -> dict[Number, str]:
    """Return the host's whole block devices by number: no partitions, no empty loop devices or the like."""
    found: dict[Number, str] = {}
    with suppress(OSError):
        for folder in Path("/sys/block").iterdir():
            with suppress(OSError, ValueError):
                major, _, minor = (folder / "dev").read_text(encoding="ascii").strip().partition(":")
                if (folder / "size").read_text(encoding="ascii").strip() != "0":
                    found[int(major), int(minor)] = folder.name
    return found


def between(
    names: Mapping[Number, str],
    first: Mapping[Number, DiskCounters],
    last: Mapping[Number, DiskCounters],
    seconds: float,
    pools: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return an ``ObservedDisk`` as plain values for each of the disks ``names``, in order of their names.

    ``pools``: name of a disk → the pool that it belongs to (``zfs.disk_pools``). Disks without a request that
    are in no pool are left out.
    """
    found = []
    for number, name in sorted(names.items(), key=lambda item: item[1]):
        then, now = first.get(number), last.get(number)
        pool = pools.get(name)
        if then is None or now is None:
            continue
        change = now.since(then)
        if pool is None and not change.reads and not change.writes and not change.flushes:
            continue
        rotational = _sysfs(number, "queue/rotational")
        logical = _sysfs(number, "queue/logical_block_size")
        physical = _sysfs(number, "queue/physical_block_size")
        found.append(
            {
                "name": name,
                "pool": pool,
                "rotational": None if rotational is None else rotational == "1",
                "logical_sector": int(logical) if logical else None,
                "physical_sector": int(physical) if physical else None,
                "reads": change.reads,
                "writes": change.writes,
                "read_bytes": change.read_bytes,
                "write_bytes": change.write_bytes,
                "read_seconds": change.read_ms / 1e3,
                "write_seconds": change.write_ms / 1e3,
                "flushes": change.flushes,
                "flush_seconds": None if change.flush_ms is None else change.flush_ms / 1e3,
                "busy_share": min(1.0, change.busy_ms / 1e3 / seconds) if seconds else None,
                "mean_queue": change.queue_ms / 1e3 / seconds if seconds else None,
            }
        )
    return found
