"""Exports a trace's events in the binary form that the replay engine reads.

Little endian: a header of 32 bytes (magic, u32 version, u32 record size, u64 records, u32 files, u32
threads), then records of 56 bytes sorted by time. The codes are those of schema.py;
docs/trace-format.md has the table.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.files import writing
from ztune.trace.reader import Columns, Trace
from ztune.trace.schema import Flag, Op

EXPORT_VERSION = 3  # part of the key under which callers cache an export
MAGIC = b"ZTOPS\0\0\0"
OPS_VERSION = 2
MAX_THREADS = 1 << 16

CONTENT = "neighbour-"
"""What stands before a role in the names of a neighbour's content."""

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("record_size", "<u4"),
        ("nops", "<u8"),
        ("nfiles", "<u4"),
        ("nthreads", "<u4"),
    ]
)
RECORD = np.dtype(
    [
        ("t", "<i8"),  # ns since the trace began
        ("dur", "<i8"),  # ns
        ("offset", "<i8"),
        ("size", "<i8"),
        ("file", "<i4"),  # 0 .. nfiles-1, -1 for none
        ("file2", "<i4"),
        ("thread", "<u2"),  # 0 .. nthreads-1
        ("op", "u1"),
        ("via", "u1"),
        ("flags", "<u4"),
        ("blank", "<u4"),  # of a write: so many bytes at its end are zeros
        ("unused", "<u4"),
    ]
)
assert HEADER.itemsize == 32
assert RECORD.itemsize == 56
_LARGEST_PAGE = 64 << 10  # of a database, bytes: InnoDB's
_CHUNK = 1 << 20  # records converted at a time


@dataclass(frozen=True)
class OpsFile:
    """One file of the export. ``size`` is its length in bytes when the trace began, ``size_end`` when it
    ended. ``neighbour``: whether it is one of a second recording, which is replayed beside the first."""

    id: int
    size: int
    role: str
    path: str
    trace_id: int  # the file's id in the trace's manifest
    size_end: int = 0
    neighbour: bool = False


@dataclass(frozen=True)
class OpsInfo:
    """What was exported."""

    path: Path
    nops: int
    threads: int
    files: list[OpsFile]
    left_out: int  # events of files without a role, and reads and writes of no bytes


@dataclass(frozen=True)
class Inputs:
    """What the engine reads beside the spec. ``content``: its name in the spec → the file."""

    ops: Path
    files: tuple[OpsFile, ...]
    content: dict[str, Path]
    warnings: tuple[str, ...]


def export_ops(trace: Trace, path: Path | str) -> OpsInfo:
    """Write the operations of ``trace`` on files that have a role to ``path``, for the engine.

    Files are numbered anew without gaps. Threads too, and a thread that began after another had ended takes
    over its number, so that the engine needs no more threads than ever ran together. A copy from a file
    without a role becomes a write. Raises InputError if the trace is damaged, has no file with a role, or
    more than 65,536 threads ran at a time, and if the disk is full.
    """
    path = Path(path)
    files = [
        OpsFile(new, file.size_start, file.role, file.path, file.id, max(file.size_end, 0))
        for new, file in enumerate(file for file in trace.manifest.files if file.role is not None)
        if file.role is not None
    ]
    if not files:
        raise InputError(
            f"no file of the trace {trace.path} has a role, so nothing can be replayed;"
            " give roles with --role 'GLOB=ROLE' when recording"
        )
    columns = trace.columns("t", "dur", "tid", "op", "via", "flags", "file", "file2", "offset", "size")
    new_id = np.full(len(trace.manifest.files) + 1, -1, np.int32)  # the last is what -1 indexes
    for file in files:
        new_id[file.trace_id] = file.id
    chosen = np.flatnonzero(_replayed(columns, new_id))
    thread, threads = dense_threads(
        columns["tid"][chosen], columns["t"][chosen], columns["dur"][chosen], trace
    )

    logs = np.array([file.role == "wal" for file in trace.manifest.files] + [False])
    blank = blank_tails(columns, chosen, logs)
    header = np.zeros(1, HEADER)
    header[0] = (MAGIC, OPS_VERSION, RECORD.itemsize, len(chosen), len(files), threads)
    with writing(path) as out:
        out.write(header.tobytes())
        for start in range(0, len(chosen), _CHUNK):
            part = slice(start, start + _CHUNK)
            records = _records(columns, chosen[part], thread[part], new_id)
            records["blank"] = blank[part]
            out.write(records.tobytes())
    return OpsInfo(path, len(chosen), threads, files, len(columns["t"]) - len(chosen))


def join_ops(first: Path | None, second: Path, target: Path, start_ns: int, end_ns: int) -> None:
    """Write the operations of two ops files to ``target``, in the order of their times, for the engine.

    The second's begin ``start_ns`` after the first's, and what would come at ``end_ns`` or later is left out.
    Its files and threads are numbered on from the first's; ``first`` None: it is alone, with the same numbers
    of its own. What warms the caches comes before all else, as the engine has it. Raises InputError.
    """
    parts, files, threads = [], 0, 0
    if first is not None:
        header, records = read_ops(first)
        files, threads = int(header["nfiles"][0]), int(header["nthreads"][0])
        parts.append(records)
    header, records = read_ops(second)
    nfiles, nthreads = files + int(header["nfiles"][0]), threads + int(header["nthreads"][0])
    if nthreads > MAX_THREADS:
        raise InputError(
            f"{nthreads} threads run in both recordings together; at most {MAX_THREADS} can be replayed"
        )
    moved = records.copy()
    warm = moved["op"] == Op.WARM
    moved["t"][~warm] += start_ns
    moved = moved[warm | (moved["t"] < end_ns)]
    for name in ("file", "file2"):
        moved[name][moved[name] >= 0] += files
    moved["thread"] += threads
    both = np.concatenate([*parts, moved])
    # Stable: calls of one time stay in the order in which their recording has them.
    order = np.lexsort((both["t"], both["op"] != Op.WARM))
    out_header = np.zeros(1, HEADER)
    out_header[0] = (MAGIC, OPS_VERSION, RECORD.itemsize, len(both), nfiles, nthreads)
    with writing(target) as out:
        out.write(out_header.tobytes())
        for start in range(0, len(order), _CHUNK):
            out.write(both[order[start : start + _CHUNK]].tobytes())


def read_ops(path: Path) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return header (one element) and records of an ops file; raises InputError if it is not one."""
    data = path.read_bytes()
    if len(data) < HEADER.itemsize:
        raise InputError(f"{path} is not an ops file: it is shorter than a header")
    header: npt.NDArray[np.void] = np.frombuffer(data, HEADER, 1)
    if (
        data[:8] != MAGIC
        or header["version"][0] != OPS_VERSION
        or header["record_size"][0] != RECORD.itemsize
    ):
        raise InputError(f"{path} is not an ops file of version {OPS_VERSION}")
    if len(data) != HEADER.itemsize + int(header["nops"][0]) * RECORD.itemsize:
        raise InputError(f"{path} is truncated")
    return header, np.frombuffer(data, RECORD, offset=HEADER.itemsize)


def _replayed(columns: Columns, new_id: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    op = columns["op"]
    with_role = (new_id[columns["file"]] >= 0) | (op == Op.SYNC)
    moves = (op == Op.READ) | (op == Op.WRITE) | (op == Op.COPY)
    keep: npt.NDArray[np.bool_] = with_role & ~(moves & (columns["size"] == 0))
    return keep


def _records(
    columns: Columns, rows: npt.NDArray[np.intp], thread: npt.NDArray[Any], new_id: npt.NDArray[np.int32]
) -> npt.NDArray[np.void]:
    records = np.zeros(len(rows), RECORD)
    for name in ("t", "dur", "offset", "size", "op", "via", "flags"):
        records[name] = columns[name][rows]
    records["flags"] &= ~int(Flag.POSITIONED) & 0xFFFF  # to the engine an offset is an offset
    for name in ("file", "file2"):
        records[name] = new_id[columns[name][rows]]
    records["thread"] = thread
    records["op"][(records["op"] == Op.COPY) & (records["file2"] < 0)] = Op.WRITE
    return records


def blank_tails(
    columns: Columns, rows: npt.NDArray[np.intp], logs: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint32]:
    """Return for each of ``rows`` how many bytes at the end of a log's write are likely to be zeros.

    A database appends to its log in whole pages, and each commit writes the last one again until it is full;
    what is not used of it yet is zeros, which compress to nothing. The trace shows that: a write begins where
    the last page of the one before began. A page that was written n times before a write went on beyond it is
    taken to have been filled evenly: at the i-th time, i of n + 1 parts. ``logs`` says of each file whether
    it is a log.
    """
    blank = np.zeros(len(rows), np.uint32)
    mine = np.flatnonzero((columns["op"][rows] == Op.WRITE) & logs[columns["file"][rows]])
    mine = mine[np.argsort(columns["file"][rows][mine], kind="stable")]
    file, begin = columns["file"][rows][mine], columns["offset"][rows][mine]
    end = begin + columns["size"][rows][mine]
    # The next write of the file begins within this one: from there on it is the page written again.
    again = (file[1:] == file[:-1]) & (begin[1:] >= begin[:-1])
    again &= (begin[1:] < end[:-1]) & (end[:-1] - begin[1:] <= _LARGEST_PAGE)
    onward = again & (end[1:] > end[:-1])
    still = again & (end[1:] == end[:-1])
    # A series of n writes ended at the same place; it counts if the file went on after the last of them.
    last = np.flatnonzero(~still)
    n = np.diff(last, prepend=-1)
    n, last = np.repeat(n, n), np.repeat(last, n)
    writes = np.arange(len(n))
    page = end[writes] - begin[writes + 1]
    blank[mine[writes]] = np.where(onward[last], page * (last - writes + 1) // (n + 1), 0)
    return blank


def dense_threads(
    tid: npt.NDArray[np.int32],
    t: npt.NDArray[np.int64],
    dur: npt.NDArray[np.int64],
    trace: Trace | None = None,
) -> tuple[npt.NDArray[np.uint16], int]:
    """Return a number from 0 for the thread of each event, and how many numbers there are.

    A number is used again for a thread whose first event starts after the last event of the former user of
    the number has ended. ``t`` must be sorted.
    """
    if not len(tid):
        return np.empty(0, np.uint16), 0
    tids, first, inverse = np.unique(tid, return_index=True, return_inverse=True)
    ends = np.zeros(len(tids), np.int64)
    np.maximum.at(ends, inverse, t + np.minimum(dur, np.iinfo(np.int64).max - t))
    number = np.empty(len(tids), np.int64)
    busy: list[tuple[int, int]] = []  # (end, number) of the threads under way
    free: list[int] = []
    used = 0
    for index in np.argsort(first, kind="stable"):
        while busy and busy[0][0] < t[first[index]]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            mine = heapq.heappop(free)
        else:
            mine, used = used, used + 1
        number[index] = mine
        heapq.heappush(busy, (int(ends[index]), mine))
    if used > MAX_THREADS:
        where = f"the trace {trace.path}" if trace else "the trace"
        raise InputError(f"{used} threads run together in {where}; at most {MAX_THREADS} can be replayed")
    return number[inverse].astype(np.uint16), used
