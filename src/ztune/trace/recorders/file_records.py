"""Reads what the programs in the kernel say of files: each at first sight, and calls on their names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ztune.trace.recorders.files import Mounts

# The header of struct zt_file in recorder/records.h; names follow it.
FILE: Final = np.dtype(
    [
        *[("t", "u8"), ("dur", "u8"), ("ino", "u8"), ("size", "i8")],
        *[("id", "u4"), ("dev", "u4"), ("gen", "u4"), ("links", "u4"), ("pid", "u4"), ("tid", "u4")],
        *[("kind", "u1"), ("op", "u1"), ("part", "u1"), ("truncated", "u1")],
        *[("path_bytes", "u4"), ("user_bytes", "u4"), ("pad", "u4")],
    ]
)


class FileRecord(NamedTuple):
    """A file at first sight, or half of a call on names."""

    of: dict[str, int]
    """The numbers of ``FILE``."""
    device: int
    """As in st_dev; 0: none."""
    path: str
    user: str
    """What a call named, as the process wrote it."""
    end: int
    """Where the record ends in the data."""


def file_records(data: bytes, mounts: Mounts) -> Iterator[FileRecord]:
    """Yield the records in ``data``, with paths by ``mounts``."""
    place = 0
    while place + FILE.itemsize <= len(data):
        values = np.frombuffer(data, FILE, 1, place)[0].tolist()
        record = dict(zip(FILE.names or (), values, strict=True))
        names_at = place + FILE.itemsize
        user_at = names_at + record["path_bytes"]
        place = user_at + record["user_bytes"]
        if place > len(data):
            return  # the end of a recording that was cut
        device = os.makedev(record["dev"] >> 20, record["dev"] & 0xFFFFF)
        names = data[names_at:user_at].split(b"\0")[:-1]
        inside = "/" + "/".join(os.fsdecode(name) for name in reversed(names))
        path = mounts.absolute(device, inside) if device else ""
        yield FileRecord(record, device, path, os.fsdecode(data[user_at:place].rstrip(b"\0")), place)
