"""Space: what datasets and pools hold, and what the same would take uncompressed."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ztune.onhost.host.zfs import parse_get, parse_table
from ztune.onhost.probes.context import Context, DatasetContext
from ztune.onhost.probes.probe import Probe

_PROPERTIES = (
    *("used", "usedbydataset", "logicalused", "referenced", "logicalreferenced", "compressratio"),
    *("refcompressratio", "recordsize", "volblocksize"),
)
_POOL = ("name", "size", "allocated", "free", "fragmentation")


def parse_datasets(text: str) -> dict[str, dict[str, int | float]]:
    """Return dataset → property → bytes, or ratio, from ``zfs get -Hp -o name,property,value,source``."""
    found: dict[str, dict[str, int | float]] = {}
    for name, values in parse_get(text).items():
        mine = found[name] = {}
        for key, value in values.items():
            try:
                mine[key] = float(value.value) if key.endswith("ratio") else int(value.value)
            except ValueError:
                continue
    return found


def parse_pools(text: str) -> dict[str, dict[str, int]]:
    """Return pool → size, allocated, free (bytes), fragmentation (percent) from ``zpool list -Hp``."""
    found: dict[str, dict[str, int]] = {}
    for row in parse_table(text, _POOL):
        mine = found[row["name"]] = {}
        for key in _POOL[1:]:
            digits = row[key].rstrip("%")
            if digits.isdigit():
                mine[key] = int(digits)
    return found


def files(folders: Sequence[Path]) -> dict[str, int]:
    """Return the files below ``folders``: how many, their bytes, and the bytes they take on the disk.

    A file with several names counts once.
    """
    count = logical = used = 0
    seen: set[tuple[int, int]] = set()
    for top in folders:
        for folder, _below, names in os.walk(top):
            for name in names:
                try:
                    status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - many files, no objects
                except OSError:
                    continue
                if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                    continue
                if status.st_nlink > 1:
                    seen.add((status.st_dev, status.st_ino))
                count += 1
                logical += status.st_size
                used += status.st_blocks * 512
    return {"files": count, "logical": logical, "used": used}


def _filesystem_used(path: Path) -> int:
    facts = os.statvfs(path)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def filler(context: Context) -> int:
    """Return the bytes of what fills aged pools, which are nobody's."""
    return sum(map(_filesystem_used, context.fillers))


def collect(context: Context) -> dict[str, Any]:
    """Return the result's ``space``: sums, and each dataset and pool. Starts ``zfs get`` and ``zpool list``.

    ``files`` are the files' sizes; ``logical`` is ZFS's own word for what it compressed: metadata too, and
    the padding of the last record of each file that is longer than one.
    ``allocated`` is what ``zpool list`` calls so, over all pools: parity, copies and metadata included,
    mirrors counted once. On a pool that is not ours it is the sum of the datasets' own. On ext4
    and xfs it is what is not free, journal and tables included. What fills an aged pool does not count.
    """
    zfs = [d for d in context.datasets if d.filesystem == "zfs" or d.volume]
    pools = [p.name for p in context.zfs_pools]
    said: dict[str, dict[str, int | float]] = {}
    listed: dict[str, dict[str, int]] = {}
    if zfs:
        said = parse_datasets(
            context.command(
                [
                    *("zfs", "get", "-Hp", "-o", "name,property,value,source", ",".join(_PROPERTIES)),
                    *(d.name for d in zfs),
                ]
            )
        )
    if pools:
        listed = parse_pools(context.command(["zpool", "list", "-Hp", "-o", ",".join(_POOL), *pools]))
    rows = [_row(d, said.get(d.name, {}), context) for d in context.datasets]
    allocated = 0
    for pool in context.pools:
        mine = [row for row, d in zip(rows, context.datasets, strict=True) if d.pool == pool.name]
        if pool.filesystem == "zfs" and pool.ours and "allocated" in listed.get(pool.name, {}):
            allocated += listed[pool.name]["allocated"]
        elif pool.filesystem == "zfs":
            allocated += sum(row["used"] for row in mine)
        else:
            # The pool's datasets are directories of one file system.
            points = [d.mountpoint for d in context.datasets if d.pool == pool.name]
            allocated += _filesystem_used(points[0]) if points else 0
    return {
        "allocated": max(0, allocated - filler(context)),
        "files": sum(row["files"] for row in rows),
        "logical": sum(row["logical"] for row in rows),
        "compression_ratio": ratio(rows),
        "by_dataset": rows,
        "by_pool": {pool.layout_name: listed[pool.name] for pool in context.zfs_pools if pool.name in listed},
    }


def _row(dataset: DatasetContext, values: Mapping[str, int | float], context: Context) -> dict[str, Any]:
    held = files_of(dataset, context)
    row: dict[str, Any] = {
        "name": dataset.layout_name,
        "roles": list(dataset.roles),
        "filesystem": dataset.filesystem,
        "files": held["logical"],
    }
    if dataset.filesystem == "zfs" or dataset.volume:
        used = int(values.get("usedbydataset", 0))
        logical = int(values.get("logicalreferenced", 0))
        return row | {"used": used, "logical": logical, "ratio": values.get("refcompressratio")}
    return row | {"used": held["used"], "logical": held["logical"], "ratio": None}


def files_of(dataset: DatasetContext, context: Context) -> dict[str, int]:
    """Return the files of a dataset's roles, as ``files`` does."""
    return files([context.role_dirs[role] for role in dataset.roles if role in context.role_dirs])


def ratio(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the files' bytes over what they take compressed, in all datasets that ZFS holds.

    None when it holds nothing. Not ZFS's own ratio: in that the padding of files' last records counts, which
    compresses to nothing.
    """
    mine = [row for row in rows if row["ratio"] and row["logical"] and row["files"]]
    if not mine:
        return None
    compressed = sum(row["logical"] / row["ratio"] for row in mine)
    return round(float(sum(row["files"] for row in mine) / compressed), 4)


class SpaceProbe(Probe):
    """Files by role, their bytes and blocks."""

    name = "space"
    measures = "files of each role at the end: how many, their bytes, and the bytes they take"
    cost = "after"

    def finish(self) -> dict[str, Any]:
        """Walk the roles' directories."""
        return {role: files([folder]) for role, folder in self.context.role_dirs.items()}
