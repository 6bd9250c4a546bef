"""Exports a trace's events in the binary form that the replay engine reads.

Little endian: a header of 32 bytes (magic, u32 version, u32 record size, u64 records, u32 files, u32
threads), then records of 64 bytes sorted by time. The codes are those of schema.py;
docs/trace-format.md has the table.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.files import writing
from ztune.trace.copies import copies
from ztune.trace.direct import DirectIO
from ztune.trace.first_reads import CachedRanges, cached
from ztune.trace.inputs import OpsFile, OpsInfo
from ztune.trace.prefilled import Prefilled
from ztune.trace.reader import Columns, Trace
from ztune.trace.schema import Flag, Op

MAGIC = b"ZTOPS\0\0\0"
OPS_VERSION = 3
MAX_THREADS = 1 << 16
PAUSES = 1 << 16
"""Flag of an operation: its thread goes on after the pause it made when recorded, whenever that is."""

Ints: TypeAlias = "npt.NDArray[np.signedinteger[Any]]"
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
        ("since_sync", "<u4"),  # ns since another's sync ended that the thread had waited for; 0: for none
        ("waited", "<u4"),  # ns that it waited for others' syncs since its last call
        ("arc", "<u4"),  # of what warms the caches: the MiB of ARC from which on it does; 0: any
    ]
)
assert HEADER.itemsize == 32
assert RECORD.itemsize == 64
_CHUNK = 1 << 20  # records at a time
_COLUMNS = (
    *("t", "dur", "tid", "op", "via", "flags", "file", "file2", "offset", "size"),
    *("since_sync", "waited"),
)
_MIB = 1 << 20
YEAR_NS = 31_557_600 * 10**9
"""The latest start of a call that is replayed. Nobody records for a year: it is a wall clock's time."""
_PARTS = re.compile(r"(\D*)(\d*)", re.ASCII)
_LARGEST_PAGE = 64 << 10  # of a database, bytes: InnoDB's


def _as_made(path: str) -> list[tuple[str, int]]:
    """Return what sorts paths as the files were made, as far as names tell: databases count theirs upwards.

    A load writes them in this order. In that of the trace what reads all files, as a backup does in the
    order of its file system's hashes, would find each beside the last.
    """
    return [(text, int(number or 0)) for text, number in _PARTS.findall(path)]


def export_ops(trace: Trace, path: Path | str) -> OpsInfo:
    """Write the operations of ``trace`` on files that have a role to ``path``, for the engine.

    Files are numbered anew without gaps. Threads too, and a thread that began after another had ended takes
    over its number, so that the engine needs no more threads than ever ran together. Two threads of which one
    writes what the other reads are one (``copies``), and go on as fast as they can. A copy from a file
    without a role becomes a write, and the removal of a name that leaves its file another one a rename.
    Raises InputError if the trace is damaged, has no file with a role or an
    event a year after its beginning, or more than 65,536 threads ran at a time, if ``path`` is within the
    trace, and if the disk is full.
    """
    path = Path(path)
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(trace.path)):
        raise InputError(f"{path} is within the trace; name a file beside it")
    sample = trace.manifest.sample
    roles = [(file, file.role) for file in trace.manifest.files if file.role is not None]
    roles.sort(key=lambda one: _as_made(one[0].path))
    files = [
        OpsFile(
            id=new,
            size=file.size_start,
            role=role,
            path=file.path,
            trace_id=file.id,
            size_end=max(file.size_end, 0),
            recorded=sample.of if file.sampled and sample is not None else 0,
            ino=file.ino,
            embedded=file.embedded,
        )
        for new, (file, role) in enumerate(roles)
    ]
    if not files:
        raise InputError(
            f"no file of the trace {trace.path} has a role, so nothing can be replayed;"
            " give roles with --role 'GLOB=ROLE' when recording"
        )
    new_id = np.full(len(trace.manifest.files) + 1, -1, np.int32)  # the last is what -1 indexes
    for file in files:
        new_id[file.trace_id] = file.id
    logs = np.array([file.role == "wal" for file in trace.manifest.files] + [False])
    joined = copies(trace)
    names = _Names(trace)
    threads, tails, ahead, nops = Threads(), BlankTails(logs), Prefilled(logs), 0
    later: list[tuple[Ints, Ints]] = []  # places and blank tails that a later part decides
    warmed = False
    for part in trace.parts("t", "dur", "tid", "op", "file", "file2", "offset", "size"):
        names.add(part)
        warmed |= bool((part["op"] == Op.WARM).any())
        # Not their sum, which may be more than 64 bits hold.
        last = max(int(part[name].max(initial=0)) for name in ("t", "dur"))
        if last > YEAR_NS:
            raise InputError(
                f"the trace {trace.path} has an event that ends {last / YEAR_NS:.1f} years after it began,"
                " and a replay goes through all that time; its t are to count from when the trace began"
            )
        chosen = np.flatnonzero(_replayed(part, new_id))
        threads.add(_joined(part["tid"][chosen], joined), part["t"][chosen], part["dur"][chosen])
        place, blank = tails.add(part, chosen)
        before = (place < nops) & (blank > 0)
        later.append((place[before], blank[before]))
        ahead.add(part, chosen)
        nops += len(chosen)
    later.append(ahead.found())
    numbers = threads.numbers()
    if threads.used > MAX_THREADS:
        raise InputError(
            f"{threads.used} threads run together in the trace {trace.path};"
            f" at most {MAX_THREADS} can be replayed"
        )
    told = cached(trace)
    warming = np.empty(0, RECORD) if told is None else _warming(told, new_id)
    places, blanks = (np.concatenate(both) for both in zip(*later, strict=True))
    tails, done = BlankTails(logs), 0
    header = np.zeros(1, HEADER)
    header[0] = (MAGIC, OPS_VERSION, RECORD.itemsize, len(warming) + nops, len(files), threads.used)
    direct, refused = DirectIO(trace.manifest.files), 0
    with writing(path) as out:
        out.write(header.tobytes())
        out.write(warming.tobytes())
        for part in trace.parts(*_COLUMNS):
            part |= names.put_right(part)
            chosen = np.flatnonzero(_replayed(part, new_id))
            records = _records(part, chosen, new_id)
            records["flags"][~direct.asked(part)[chosen]] &= ~int(Flag.DIRECT) & 0xFFFF
            refused += int(np.count_nonzero(direct.refused(part)[chosen]))
            tid = _joined(part["tid"][chosen], joined)
            records["thread"] = numbers(tid)
            records["flags"][np.isin(tid, list(joined.values()))] |= PAUSES
            place, blank = tails.add(part, chosen)
            records["blank"][place[place >= done] - done] = blank[place >= done]
            mine = (places >= done) & (places < done + len(chosen))
            records["blank"][places[mine] - done] = blanks[mine]
            out.write(records.tobytes())
            done += len(chosen)
    # Of a stretch what was used before it warms the caches, and may be all that its first reads would tell.
    held = None if told is None or (warmed and not len(told)) else int(told.size.sum())
    return OpsInfo(
        path, len(warming) + nops, threads.used, files, trace.manifest.events - nops, refused, held
    )


def _warming(told: CachedRanges, new_id: npt.NDArray[np.int32]) -> npt.NDArray[np.void]:
    records = np.zeros(len(told), RECORD)
    records["op"], records["file"], records["file2"] = Op.WARM, new_id[told.file], -1
    records["offset"], records["size"] = told.offset, told.size
    records["arc"] = np.minimum(told.arc // _MIB + 1, np.iinfo(np.uint32).max)
    return records


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


def read_header(path: Path) -> npt.NDArray[np.void]:
    """Return the header (one element) of an ops file; raises InputError if it is not one, or was cut."""
    with path.open("rb") as file:
        data = file.read(HEADER.itemsize)
    if len(data) < HEADER.itemsize:
        raise InputError(f"{path} is not an ops file: it is shorter than a header")
    header: npt.NDArray[np.void] = np.frombuffer(data, HEADER, 1)
    if (
        data[:8] != MAGIC
        or header["version"][0] != OPS_VERSION
        or header["record_size"][0] != RECORD.itemsize
    ):
        raise InputError(f"{path} is not an ops file of version {OPS_VERSION}")
    if path.stat().st_size != HEADER.itemsize + int(header["nops"][0]) * RECORD.itemsize:
        raise InputError(f"{path} is truncated")
    return header


def ops_parts(path: Path) -> Iterator[npt.NDArray[np.void]]:
    """Give the records of an ops file, a million at a time; the caller may change them. Raises InputError."""
    read_header(path)
    with path.open("rb") as file:
        file.seek(HEADER.itemsize)
        while len(part := np.fromfile(file, RECORD, _CHUNK)):
            yield part


def read_ops(path: Path) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return header and all records of an ops file; raises InputError if it is not one."""
    header = read_header(path)
    return header, np.fromfile(path, RECORD, offset=HEADER.itemsize)


def _joined(tid: Ints, copiers: Mapping[int, int]) -> Ints:
    """Return the threads with those that write what others read put into these."""
    found = tid.copy()
    for writer, reader in copiers.items():
        found[tid == writer] = reader
    return found


def _replayed(columns: Columns, new_id: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    op = columns["op"]
    with_role = (new_id[columns["file"]] >= 0) | (op == Op.SYNC)
    moves = (op == Op.READ) | (op == Op.WRITE) | (op == Op.COPY)
    keep: npt.NDArray[np.bool_] = with_role & ~(moves & (columns["size"] == 0))
    return keep


def _records(columns: Columns, rows: Ints, new_id: npt.NDArray[np.int32]) -> npt.NDArray[np.void]:
    records = np.zeros(len(rows), RECORD)
    for name in ("t", "dur", "offset", "size", "op", "via", "flags", "since_sync", "waited"):
        records[name] = columns[name][rows]
    records["flags"] &= ~int(Flag.POSITIONED) & 0xFFFF  # to the engine an offset is an offset
    for name in ("file", "file2"):
        records[name] = new_id[columns[name][rows]]
    records["op"][(records["op"] == Op.COPY) & (records["file2"] < 0)] = Op.WRITE
    return records


class _Names:
    """Which calls took a file's last name away: others leave it where it is, under another name.

    A program that links a file's second name and then unlinks the first, as PostgreSQL does with segments of
    its log up to version 14, goes on with that file.
    """

    def __init__(self, trace: Trace) -> None:
        # By file; the last is what -1 indexes.
        self._deleted = np.array([*(file.deleted for file in trace.manifest.files), False])
        self._last = np.full(len(self._deleted), -1, np.int64)  # the row of the last that took a name away
        self._rows = self._put = 0

    def add(self, columns: Columns) -> None:
        """Take the next part."""
        rows, file = self._taken(columns)
        np.maximum.at(self._last, file, rows + self._rows)
        self._rows += len(columns["op"])

    def put_right(self, columns: Columns) -> Columns:
        """Return what to take instead of the next part's ``op`` and ``file2``, once all parts were added."""
        rows, file = self._taken(columns)
        stays = rows[~self._deleted[file] | (self._last[file] != rows + self._put)]
        self._put += len(columns["op"])
        op, file2 = columns["op"].copy(), columns["file2"].copy()
        op[stays], file2[stays] = Op.RENAME, -1
        return {"op": op, "file2": file2}

    @staticmethod
    def _taken(columns: Columns) -> tuple[Ints, Ints]:
        """Return the rows that took a name away, and the files that lost it."""
        unlinks = columns["op"] == Op.UNLINK
        rows = np.flatnonzero(unlinks | ((columns["op"] == Op.RENAME) & (columns["file2"] >= 0)))
        return rows, np.where(unlinks[rows], columns["file"][rows], columns["file2"][rows])


class BlankTails:
    """How many bytes at the end of a log's writes are likely to be zeros, told part by part of a trace.

    A database appends to its log in whole pages, and each commit writes the last one again until it is full;
    what is not used of it yet is zeros, which compress to nothing. The trace shows that: a write begins where
    the last page of the one before began. A page that was written n times before a write went on beyond it is
    taken to have been filled evenly: at the i-th time, i of n + 1 parts. ``logs`` says of each file whether
    it is a log.
    """

    def __init__(self, logs: npt.NDArray[np.bool_]) -> None:
        self._logs = logs
        self._rows = 0
        # Of each log's last series of writes, which the next part may go on with.
        self._open: Columns = {name: np.empty(0, np.int64) for name in ("file", "begin", "end", "place")}

    def add(self, columns: Columns, rows: Ints) -> tuple[Ints, Ints]:
        """Take the next part's ``rows``; return places, counted over the rows of all parts, and bytes.

        Writes are decided once it is known how their log goes on: those that never are have none.
        """
        mine = rows[(columns["op"][rows] == Op.WRITE) & self._logs[columns["file"][rows]]]
        begin = columns["offset"][mine]
        new = {
            "file": columns["file"][mine],
            "begin": begin,
            "end": begin + columns["size"][mine],
            "place": np.searchsorted(rows, mine) + self._rows,
        }
        self._rows += len(rows)
        known = {name: np.concatenate([self._open[name], new[name]]) for name in new}
        order = np.argsort(known["file"], kind="stable")
        known = {name: values[order] for name, values in known.items()}
        file, begin, end = known["file"], known["begin"], known["end"]
        if not len(file):
            return file, file
        # The next write of the file begins within this one: from there on it is the page written again.
        again = (file[1:] == file[:-1]) & (begin[1:] >= begin[:-1])
        again &= (begin[1:] < end[:-1]) & (end[:-1] - begin[1:] <= _LARGEST_PAGE)
        onward = np.r_[again & (end[1:] > end[:-1]), False]
        still = np.r_[again & (end[1:] == end[:-1]), False]
        # A series of n writes ended at the same place; it counts if the file went on after the last of them.
        last = np.flatnonzero(~still)
        n = np.diff(last, prepend=-1)
        n, last = np.repeat(n, n), np.repeat(last, n)
        writes = np.arange(len(n))
        page = end - np.r_[begin[1:], 0]
        blank = np.where(onward[last], page * (last - writes + 1) // (n + 1), 0)
        of_file_last = np.r_[file[1:] != file[:-1], True]
        undecided = of_file_last[last]
        self._open = {name: values[undecided] for name, values in known.items()}
        return known["place"][~undecided], blank[~undecided]


class Threads:
    """Numbers from 0 for the threads of a trace, told part by part.

    A number is used again for a thread whose first event starts after the last event of the former user of
    the number has ended. ``used``: how many there are, once they were asked for.
    """

    def __init__(self) -> None:
        self.used = 0
        self._seen: dict[int, tuple[int, int]] = {}  # thread → start of its first event, latest end; in order

    def add(self, tid: npt.NDArray[np.int32], t: npt.NDArray[np.int64], dur: npt.NDArray[np.int64]) -> None:
        """Take the next events, sorted by ``t``."""
        tids = np.unique(tid)
        inverse = np.searchsorted(tids, tid)
        first = np.empty(len(tids), np.int64)
        first[inverse[::-1]] = np.arange(len(tid))[::-1]  # of a thread's several the first, as it comes last
        ends = np.zeros(len(tids), np.int64)
        np.maximum.at(ends, inverse, t + np.minimum(dur, np.iinfo(np.int64).max - t))
        for index in np.argsort(first).tolist():
            one, end = int(tids[index]), int(ends[index])
            start, before = self._seen.get(one, (int(t[first[index]]), 0))
            self._seen[one] = start, max(before, end)

    def numbers(self) -> Callable[[npt.NDArray[np.int32]], npt.NDArray[np.uint16]]:
        """Return what gives the numbers of threads."""
        number: dict[int, int] = {}
        busy: list[tuple[int, int]] = []  # (end, number) of the threads under way
        free: list[int] = []
        for one, (start, end) in self._seen.items():
            while busy and busy[0][0] < start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                mine = heapq.heappop(free)
            else:
                mine, self.used = self.used, self.used + 1
            number[one] = mine
            heapq.heappush(busy, (end, mine))
        tids = np.array(sorted(number), np.int32)
        numbers = np.array([number[one] for one in tids.tolist()], np.int64).astype(np.uint16)
        return lambda tid: numbers[np.searchsorted(tids, tid)]
