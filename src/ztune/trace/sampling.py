"""Takes one address region in so many of a trace's data, and all of its logs.

Sampling by address (SHARDS, FAST '15; Miniature Simulations, ATC '17): all that is ever done to a region is
in the sample or none of it, and what a cache of a part of the size does with it is what the whole cache does
with all. What is known to go wrong is that few regions get much of the work, and are in the sample or not. So
the regions of a role are put in the order of how often they are used, and of each N that follow each other
one is taken, by a hash: each sample has its part of those used often and of those never used. Figures need no
correction by how many references a sample got then, as SHARDS has one.

The regions of a file that are in the sample lie side by side in a file of that part of its size: indirect
blocks are then as full as they are in truth, and a scan goes on from one region of the sample to the next.
What is not sampled: logs, whose every write and sync counts; and the smallest files, of which a few blocks
get most of the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.files import writing
from ztune.onhost.words import ROLES
from ztune.trace import regions as recording
from ztune.trace.ops import HEADER, OpsFile, read_ops
from ztune.trace.schema import Flag, Op
from ztune.units import format_size

VERSION = 2  # part of the file names of samples
REGION = recording.REGION
"""Bytes of a region at least; it is as large as the largest record of a study."""
WHOLE_BYTES = recording.WHOLE_BYTES
_CHUNK = 1 << 20  # operations at a time
_SYNCS = (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)
_MOVED = recording.MOVED
_LOG_WRITES = recording.LOG_WRITES
_LOG_IN_ORDER = recording.LOG_IN_ORDER
_LOG_SYNCED = recording.LOG_SYNCED

Ops: TypeAlias = "npt.NDArray[np.void]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class Rate:
    """One region in ``of`` is taken. ``part``: which, from 0; the parts of a rate have none in common."""

    of: int
    part: int = 0
    region: int = REGION

    def __str__(self) -> str:
        return f"1/{self.of}"


def parse_rate(text: str) -> int:
    """Return N of ``1/N``. Raises InputError."""
    one, slash, many = text.strip().partition("/")
    if one.strip() != "1" or not slash or not many.strip().isdecimal() or not 1 <= int(many) <= 1 << 16:
        raise InputError(f'--sample: "{text}" is no rate; write 1/N, such as 1/8, or 1/1 for all')
    return int(many)


def sample(ops: Path, files: Sequence[OpsFile], rate: Rate, target: Path) -> tuple[OpsFile, ...]:
    """Write the operations of the sample to ``target``, and return its files, with the sizes that they have.

    Raises InputError where a role with reads or writes has none left, and if the disk is full.
    """
    _, records = read_ops(ops)
    ends = _ends(records, files)
    kept = whole(records, files, ends)
    maps = _maps(records, files, ends, kept, rate)
    before, after = np.zeros(len(files), np.int64), np.zeros(len(files), np.int64)
    header = np.zeros(1, HEADER)
    header[0] = read_ops(ops)[0][0]
    total = 0
    with writing(target) as out:
        out.write(header.tobytes())
        for start in range(0, len(records), _CHUNK):
            part = records[start : start + _CHUNK].copy()
            moved = np.isin(part["op"], _MOVED) & (part["file"] >= 0)
            before += np.bincount(part["file"][moved], minlength=len(files))
            keep = np.ones(len(part), bool)
            for number in np.unique(part["file"]).tolist():
                if number in maps:
                    rows = np.flatnonzero(part["file"] == number)
                    keep[rows] = _mapped(part, rows, maps[number])
            part = part[keep]
            moved = np.isin(part["op"], _MOVED) & (part["file"] >= 0)
            after += np.bincount(part["file"][moved], minlength=len(files))
            out.write(part.tobytes())
            total += len(part)
        _check_roles([f for f in files if f.id in maps], before, after, rate)
        header["nops"] = total
        out.seek(0)
        out.write(header.tobytes())
    return tuple(_sampled(file, maps.get(file.id)) for file in files)


def _sampled(file: OpsFile, regions: RegionMap | None) -> OpsFile:
    if regions is None:
        return file
    size, end = regions.size(file.size), regions.size(file.size_end)
    return replace(file, size=size, size_end=end, sampled=True, whole=max(file.size, file.size_end))


def _maps(
    records: Ops, files: Sequence[OpsFile], ends: Sequence[int], kept: set[int], rate: Rate
) -> dict[int, RegionMap]:
    """Return what of each file that is not whole is taken, by its number."""
    maps: dict[int, RegionMap] = {}
    for role in sorted({f.role for f in files}):
        mine = [f for f in files if f.role == role and f.id not in kept]
        counts = [max(ends[f.id], f.size, f.size_end) // rate.region + 1 for f in mine]
        if not mine:
            continue
        first = np.concatenate([[0], np.cumsum(counts)])
        start = np.full(len(files) + 1, -1, np.int64)
        start[[f.id for f in mine]] = first[:-1]
        rows = records[np.isin(records["op"], _MOVED) & (start[records["file"]] >= 0)]
        region = start[rows["file"]] + np.maximum(rows["offset"], 0) // rate.region
        used = np.bincount(region, minlength=int(first[-1]))
        chance = _hash(np.arange(first[-1], dtype=np.uint64), ROLES.index(role))
        taken = _taken_of(_recorded(mine, counts), used, chance, rate)
        for file, begin, end in zip(mine, first[:-1].tolist(), first[1:].tolist(), strict=True):
            maps[file.id] = RegionMap(taken[begin:end], rate.region)
    return maps


def _recorded(files: Sequence[OpsFile], counts: Sequence[int]) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which regions of ``files``, so many of each, were recorded, and that it is one in how many."""
    parts = [
        recording.taken(file.ino, np.arange(count, dtype=np.uint64), max(file.recorded, 1))
        for file, count in zip(files, counts, strict=True)
    ]
    return np.concatenate(parts), max(files[0].recorded, 1)


def _taken_of(
    recorded: tuple[npt.NDArray[np.bool_], int], used: Ints, chance: npt.NDArray[np.uint64], rate: Rate
) -> npt.NDArray[np.bool_]:
    """Return which of the ``recorded`` regions are taken."""
    there, of = recorded
    found = np.zeros(len(used), bool)
    found[there] = _taken(used[there], chance[there], replace(rate, of=rate.of // of))
    return found


def _taken(used: Ints, chance: npt.NDArray[np.uint64], rate: Rate) -> npt.NDArray[np.bool_]:
    """Return which regions are taken; ``used``: how often each is."""
    order = np.lexsort((chance, -used))
    group = np.empty(len(used), np.int64)
    group[order] = np.arange(len(used)) // rate.of
    # Within each group of regions used alike chance decides, and no region is in two parts.
    order = np.lexsort((chance * np.uint64(0x9E3779B97F4A7C15), group))
    place = np.empty(len(used), np.int64)
    place[order] = np.arange(len(used)) % rate.of
    taken: npt.NDArray[np.bool_] = place == rate.part
    return taken


class RegionMap:
    """Where the regions of a file that are in a sample lie in the file of the sample."""

    def __init__(self, taken: npt.NDArray[np.bool_], region: int) -> None:
        """``taken``: of each region of ``region`` bytes whether it is in the sample."""
        self.region, self.taken = region, np.append(taken, False)
        self._rank = np.cumsum(self.taken) - self.taken

    def places(self, offsets: Ints) -> Ints:
        """Return where what is at ``offsets`` is in the sample; of what is not, where it would follow."""
        at = np.minimum(offsets // self.region, len(self.taken) - 1)
        within = np.where(self.taken[at], offsets - at * self.region, 0)
        found: Ints = self._rank[at] * self.region + within
        return found

    def size(self, size: int) -> int:
        """Return how long a file of ``size`` bytes is in the sample."""
        return int(self.places(np.array([max(size, 0)], np.int64))[0])


def _hash(number: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Return hashes of numbers: the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = (number + (np.uint64(seed + 1) << np.uint64(40))) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


def _mapped(part: Ops, rows: Ints, regions: RegionMap) -> npt.NDArray[np.bool_]:
    """Put the operations in ``rows`` to where they are in the sample; return which are in it."""
    op, offset, size = part["op"][rows], part["offset"][rows], part["size"][rows]
    ranged = (np.isin(op, _MOVED) | (op == Op.FALLOCATE)) & (offset >= 0) & (size > 0)
    start = regions.places(np.where(ranged, offset, 0))
    end = regions.places(np.where(ranged, offset + size, 0))
    part["offset"][rows] = np.where(ranged, start, offset)
    cut = op == Op.TRUNCATE
    length = np.where(cut, regions.places(np.where(cut, np.maximum(size, 0), 0)), size)
    part["size"][rows] = np.where(ranged, end - start, length)
    keep: npt.NDArray[np.bool_] = ~ranged | (end > start)
    return keep


def _ends(records: Ops, files: Sequence[OpsFile]) -> list[int]:
    """Return where the last operation on each file ends, bytes."""
    ends = np.zeros(len(files), np.int64)
    known = (records["file"] >= 0) & (records["size"] > 0)
    np.maximum.at(
        ends, records["file"][known], np.maximum(records["offset"][known], 0) + records["size"][known]
    )
    found: list[int] = ends.tolist()
    return found


def whole(records: Ops, files: Sequence[OpsFile], ends: Sequence[int]) -> set[int]:
    """Return the numbers of the files that a sample has whole: logs, and the smallest. Of a recording by
    sample, those that it has whole."""
    if any(file.recorded for file in files):
        return {file.id for file in files if not file.recorded}
    kept = {file.id for file in files if file.role == "wal"} | _logs(records, len(files))
    room = WHOLE_BYTES
    sizes = {f.id: max(f.size, f.size_end, ends[f.id]) for f in files if f.id not in kept}
    for number, size in sorted(sizes.items(), key=lambda one: one[1]):
        room -= size
        if room < 0:
            break
        kept.add(number)
    return kept


def _logs(records: Ops, nfiles: int) -> set[int]:
    """Return the files that are written in order and synced again and again, whatever their role."""
    of_file = records["file"] >= 0
    writes = records[of_file & (records["op"] == Op.WRITE)]
    synced = np.bincount(records["file"][of_file & np.isin(records["op"], _SYNCS)], minlength=nfiles)
    synced += np.bincount(writes["file"][(writes["flags"] & (Flag.SYNC | Flag.DSYNC)) != 0], minlength=nfiles)
    order = np.argsort(writes["file"], kind="stable")
    writes = writes[order]
    begin, end = writes["offset"], writes["offset"] + writes["size"]
    same = writes["file"][1:] == writes["file"][:-1]
    # A log goes on where the write before ended, or writes its last page again.
    onward = same & (begin[1:] <= end[:-1]) & (end[1:] >= begin[:-1])
    counts = np.bincount(writes["file"], minlength=nfiles)
    in_order = np.bincount(writes["file"][1:][onward], minlength=nfiles)
    is_log = (counts >= _LOG_WRITES) & (in_order >= _LOG_IN_ORDER * (counts - 1))
    return set(np.flatnonzero(is_log & (synced >= _LOG_SYNCED * counts)).tolist())


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


@dataclass(frozen=True)
class Work:
    """What decides about a sample. ``events``: operations on what would be sampled, ``data`` its bytes,
    ``touched`` those of regions that any operation touches. ``regions``: that the role has which is used, and
    has the fewest."""

    events: int
    data: int
    touched: int
    regions: int


def work(ops: Path, files: Sequence[OpsFile]) -> Work:
    """Return what of a trace would be sampled. Raises InputError if ``ops`` is damaged."""
    _, records = read_ops(ops)
    ends = _ends(records, files)
    kept = whole(records, files, ends)
    able = np.array([f.id not in kept for f in files] + [False])
    rows = records[able[records["file"]] & np.isin(records["op"], _MOVED)]
    number = rows["file"].astype(np.int64) << 40
    first = np.maximum(rows["offset"], 0) // REGION
    last = np.maximum(rows["offset"] + rows["size"] - 1, 0) // REGION
    keys = np.unique(np.concatenate([number + first, number + last]))
    long = int(np.maximum(last - first - 1, 0).sum())
    data = sum(max(f.size, f.size_end) for f in files if able[f.id])
    touched = min((len(keys) + long) * REGION, max(data, 1))
    regions: dict[str, int] = {}
    for number in np.unique(rows["file"]).tolist():
        regions.setdefault(files[number].role, 0)
    for f in files:
        if able[f.id] and f.role in regions:
            regions[f.role] += max(f.size, f.size_end, ends[f.id]) // REGION // max(f.recorded, 1) + 1
    return Work(len(rows), data, touched, min(regions.values(), default=1))


EVENTS = 150_000
"""Operations of a sample: about 15 s of an engine, which does some 14,000 a second."""
LEAST_REGIONS = 4
"""Of each role a sample has so many at least."""
LOADED = 4 << 30
"""Bytes that a replay loads at most, about: where calls lie apart, that is a record of 1 MiB for each."""


def default_rate(of: Work, least_arc: int, floor: int) -> int:
    """Return how many regions one stands for by default: a power of two, 1 for what costs little.

    So many that neither the operations nor what is loaded for them takes an engine long, and not more than
    the study's smallest ARC allows: a part of it must be ``floor`` bytes, the least that OpenZFS takes.
    """
    wanted = max(of.events / EVENTS, of.touched / LOADED, 1.0)
    allowed = max(1, min(least_arc // floor, of.regions // LEAST_REGIONS))
    return min(1 << math.ceil(math.log2(wanted)), 1 << int(math.log2(allowed)))


def check_rate(of: int, least_arc: int, floor: int) -> None:
    """Raise InputError where a part of the ARC would be smaller than OpenZFS takes."""
    if least_arc // of < floor:
        most = max(1, least_arc // floor)
        raise InputError(
            f"--sample 1/{of} leaves {format_size(least_arc // of)} of the smallest ARC of the study "
            f"({format_size(least_arc)}), and OpenZFS takes no less than {format_size(floor)}; "
            f"1/{most} is the least"
        )


def touched_bytes(ops: Path, files: Sequence[OpsFile], recordsizes: dict[int, int]) -> int:
    """Return about how many bytes of records the operations touch; ``recordsizes``: by a file's number."""
    _, records = read_ops(ops)
    size = np.zeros(len(files) + 1, np.int64)
    for number, record in recordsizes.items():
        size[number] = record
    rows = records[np.isin(records["op"], _MOVED) & (size[records["file"]] > 0)]
    each = size[rows["file"]]
    first, last = (
        np.maximum(rows["offset"], 0) // each,
        np.maximum(rows["offset"] + rows["size"] - 1, 0) // each,
    )
    keys = np.unique((rows["file"].astype(np.int64) << 42) + first)
    more: Any = ((last - first) * each).sum()
    return int(size[keys >> 42].sum() + more)
