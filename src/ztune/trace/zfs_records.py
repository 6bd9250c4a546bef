"""The records of a recorded host's ZFS: a read from its ARC takes as long as they are decompressed."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host.mounts import MountInfo
from ztune.onhost.host.zfs import Commands, parse_get
from ztune.trace.manifest import Manifest, TraceFile
from ztune.trace.recorders.files import Mounts

KEY = "zfs_records"
"""Where a trace's ``environment`` keeps them: mount point → ``recordsize``, bytes, and ``compression``."""
NS = {"off": 0.0, "zstd": 0.8, "gzip": 3.0}
"""To decompress a byte, by how names of ``compression`` begin; docs/recording.md says how it was measured."""
LZ4_NS = 0.35
"""The same of all others: "on" is lz4, and what is not known is taken for it."""
_TYPES = ("zfs", "fuse.ztune")


def of(files: Sequence[TraceFile], mounts: Mounts) -> dict[str, Any]:
    """Return what a trace keeps of the file systems of ``files`` that are ZFS: the size that most bytes of
    files have for a record (from st_blksize), and the property ``compression`` where it can be asked for."""
    sizes: dict[MountInfo, Counter[int]] = {}
    for file in files:
        mount = mounts.of(file.dev)
        if mount is None or mount.type not in _TYPES or file.role is None:
            continue
        try:
            found = Path(file.path).stat()
        except (OSError, ValueError):
            continue
        if found.st_ino == file.ino and found.st_size > found.st_blksize:  # a smaller one is one short record
            sizes.setdefault(mount, Counter())[found.st_blksize] += found.st_size
    asked = _compression(sorted(mount.source for mount in sizes if mount.type == "zfs"))
    return {
        str(mount.point): {
            "recordsize": by_size.most_common(1)[0][0],
            **({"compression": said} if (said := asked.get(mount.source) or _of_mount(mount)) else {}),
        }
        for mount, by_size in sizes.items()
    }


def _of_mount(mount: MountInfo) -> str:
    """Return what a mount of `ztune mount` says of itself; "" where it says nothing."""
    try:
        return os.getxattr(mount.point, "ztune.compression").decode("ascii", "replace")
    except OSError:
        return ""


def _compression(datasets: Sequence[str]) -> dict[str, str]:
    if not datasets:
        return {}
    ask = Commands(Events(io.StringIO()))
    try:
        _, out, _ = ask.attempt(
            ["zfs", "get", "-Hp", "-o", "name,property,value,source", "compression", *datasets], timeout=20
        )
    except ZtuneError:
        return {}
    return {name: values["compression"].value for name, values in parse_get(out).items()}


def decompressing_ns(
    manifest: Manifest, file: npt.NDArray[Any], offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return how long it takes to decompress the records that reads touch, of files by their numbers."""
    record, rate = np.ones(len(manifest.files) + 1, np.int64), np.zeros(len(manifest.files) + 1)
    for point, recordsize, ns in sorted(_kept(manifest)):  # a deeper mount lies on top
        below = point.rstrip("/") + "/"
        for one in manifest.files:
            if one.path.startswith(below):
                record[one.id], rate[one.id] = min(recordsize, max(one.size_start, 1)), ns
    records = (offset + size - 1) // record[file] - offset // record[file] + 1
    found: npt.NDArray[np.float64] = records * record[file] * rate[file]
    return found


def _kept(manifest: Manifest) -> Iterator[tuple[str, int, float]]:
    """Yield the mount points that a trace keeps, the size of a record there, and what a byte takes, ns."""
    places = manifest.environment.get(KEY)
    for point, said in places.items() if isinstance(places, dict) else ():
        size = said.get("recordsize") if isinstance(said, dict) else None
        if isinstance(size, int) and size > 0:
            name = str(said.get("compression"))
            yield point, size, next((ns for begins, ns in NS.items() if name.startswith(begins)), LZ4_NS)
