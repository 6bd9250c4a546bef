"""What OpenZFS counted on each device of a pool: operations, bytes, sizes and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Places in "vdev_stats", an array of numbers (vdev_stat_t): time since load, state, aux, alloc, space,
# dspace, rsize, esize, then operations by type and bytes by type: null, read, write, free, claim, and TRIM
# in the place of flushes, which are not counted.
_OPS, _BYTES, _TYPES = 8, 14, 6
_READ, _WRITE, _TRIM = 1, 2, 5
SIZES = {
    "vdev_sync_ind_r_histo": "sync_read",
    "vdev_sync_agg_r_histo": "sync_read_aggregated",
    "vdev_sync_ind_w_histo": "sync_write",
    "vdev_sync_agg_w_histo": "sync_write_aggregated",
    "vdev_async_ind_r_histo": "async_read",
    "vdev_async_agg_r_histo": "async_read_aggregated",
    "vdev_async_ind_w_histo": "async_write",
    "vdev_async_agg_w_histo": "async_write_aggregated",
}
"""Histograms by size, as ``zpool iostat -r`` shows them: counts of I/Os of 2^i ≤ bytes < 2^(i+1)."""
TIMES = {
    "vdev_tot_r_lat_histo": "total_read",
    "vdev_tot_w_lat_histo": "total_write",
    "vdev_disk_r_lat_histo": "disk_read",
    "vdev_disk_w_lat_histo": "disk_write",
    "vdev_sync_r_lat_histo": "queue_sync_read",
    "vdev_sync_w_lat_histo": "queue_sync_write",
    "vdev_async_r_lat_histo": "queue_async_read",
    "vdev_async_w_lat_histo": "queue_async_write",
}
"""Histograms by time, as ``zpool iostat -w`` shows them: counts of I/Os of 2^i ≤ ns < 2^(i+1)."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One device of a pool and what happened on it since the pool's import."""

    guid: int
    path: str
    kind: str
    """``disk`` or ``file``."""
    class_: str
    """``data``, ``log``, ``cache``, ``special``, ``dedup``; ``spare`` for one in use."""
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int
    trims: int
    sizes: Mapping[str, tuple[int, ...]]
    times: Mapping[str, tuple[int, ...]]


def leaves(config: Mapping[str, Any]) -> list[Leaf]:
    """Return every device in a pool's configuration, in its order; cache devices come last.

    ``config`` is what the module tells of a pool (``devzfs.pool_stats``). What has no path, such as a hole or
    a device that is missing, is left out.
    """
    tree = config.get("vdev_tree", {})
    found: list[Leaf] = []
    for top in tree.get("children", []):
        bias = str(top.get("alloc_bias", ""))
        class_ = "log" if top.get("is_log") else bias if bias in ("special", "dedup") else "data"
        found += [_leaf(node, class_) for node in _ends(top)]
    return found + [_leaf(node, "cache") for node in tree.get("l2cache", [])]


def _ends(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    children = node.get("children")
    if children:
        for child in children:
            yield from _ends(child)
    elif node.get("path") and "vdev_stats" in node:
        yield node


def _leaf(node: Mapping[str, Any], class_: str) -> Leaf:
    stats = list(node.get("vdev_stats", [])) + [0] * (_BYTES + _TYPES)
    more = node.get("vdev_stats_ex", {})
    return Leaf(
        guid=int(node.get("guid", 0)),
        path=str(node.get("path", "")),
        kind=str(node.get("type", "")),
        class_=class_,
        reads=stats[_OPS + _READ],
        read_bytes=stats[_BYTES + _READ],
        writes=stats[_OPS + _WRITE],
        write_bytes=stats[_BYTES + _WRITE],
        trims=stats[_OPS + _TRIM],
        sizes={name: tuple(more.get(key, ())) for key, name in SIZES.items()},
        times={name: tuple(more.get(key, ())) for key, name in TIMES.items()},
    )


def _less(
    before: Mapping[str, tuple[int, ...]], after: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, counts in after.items():
        then = before.get(name, ())
        then = then + (0,) * (len(counts) - len(then))
        found[name] = tuple(now - old for now, old in zip(counts, then, strict=False))
    return found


def since(before: Leaf, after: Leaf) -> Leaf:
    """Return what happened on one device between two readings."""
    return Leaf(
        after.guid,
        after.path,
        after.kind,
        after.class_,
        after.reads - before.reads,
        after.read_bytes - before.read_bytes,
        after.writes - before.writes,
        after.write_bytes - before.write_bytes,
        after.trims - before.trims,
        _less(before.sizes, after.sizes),
        _less(before.times, after.times),
    )


def histogram(counts: tuple[int, ...]) -> dict[str, int]:
    """Return the filled buckets: lower bound, a power of two as text → count."""
    return {str(1 << i): count for i, count in enumerate(counts) if count}


def reset(before: Leaf, after: Leaf) -> bool:
    """Whether the counters began anew between two readings, as they do when a device is reopened."""
    return any(
        getattr(after, name) < getattr(before, name)
        for name in ("reads", "read_bytes", "writes", "write_bytes")
    )
