"""Takes one address region in so many of a trace's data, and all of its logs.

Sampling by address (SHARDS, FAST '15; Miniature Simulations, ATC '17): all that is ever done to a region is
in the sample or none of it, and what a cache of a part of the size does with it is what the whole cache does
with all. What is known to go wrong is that few regions get much of the work, and are in the sample or not. So
the regions of a role are put in the order of how often they are used, and of each N that follow each other
one is taken, by a hash: each sample has its part of those used often and of those never used. Figures need no
correction by how many references a sample got then, as SHARDS has one. And the few regions that stand out,
such as a doublewrite buffer or the end of a table that is appended to, are certain: they are in every sample,
and stand for themselves alone.

The regions of a file that are in the sample lie side by side in a file of that part of its size: indirect
blocks are then as full as they are in truth, and a scan goes on from one region of the sample to the next.
What is not sampled: logs, whose every write and sync counts; and the smallest files, of which a few blocks
get most of the work. A role that would have too few regions in the sample has more of them, each of which
stands for fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.files import writing
from ztune.onhost.words import ROLES
from ztune.trace import regions as recording
from ztune.trace.inputs import OpsFile
from ztune.trace.ops import RECORD, ops_parts, read_header
from ztune.trace.rate import REGION, Rate, Work, most_for
from ztune.trace.schema import Flag, Op
from ztune.units import format_size

VERSION = 6  # part of the file names of samples
_SYNCS = (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)
_MOVED = recording.MOVED
_CALLS = (Op.READ, Op.WRITE, Op.COPY)

CERTAIN = 64
"""Regions that are in every sample, at most."""
STANDS_OUT = 16
"""Times as much work as a region has on average that any is done to: so much makes one certain."""
_CALLS_OF_CERTAIN = 16  # at least
_RARER = 2  # certain ones are at most one for so many that a sample has

Ops: TypeAlias = "npt.NDArray[np.void]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class SampledOps:
    """What a sample's operations are on. ``files``: with the sizes that they have in it; ``calls``: how many
    reads and writes each thread has, in the whole, of what chance took a part of."""

    files: tuple[OpsFile, ...]
    calls: tuple[tuple[int, int], ...]


def sample(ops: Path, files: Sequence[OpsFile], rate: Rate, target: Path) -> SampledOps:
    """Write the operations of the sample to ``target``, and return what they are on.

    Raises InputError where a role with reads or writes has none left, and if the disk is full.
    """
    regions = _Regions(files, able(ops, files), rate.region)
    regions.take(_used(ops, regions), rate)
    before, after = np.zeros(len(files), np.int64), np.zeros(len(files), np.int64)
    header = read_header(ops).copy()
    calls = np.zeros((2, int(header["nthreads"][0])), np.int64)
    total = 0
    with writing(target) as out:
        out.write(header.tobytes())
        for part in ops_parts(ops):
            before += np.bincount(part["file"][regions.moved(part)], minlength=len(files))
            regions.count_calls(part, calls)
            part = part[_mapped(part, regions)]
            after += np.bincount(part["file"][regions.moved(part)], minlength=len(files))
            out.write(part.tobytes())
            total += len(part)
        _check_roles([f for f in files if f.id in regions.files], before, after, rate)
        header["nops"] = total
        out.seek(0)
        out.write(header.tobytes())
    mine = tuple(_sampled(file, regions) if regions.rate_of(file) > 1 else file for file in files)
    return SampledOps(mine, tuple((reads, writes) for reads, writes in calls.T.tolist()))


def _sampled(file: OpsFile, regions: _Regions) -> OpsFile:
    sizes = np.maximum([file.size, file.size_end], 0)
    size, end = regions.places(np.full(2, file.id), sizes).tolist()
    return replace(
        file, size=size, size_end=end, sampled=True, of=regions.rate_of(file),
        certain=regions.certain_of(file.id), whole=max(file.size, file.size_end), whole_start=file.size,
    )  # fmt: skip


@dataclass(frozen=True)
class _Used:
    """How much is done to each region. ``calls``: of all kinds; ``work``: reads, writes and bytes written,
    without what warms the caches."""

    calls: npt.NDArray[np.int32]
    work: npt.NDArray[np.float32]

    @classmethod
    def nothing(cls, count: int) -> _Used:
        """Return that nothing is done yet to ``count`` regions."""
        return cls(np.zeros(count, np.int32), np.zeros((3, count), np.float32))

    def add(self, part: Ops, regions: _Regions) -> None:
        """Add the next operations. A call counts in each of the regions that it is in."""
        rows = part[regions.moved(part)]
        begin = np.maximum(rows["offset"], 0)
        end = begin + np.maximum(rows["size"], 1)
        first = begin // regions.region
        several = (end - 1) // regions.region - first + 1
        row = np.repeat(np.arange(len(rows)), several)
        at = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(several) - several, several)
        size = np.minimum(end[row], (at + 1) * regions.region) - np.maximum(begin[row], at * regions.region)
        number = regions.of(rows["file"][row], at * regions.region)
        op = rows["op"][row]
        reads, writes = op == Op.READ, (op == Op.WRITE) | (op == Op.COPY)
        _add(self.calls, number, np.ones(len(number)))
        for kind, mine, much in ((0, reads, 1), (1, writes, 1), (2, writes, size)):
            _add(self.work[kind], number[mine], np.broadcast_to(much, len(number))[mine])

    def certain(self, of: int) -> npt.NDArray[np.bool_]:
        """Return which regions are to be in every sample of 1/``of``."""
        there = self.calls > 0
        share = np.zeros(len(self.calls), np.float32)
        for one in self.work:
            if total := float(one.sum(dtype=np.float64)):
                share = np.maximum(share, one / np.float32(total))
        out = (share >= STANDS_OUT / max(int(there.sum()), 1)) & (self.calls >= _CALLS_OF_CERTAIN)
        most = min(CERTAIN, len(there) // (of * _RARER))
        found = np.zeros(len(there), bool)
        found[np.argsort(-share, kind="stable")[:most]] = True
        both: npt.NDArray[np.bool_] = found & out
        return both


def _add(to: npt.NDArray[Any], at: Ints, much: npt.NDArray[Any]) -> None:
    found, where = np.unique(at, return_inverse=True)
    to[found] += np.bincount(where, much, minlength=len(found)).astype(to.dtype)


def _used(ops: Path, regions: _Regions) -> _Used:
    """Return how much each region is used."""
    used = _Used.nothing(regions.count)
    for part in ops_parts(ops):
        used.add(part, regions)
    return used


class _Regions:
    """The regions of the files that a sample may have in part, numbered on from file to file, by role.

    ``files``: number of a file → its regions, the first and the one behind the last; ``roles``: likewise.
    """

    def __init__(self, files: Sequence[OpsFile], ends: Mapping[int, int], region: int) -> None:
        """``ends``: number of a file → bytes that it has at most."""
        self.region, self.count = region, 0
        self.files: dict[int, tuple[int, int]] = {}
        self.roles: dict[str, tuple[int, int]] = {}
        self._first = np.full(len(files) + 1, -1, np.int64)  # the last is of operations without a file
        for role in sorted({f.role for f in files if f.id in ends}):
            begin = self.count
            for f in files:
                if f.role == role and f.id in ends:
                    self._first[f.id] = self.count
                    self.files[f.id] = self.count, self.count + ends[f.id] // region + 1
                    self.count = self.files[f.id][1]
            self.roles[role] = begin, self.count
        self._there, self._recorded = np.ones(self.count, bool), 1
        for f in files:
            if f.id in self.files and f.recorded:
                begin, end = self.files[f.id]
                number = np.arange(end - begin, dtype=np.uint64)
                self._there[begin:end] = recording.taken(f.ino, number, f.recorded)
                self._recorded = f.recorded
        self._rates: dict[str, int] = {}
        self._by_chance = np.zeros(len(self._first), bool)  # by file: whether the sample has a part
        self._stand_out = np.empty(0, np.int64)  # those that are certain
        self._taken = np.zeros(self.count, bool)
        self._certain = np.zeros(self.count, bool)
        self._rank = np.zeros(self.count, np.int32)  # taken ones before it

    def take(self, used: _Used, rate: Rate) -> None:
        """Decide which of the regions that were recorded are in the sample; ``used``: how much each is."""
        rate = replace(rate, of=rate.of // self._recorded)
        # Of those that were not recorded it is not known whether they stand out.
        if self._recorded == 1 and rate.of > 1:
            self._certain = used.certain(rate.of)
        for role, (begin, end) in self.roles.items():
            chance = _hash(np.arange(end - begin, dtype=np.uint64), ROLES.index(role))
            there = self._there[begin:end] & ~self._certain[begin:end]
            mine = min(rate.of, most_for(int(there.sum())))
            self._rates[role] = mine * self._recorded
            if self._rates[role] > 1:
                self._by_chance |= (self._first >= begin) & (self._first < end)
            self._taken[begin:end][there] = _taken(
                used.calls[begin:end][there], chance[there], Rate(mine, rate.part % mine)
            )
        self._stand_out = np.flatnonzero(self._certain)
        self._taken |= self._certain
        np.cumsum(self._taken, out=self._rank)
        self._rank -= self._taken

    def rate_of(self, file: OpsFile) -> int:
        """Return one region in how many of ``file`` is in the sample; 1: all."""
        return self._rates[file.role] if file.id in self.files else 1

    def count_calls(self, part: Ops, calls: Ints) -> None:
        """Add to ``calls``, reads and writes by thread, those of ``part`` that chance takes a part of: one of
        several regions counts in each."""
        rows = part[np.isin(part["op"], _CALLS) & self._by_chance[part["file"]]]
        first = self.of(rows["file"], rows["offset"])
        end = self.of(rows["file"], rows["offset"] + np.maximum(rows["size"], 1) - 1) + 1
        certain = np.searchsorted(self._stand_out, end) - np.searchsorted(self._stand_out, first)
        each = (end - first - certain) * self._recorded
        for kind, mine in enumerate((rows["op"] == Op.READ, rows["op"] != Op.READ)):
            np.add.at(calls[kind], rows["thread"][mine], each[mine])

    def certain_of(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return offset and bytes of what of a file every sample has, by where it is in the sample's file."""
        begin, end = self.files[number]
        mine = np.flatnonzero(self._certain[begin:end])
        places = (self._rank[begin:end][mine] - self._rank[begin]).astype(np.int64) * self.region
        return tuple((at, self.region) for at in places.tolist())

    def there(self, role: str) -> int:
        """Return how many of a role were recorded."""
        begin, end = self.roles[role]
        return int(self._there[begin:end].sum())

    def has(self, number: Ints) -> npt.NDArray[np.bool_]:
        """Return which of the files with these numbers, or -1, are among them."""
        found: npt.NDArray[np.bool_] = self._first[number] >= 0
        return found

    def moved(self, part: Ops) -> npt.NDArray[np.bool_]:
        """Return which operations move bytes of these files."""
        found: npt.NDArray[np.bool_] = np.isin(part["op"], _MOVED) & self.has(part["file"])
        return found

    def of(self, number: Ints, offset: Ints) -> Ints:
        """Return in which region what is at ``offset`` of a file is."""
        found: Ints = self._first[number] + np.maximum(offset, 0) // self.region
        return found

    def places(self, number: Ints, offset: Ints) -> Ints:
        """Return where what is at ``offset`` of a file is in the sample, in which the regions of the file lie
        side by side; of what is not in it, where it would follow."""
        at = self.of(number, offset)
        within = np.where(self._taken[at], offset % self.region, 0)
        before: Ints = (self._rank[at] - self._rank[self._first[number]]).astype(np.int64)
        return before * self.region + within


def _taken(used: npt.NDArray[np.int32], chance: npt.NDArray[np.uint64], rate: Rate) -> npt.NDArray[np.bool_]:
    """Return which regions are taken; ``used``: how often each is."""
    # What is never used, nearly all of a large database, need not be told apart by how often that is.
    hot, cold = np.flatnonzero(used), np.flatnonzero(used == 0)
    order = np.concatenate([hot[np.lexsort((chance[hot], -used[hot]))], cold[np.argsort(chance[cold])]])
    # Within each group of regions used alike chance decides, and no region is in two parts.
    whole = len(order) // rate.of * rate.of
    again = chance * np.uint64(0x9E3779B97F4A7C15)
    taken = np.zeros(len(used), bool)
    groups = order[:whole].reshape(-1, rate.of)
    place = np.argpartition(again[groups], rate.part, axis=1)[:, rate.part]
    taken[groups[np.arange(len(groups)), place]] = True
    # Which parts have one of the last few is by chance too: most layouts see the first part alone.
    last = order[whole:]
    if len(last):
        parts = np.argsort(_hash(np.arange(rate.of, dtype=np.uint64), int(chance[last[0]] >> np.uint64(48))))
        turn = int(parts[rate.part])
        if turn < len(last):
            taken[last[np.argsort(again[last])[turn]]] = True
    return taken


def _hash(number: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Return hashes of numbers, others for each ``seed``."""
    with np.errstate(over="ignore"):
        return recording.hashed(number + (np.uint64(seed + 1) << np.uint64(40)))


def _mapped(part: Ops, regions: _Regions) -> npt.NDArray[np.bool_]:
    """Put the operations of ``part`` to where they are in the sample; return which are in it."""
    keep = np.ones(len(part), bool)
    rows = np.flatnonzero(regions.has(part["file"]))
    one = part[rows]
    number, op, offset, size = one["file"], one["op"], one["offset"], one["size"]
    ranged = (np.isin(op, _MOVED) | (op == Op.FALLOCATE)) & (offset >= 0) & (size > 0)
    start = regions.places(number, np.where(ranged, offset, 0))
    end = regions.places(number, np.where(ranged, offset + size, 0))
    part["offset"][rows] = np.where(ranged, start, offset)
    cut = op == Op.TRUNCATE
    length = np.where(cut, regions.places(number, np.where(cut, np.maximum(size, 0), 0)), size)
    part["size"][rows] = np.where(ranged, end - start, length)
    keep[rows] = ~ranged | (end > start)
    return keep


def able(ops: Path, files: Sequence[OpsFile]) -> dict[int, int]:
    """Return which files a sample may have in part: number → bytes that it has at most. Those that it has
    whole are logs, and the smallest; of a recording by sample, those that it has whole. Raises InputError if
    ``ops`` is damaged."""
    ends, logs = np.zeros(len(files), np.int64), _Logs(len(files))
    for part in ops_parts(ops):
        known = part[(part["file"] >= 0) & (part["size"] > 0)]
        np.maximum.at(ends, known["file"], np.maximum(known["offset"], 0) + known["size"])
        logs.add(part)
    sizes = {f.id: max(f.size, f.size_end, int(ends[f.id])) for f in files}
    if any(f.recorded for f in files):
        return {f.id: sizes[f.id] for f in files if f.recorded}
    whole = {file.id for file in files if file.role == "wal"} | logs.found()
    parts = recording.large({number: size for number, size in sizes.items() if number not in whole})
    return {number: size for number, size in sizes.items() if number in parts}


class _Logs:
    """Finds the files that are written in order and synced again and again, whatever their role."""

    def __init__(self, nfiles: int) -> None:
        self._writes, self._in_order, self._syncs = np.zeros((3, nfiles), np.int64)
        self._last = np.empty(0, RECORD)  # write of each file

    def add(self, part: Ops) -> None:
        """Take the next operations."""
        n = len(self._writes)
        part = part[part["file"] >= 0]
        new = part[part["op"] == Op.WRITE]
        synced = new[(new["flags"] & (Flag.SYNC | Flag.DSYNC)) != 0]
        for one in (part[np.isin(part["op"], _SYNCS)], synced):
            self._syncs += np.bincount(one["file"], minlength=n)
        self._writes += np.bincount(new["file"], minlength=n)
        writes = np.concatenate([self._last, new])
        writes = writes[np.argsort(writes["file"], kind="stable")]
        begin, end = writes["offset"], writes["offset"] + writes["size"]
        same = writes["file"][1:] == writes["file"][:-1]
        # A log goes on where the write before ended, or writes its last page again.
        onward = same & (begin[1:] <= end[:-1]) & (end[1:] >= begin[:-1])
        self._in_order += np.bincount(writes["file"][1:][onward], minlength=n)
        self._last = writes[np.append(~same, True)[: len(writes)]]

    def found(self) -> set[int]:
        """Return the numbers of the files."""
        counts = zip(*(each.tolist() for each in (self._writes, self._in_order, self._syncs)), strict=True)
        return {
            number
            for number, (writes, in_order, syncs) in enumerate(counts)
            if recording.Tally(writes=writes, in_order=in_order, syncs=syncs).like_a_log
        }


def _check_roles(files: Sequence[OpsFile], before: Ints, after: Ints, rate: Rate) -> None:
    """Raise InputError where nothing is left of what a role's ``files`` were asked for."""
    for role in sorted({f.role for f in files}):
        mine = [f.id for f in files if f.role == role]
        if before[mine].sum() and not after[mine].sum():
            size = format_size(sum(max(f.size, f.size_end) for f in files if f.role == role))
            raise InputError(
                f"the sample {rate} has nothing of role {role}, of which {before[mine].sum():,} reads and "
                f"writes in {size} were recorded; "
                f"take a larger one, such as --sample 1/{max(1, rate.of // 4)}"
            )


def work(ops: Path, files: Sequence[OpsFile]) -> Work:
    """Return what of a trace would be sampled. Raises InputError if ``ops`` is damaged."""
    ends = able(ops, files)
    regions = _Regions(files, ends, REGION)
    hit = np.zeros(regions.count, bool)
    used = np.zeros(len(files), bool)
    events = long = 0
    for part in ops_parts(ops):
        rows = part[regions.moved(part)]
        first = regions.of(rows["file"], rows["offset"])
        last = regions.of(rows["file"], rows["offset"] + rows["size"] - 1)
        hit[first] = hit[last] = used[rows["file"]] = True
        long += int(np.maximum(last - first - 1, 0).sum())
        events += int(np.count_nonzero(rows["op"] != Op.WARM))
    data = sum(max(f.size, f.size_end) for f in files if f.id in ends)
    touched = min((int(hit.sum()) + long) * REGION, max(data, 1))
    roles = {f.role for f in files if used[f.id]}
    counts = (regions.there(role) for role in regions.roles if role in roles)
    return Work(events, data, touched, max(counts, default=1))


def asked_ahead(ops: Path) -> float:
    """Return to how many of its reads a trace has one that was asked for ahead, as a share."""
    reads = ahead = 0
    for part in ops_parts(ops):
        reads += int(np.count_nonzero(part["op"] == Op.READ))
        ahead += int(np.count_nonzero(part["op"] == Op.READ_AHEAD))
    return min(1.0, ahead / reads) if reads else 0.0


_DISTINCT = 1 << 24
"""Records that are told apart at a time, a gigabyte of numbers; of more, one may count twice."""


def touched_bytes(ops: Path, files: Sequence[OpsFile], recordsizes: dict[int, int]) -> int:
    """Return about how many bytes of records the operations touch, not less; ``recordsizes``: by a file's
    number."""
    size = np.zeros(len(files) + 1, np.int64)
    for number, record in recordsizes.items():
        size[number] = record
    total, keys = 0, np.empty(0, np.int64)
    for part in ops_parts(ops):
        rows = part[np.isin(part["op"], _MOVED) & (size[part["file"]] > 0)]
        each = size[rows["file"]]
        first = np.maximum(rows["offset"], 0) // each
        last = np.maximum(rows["offset"] + rows["size"] - 1, 0) // each
        total += int(((last - first) * each).sum())
        keys = np.union1d(keys, (rows["file"].astype(np.int64) << 42) + first)
        if len(keys) > _DISTINCT:
            total += int(size[keys >> 42].sum())
            keys = keys[:0]
    return total + int(size[keys >> 42].sum())
