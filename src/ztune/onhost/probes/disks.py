"""The devices of a layout: what they are on this host, and what happened on each."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.probes import devzfs, procfs, vdevs
from ztune.onhost.probes.context import Context, PoolContext
from ztune.onhost.probes.procfs import Number


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the layout."""

    pool: str
    """The pool's name in the layout."""
    class_: str
    name: str
    """As a replay names it: ``data-0/1`` is the second disk of the first data vdev."""
    path: str
    number: Number | None
    """The whole disk; None for a file."""
    guid: int
    """OpenZFS's; 0 for ext4 and xfs."""
    flushes: bool
    """Whether the kernel counts the flushes that this pool asks of it, and no one else's."""


@dataclass(frozen=True, slots=True)
class DiskReading:
    """All counters of the devices of a layout at one time."""

    leaves: dict[int, vdevs.Leaf]
    """By guid."""
    disks: dict[Number, procfs.DiskCounters]


def _number(path: str) -> Number | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISBLK(status.st_mode):
        return None
    return procfs.whole_disk((os.major(status.st_rdev), os.minor(status.st_rdev)))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def given(pool: PoolContext) -> list[tuple[str, str, str, str]]:
    """Return class, name, path and node of the devices that were given for a pool."""
    counts: dict[tuple[str, int], int] = {}
    found = []
    for device in pool.devices:
        key = (device.class_, device.vdev)
        nth = counts[key] = counts.get(key, -1) + 1
        found.append((device.class_, f"{device.class_}-{device.vdev}/{nth}", device.path, device.node))
    return found


def _zfs(pool: PoolContext, leaves: list[vdevs.Leaf]) -> list[Device]:
    offered = given(pool)
    counts: dict[str, int] = {}
    found = []
    for leaf in leaves:
        number = _number(leaf.path)
        match = next(
            (
                g for g in offered
                if _same(g[3], leaf.path) or (number is not None and _number(g[3]) == number)
            ),
            None,
        )  # fmt: skip
        if match is None:
            # A pool that is not ours, or a device that ZFS put in another's place.
            nth = counts[leaf.class_] = counts.get(leaf.class_, -1) + 1
            class_, name, path = leaf.class_, f"{leaf.class_}-{nth}", leaf.path
        else:
            class_, name, path, _node = match
        found.append(
            Device(pool.layout_name, class_, name, path, number, leaf.guid, number is not None and pool.ours)
        )
    return found


def find(context: Context) -> list[Device]:
    """Return the devices of every pool of the layout, as they are now.

    A pool that ZFS tells nothing about is given with its disks alone, and a warning.
    """
    found: list[Device] = []
    for pool in context.pools:
        if pool.filesystem == "zfs":
            try:
                found += _zfs(pool, vdevs.leaves(devzfs.pool_stats(pool.name)))
                continue
            except ZtuneError as error:
                context.warn(
                    f"{error}: its operations are the kernel's counts of its disks, where a flush counts as "
                    "a write, and none for files"
                )
        for class_, name, path, node in given(pool):
            number = _number(node)
            found.append(Device(pool.layout_name, class_, name, path, number, 0, number is not None))
    return found


def read(context: Context, devices: list[Device]) -> DiskReading:
    """Return all counters now. No program is started."""
    leaves: dict[int, vdevs.Leaf] = {}
    for pool in context.zfs_pools:
        if any(d.guid and d.pool == pool.layout_name for d in devices):
            for leaf in vdevs.leaves(devzfs.pool_stats(pool.name)):
                leaves[leaf.guid] = leaf
    return DiskReading(leaves, procfs.diskstats())


def compare(
    devices: list[Device], before: DiskReading, after: DiskReading
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what happened on each device, as in the result's ``by_vdev``, and warnings.

    Operations and bytes of a ZFS device are OpenZFS's own counts; the kernel's would count each flush as a
    write too. Flushes are the kernel's. Files have no count of flushes: None.
    """
    rows: list[dict[str, Any]] = []
    warnings: list[str] = []
    for device in devices:
        row: dict[str, Any] = {
            "pool": device.pool,
            "class": device.class_,
            "name": device.name,
            "path": device.path,
            "reads": None,
            "read_bytes": None,
            "writes": None,
            "write_bytes": None,
            "flushes": None,
            "source": "none",
        }
        then = before.disks.get(device.number) if device.number else None
        now = after.disks.get(device.number) if device.number else None
        disk = now.since(then) if now is not None and then is not None else None
        if disk is not None:
            if device.flushes:
                row["flushes"] = disk.flushes
            row["queue_ms"], row["busy_ms"] = disk.queue_ms, disk.busy_ms
        old, new = before.leaves.get(device.guid), after.leaves.get(device.guid)
        if old is not None and new is not None and not vdevs.reset(old, new):
            change = vdevs.since(old, new)
            row |= {
                "reads": change.reads,
                "read_bytes": change.read_bytes,
                "writes": change.writes,
                "write_bytes": change.write_bytes,
                "source": "vdev",
            }
        elif disk is not None:
            row |= {
                "reads": disk.reads,
                "read_bytes": disk.read_bytes,
                "writes": disk.writes,
                "write_bytes": disk.write_bytes,
                "source": "diskstats",
            }
            if device.guid:
                warnings.append(
                    f"{device.path}: OpenZFS began to count anew in the measure window; its operations are "
                    "the kernel's, where a flush counts as a write"
                )
        else:
            warnings.append(f"{device.path}: its operations could not be counted")
        rows.append(row)
    return rows, warnings


def total(rows: list[dict[str, Any]]) -> dict[str, int | None]:
    """Return the sums over the rows; None for a count that one of them does not have."""
    found: dict[str, int | None] = {}
    for key in ("reads", "read_bytes", "writes", "write_bytes", "flushes"):
        values = [row[key] for row in rows]
        found[key] = None if not rows or None in values else sum(values)
    return found
