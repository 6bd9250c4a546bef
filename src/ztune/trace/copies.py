"""Which thread of a recording writes what another one reads: a backup's client and its server.

A server's backend reads the database and sends it to a client, which writes it to a file. What passes between
them, a socket or a pipe, is not recorded. It shows in their bytes all the same: the one has written as large
a part of the whole as the other has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ztune.trace.reader import Trace
from ztune.trace.schema import Op

COPIES = frozenset({"backup", "archive"})
LEAST = 8 << 20
"""Bytes that a thread of a copy reads or writes at least: what sockets and buffers hold tells nothing."""
_PARTS = 500  # of the recording, in which bytes are added up
_APART = 0.05  # of the whole; pg_basebackup was 0.001 apart, a compressed pg_dump 0.018
_MOST = 64  # threads that are looked at

Bytes = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Moved:
    """By thread and part of the recording, bytes."""

    tids: npt.NDArray[np.int64]
    read: Bytes
    copied: Bytes


def copies(trace: Trace) -> dict[int, int]:
    """Return thread → thread whose reads it writes to files of the roles backup and archive.

    Only where one thread alone comes into question: of several that read side by side it is not known whose
    bytes are whose. Raises InputError if the trace is damaged.
    """
    roles = [file.role for file in trace.manifest.files]
    into = np.array([role in COPIES for role in roles] + [False])
    if not into.any():
        return {}
    moved = _moved(trace, into, np.array([role is not None for role in roles] + [False]))
    found = {}
    for writer, copied in zip(moved.tids, moved.copied, strict=True):
        own = moved.read[moved.tids == writer].sum()
        if copied.sum() < LEAST or own > copied.sum() / 10:
            continue
        readers = [
            int(tid)
            for tid, read in zip(moved.tids, moved.read, strict=True)
            if tid != writer and read.sum() >= copied.sum() / 2 and _apart(read, copied) <= _APART
        ]
        if len(readers) == 1:
            found[int(writer)] = readers[0]
    return {writer: reader for writer, reader in found.items() if reader not in found}


def _apart(read: Bytes, copied: Bytes) -> float:
    """Return by how much of the whole the one is ahead of the other at most."""
    return float(np.abs(np.cumsum(read) / read.sum() - np.cumsum(copied) / copied.sum()).max())


def _moved(trace: Trace, into: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]) -> _Moved:
    """Add up what threads read of files that are no copies, and write to those that are."""
    totals: dict[int, float] = {}
    for tid, _, read, copied in _parts(trace, into, known):
        who, number = np.unique(tid, return_inverse=True)
        for one, size in zip(who, np.bincount(number, read + copied), strict=True):
            totals[int(one)] = totals.get(int(one), 0.0) + float(size)
    large = sorted((t for t, size in totals.items() if size >= LEAST / 2), key=lambda t: -totals[t])
    tids = np.array(sorted(large[:_MOST]), np.int64)
    if not len(tids):
        none = np.zeros((0, _PARTS))
        return _Moved(tids, none, none)
    sums = np.zeros((2, len(tids) * _PARTS))
    each = max(1, trace.manifest.duration_ns) / _PARTS
    for tid, t, read, copied in _parts(trace, into, known):
        number = np.searchsorted(tids, tid)
        rows = np.flatnonzero((number < len(tids)) & (tids[np.minimum(number, len(tids) - 1)] == tid))
        place = number[rows] * _PARTS + np.clip(t[rows] / each, 0, _PARTS - 1).astype(np.int64)
        for k, size in enumerate((read, copied)):
            sums[k] += np.bincount(place, size[rows], len(tids) * _PARTS)
    read, copied = (one.reshape(len(tids), _PARTS) for one in sums)
    return _Moved(tids, read, copied)


def _parts(
    trace: Trace, into: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Bytes, Bytes]]:
    for part in trace.parts("t", "tid", "op", "file", "size"):
        op, file, size = part["op"], part["file"], np.maximum(part["size"], 0)
        read = np.where((op == Op.READ) & known[file] & ~into[file], size, 0.0)
        copied = np.where((op == Op.WRITE) & into[file], size, 0.0)
        rows = np.flatnonzero(read + copied)
        yield part["tid"][rows], part["t"][rows], read[rows], copied[rows]
