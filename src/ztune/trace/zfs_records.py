"""The records of a recorded host's ZFS: a read from its ARC takes as long as they are decompressed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.onhost.host.mounts import MountInfo
from ztune.onhost.look import zfs
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
    asked = zfs.asked("compression", {mount.source for mount in sizes if mount.type == "zfs"})
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


@dataclass(frozen=True)
class Records:
    """Of each of a trace's files, by its number: the bytes of a record, and what a byte takes, ns."""

    size: npt.NDArray[np.int64]
    byte_ns: npt.NDArray[np.float64]

    @classmethod
    def of(cls, manifest: Manifest) -> Records:
        """Return those of a trace; of files that are on no ZFS they take no time."""
        size, byte_ns = np.ones(len(manifest.files) + 1, np.int64), np.zeros(len(manifest.files) + 1)
        kept, mounted = _kept(manifest), manifest.environment.get("host_fs")
        for point in sorted({*kept, *(mounted if isinstance(mounted, dict) else ())}):
            below = point.rstrip("/") + "/"
            recordsize, ns = kept.get(point, (1, 0.0))
            for one in manifest.files:
                if one.path.startswith(below):  # a deeper mount lies on top
                    size[one.id], byte_ns[one.id] = min(recordsize, max(one.size_start, 1)), ns
        return cls(size, byte_ns)

    def decompressing_ns(
        self, file: npt.NDArray[Any], offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return how long it takes to decompress the records that reads touch, of files by their numbers."""
        record = self.size[file]
        touched = (offset + size - 1) // record - offset // record + 1
        found: npt.NDArray[np.float64] = touched * record * self.byte_ns[file]
        return found


def _kept(manifest: Manifest) -> dict[str, tuple[int, float]]:
    """Return the mount points that a trace keeps, with the size of a record there and what a byte takes."""
    places = manifest.environment.get(KEY)
    kept = {}
    for point, said in places.items() if isinstance(places, dict) else ():
        size = said.get("recordsize") if isinstance(said, dict) else None
        if isinstance(size, int) and size > 0:
            name = str(said.get("compression"))
            kept[point] = size, next((ns for begins, ns in NS.items() if name.startswith(begins)), LZ4_NS)
    return kept
