"""Counts the events of a trace a part at a time: by NumPy where their order matters, else by Polars.

So a trace of any length takes about the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.trace.figures import NO_ROLE
from ztune.trace.frames import pl
from ztune.trace.manifest import TraceFile
from ztune.trace.pages import READ, WRITTEN, Pages
from ztune.trace.reader import Columns
from ztune.trace.schema import TXG_NS, Flag, Op

_LARGEST = 2.0**62  # bytes in all; so that nothing that is added up is beyond 64 bits
SECOND_NS = 1_000_000_000
_BLOCK = 1 << 16  # events at a time, of which all that is made of them stays in the processor's cache
_NEVER = np.iinfo(np.int64).max

OP, SIZE, N = pl.col("op"), pl.col("size"), pl.col("n")
KINDS = {"read": Op.READ, "write": Op.WRITE}
SYNCS = [int(op) for op in (Op.FSYNC, Op.FDATASYNC, Op.MSYNC)]
_IS_SYNC = np.isin(np.arange(256), SYNCS)
_IS_CUT = np.isin(np.arange(256), (Op.TRUNCATE, Op.CREATE))
_IS_CHANGE = _IS_SYNC | _IS_CUT | np.isin(np.arange(256), (Op.WRITE, Op.COPY, Op.FALLOCATE))
# How a call was made, as one number. From its lowest bit on: the operation; the call, which is 1 where it
# named the offset, and twice ``via``; whether it was open for synchronous writes; which alignments fit.
_CALL, DIRECTLY, _FITS = 4, 7, 8
# Syncs that took about as long: a square root is never less for more, and at 10 ms these lie 0.2 ms apart.
ABOUT = pl.col("dur").cast(pl.Float64).sqrt().cast(pl.Int64)
ROLE_NAMES = (*ROLES, NO_ROLE)
_SYNCHRONOUS = ("sync_writes", "sync_write_bytes")


class _Sum:
    """Rows by ``keys``: their other columns are added up, and of ``most`` the greatest is kept."""

    def __init__(self, *keys: str, most: str = "") -> None:
        self._keys = keys
        self._most = [most] if most else []
        self._frames: list[pl.DataFrame] = []
        self._rows = self._summed = 0

    def add(self, frame: pl.DataFrame) -> None:
        self._frames.append(frame)
        self._rows += len(frame)
        if self._rows > 2 * self._summed + (1 << 16):
            self.total()

    def total(self) -> pl.DataFrame:
        """Return a row for each of the keys there are, sorted by them."""
        grouped = pl.concat(self._frames).group_by(self._keys)
        found = grouped.agg(pl.exclude(*self._keys, *self._most).sum(), *map(pl.max, self._most))
        self._frames = [found.sort(self._keys)]
        self._rows = self._summed = len(found)
        return self._frames[0]


class EventCounts:
    """What is counted of the files ``entries``, part by part of their events.

    What one part leaves to the next is little: where the last call on each file stopped, how large it is, and
    the writes of the last 5 s, since a sync may come yet.
    """

    def __init__(self, entries: Sequence[TraceFile], alignments: Sequence[int]) -> None:
        self._alignments = alignments
        # The last is what -1, no file, indexes.
        self._roles = np.array([ROLE_NAMES.index(entry.role or NO_ROLE) for entry in entries] + [0], np.int64)
        self._size = np.array([entry.size_start for entry in entries], np.int64)
        self._stops = {kind: np.full(len(entries), -1) for kind in KINDS}
        self._waiting: Columns = {name: np.empty(0, np.int64) for name in ("t", "file", "size", "n")}
        self._last_global = np.empty(0, np.int64)
        self._moved = 0.0
        self._others = ThreadPoolExecutor(2)
        self._under_way: dict[str, Future[None]] = {}
        self.pages = Pages([max(entry.size_start, entry.size_end) for entry in entries])
        self.end = 0  # ns
        self.global_syncs = 0
        names = (*_SYNCHRONOUS, "overwritten", *(f"{kind}_sequential" for kind in KINDS))
        self.of_file = {name: np.zeros(len(entries), np.int64) for name in names}
        self.sizes = _Sum("file", "how", "size")
        self.rates = _Sum("second", "role", "op")
        self.syncs = _Sum("file", "about", most="longest")

    def add(self, part: Columns) -> None:
        """Count the events of ``part``, which come after those before. Raises InputError."""
        self._moved += float(part["size"].sum(dtype=np.float64))
        if self._moved > _LARGEST:
            raise InputError("the trace's sizes are larger than any file system allows")
        self.end = int(part["t"][-1]) + 1 if len(part["t"]) else self.end
        everything = part["t"][(part["op"] == Op.SYNC) & (part["file"] < 0)]
        self.global_syncs += len(everything)
        if len(everything):
            part = _rows(part, part["file"] >= 0)
        self._beside(self._count, part)
        globally = np.r_[self._last_global, everything]
        self._last_global = globally[-1:]
        op = part["op"]
        reads = _by_file(part, op == Op.READ, "file", "offset", "size")
        self._continue("read", reads)
        changes = _by_file(part, _IS_CHANGE[op], "t", "op", "flags", "file", "offset", "size")
        writes = changes["op"] == Op.WRITE
        written = _rows({name: changes[name] for name in reads}, writes)
        self._continue("write", written)
        if len(changes["t"]):
            self._overwrite(changes, writes)
        self._sync(changes, writes, globally)
        self._beside(self._note, reads, written)

    def _beside(self, count: Callable[..., None], *parts: Columns) -> None:
        """Have ``count`` run beside what follows, once it is done with the ``parts`` of before."""
        if (before := self._under_way.get(count.__name__)) is not None:
            before.result()
        self._under_way[count.__name__] = self._others.submit(count, *parts)

    def finish(self) -> None:
        """Wait until all is counted."""
        for one in self._under_way.values():
            one.result()
        self._others.shutdown()

    def _note(self, reads: Columns, writes: Columns) -> None:
        self.pages.add(READ, *reads.values())
        self.pages.add(WRITTEN, *writes.values())

    def _count(self, part: Columns) -> None:
        """Count what needs no order: events of a kind and size, and of a second; how long syncs took."""
        how = np.empty(len(part["op"]), np.uint32)
        for begin in range(0, len(how), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            flags, offset = part["flags"][block], part["offset"][block]
            positioned = (flags & int(Flag.POSITIONED)) != 0
            directly = (flags & int(Flag.SYNC | Flag.DSYNC)) != 0
            mine = part["op"][block].astype(np.uint32)
            mine |= (part["via"][block].astype(np.uint32) * 2 + positioned) << _CALL
            mine |= directly.astype(np.uint32) << DIRECTLY
            for bit, to in enumerate(self._alignments, _FITS):
                over = offset & (to - 1) if to & (to - 1) == 0 else offset % to
                mine |= (over == 0).astype(np.uint32) << bit
            how[block] = mine
        named = {name: part[name] for name in ("t", "dur", "op", "file", "size")}
        events = pl.DataFrame({**named, "how": how, "role": self._roles[part["file"]]}).lazy()
        syncs = events.filter(OP.is_in(SYNCS)).group_by("file", about=ABOUT)
        took = pl.col("dur").cast(pl.Float64)
        sizes, rates, about = pl.collect_all(
            [
                events.group_by("file", "how", "size").agg(n=pl.len().cast(pl.Int64)),
                events.filter(OP.is_in([*KINDS.values(), *SYNCS]))
                .group_by("role", "op", second=pl.col("t") // SECOND_NS)
                .agg(n=pl.len().cast(pl.Int64), bytes=SIZE.sum()),
                syncs.agg(n=pl.len().cast(pl.Int64), took=took.sum(), longest=pl.col("dur").max()),
            ],
            engine="streaming",
        )
        self.sizes.add(sizes)
        self.rates.add(rates)
        self.syncs.add(about)

    def _continue(self, kind: str, calls: Columns) -> None:
        """Count the ``calls`` of a kind that start where the last one on the file stopped."""
        file, offset = calls["file"], calls["offset"]
        if not len(file):
            return
        first, last = _ends(file)
        stop = offset + calls["size"]
        before = np.empty_like(stop)
        before[1:] = stop[:-1]
        before[first] = self._stops[kind][file[first]]
        self._stops[kind][file[last]] = stop[last]
        self.of_file[f"{kind}_sequential"] += np.bincount(file[before == offset], minlength=len(self._size))

    def _overwrite(self, changes: Columns, writes: npt.NDArray[np.bool_]) -> None:
        """Count what was written below the size that the file had just then, and keep up with the size.

        That is its size at the start and what writes, copies, allocations and truncations made of it.
        """
        file, op, offset, size = (changes[name] for name in ("file", "op", "offset", "size"))
        grown_to = offset + size
        grown_to[op == Op.CREATE] = 0
        cuts = op == Op.TRUNCATE
        grown_to[cuts] = size[cuts]
        keeps = (op == Op.FALLOCATE) & ((changes["flags"] & int(Flag.KEEP_SIZE | Flag.PUNCH)) != 0)
        grown_to[_IS_SYNC[op] | keeps] = -1
        cut = _IS_CUT[op]
        first, _ = _ends(file)
        mine = file[first]
        resized = np.maximum.reduceat(grown_to, first) > self._size[mine]
        resized |= np.logical_or.reduceat(cut, first)
        overwritten = self.of_file["overwritten"]
        written = np.where(writes, size, 0)
        # Where a file stays as large as it is, all that is written to it is below its size.
        overwritten[mine[~resized]] += np.add.reduceat(written, first)[~resized]
        if not resized.any():
            return
        some = np.repeat(resized, np.diff(np.r_[first, len(file)]))
        changed = mine[resized]
        # In a segment a file only grows. It begins with a cut; the first is the size from before.
        events = pl.DataFrame(
            {
                "file": np.r_[changed, file[some]],
                "begins": np.r_[np.ones(len(changed), bool), cut[some]],
                "grown_to": np.r_[self._size[changed], grown_to[some]],
                "offset": np.r_[np.zeros(len(changed), np.int64), offset[some]],
                "written": np.r_[np.zeros(len(changed), np.int64), written[some]],
            }
        )
        found = (
            events.lazy()
            .sort("file", maintain_order=True)
            .with_columns(large=pl.col("grown_to").cum_max().over(pl.col("begins").cum_sum()))
            # What begins a segment writes nothing, so it does not matter what comes before it.
            .with_columns(below=pl.col("large").shift().fill_null(0) - pl.col("offset"))
            .group_by("file", maintain_order=True)
            .agg(over=pl.col("below").clip(0, pl.col("written")).sum(), large=pl.col("large").last())
            .collect()
        )  # fmt: skip
        overwritten[found["file"].to_numpy()] += found["over"].to_numpy()
        self._size[found["file"].to_numpy()] = found["large"].to_numpy()

    def _sync(self, changes: Columns, writes: npt.NDArray[np.bool_], globally: npt.NDArray[np.int64]) -> None:
        """Count the writes that a sync of their file, or one of everything, follows within 5 s.

        ``globally``: when everything was synced. Writes that are synchronous by themselves are not counted.
        """
        t, file, is_sync = changes["t"], changes["file"], _IS_SYNC[changes["op"]]
        # The place of the next sync at or after each; the last is none.
        places = np.where(is_sync, np.arange(len(t)), len(t))
        following = np.minimum.accumulate(places[::-1])[::-1]
        directly = (changes["flags"] & int(Flag.SYNC | Flag.DSYNC)) != 0
        mine = np.flatnonzero(writes & ~directly)
        if len(mine):
            following = following[mine]
            safe = np.minimum(following, len(t) - 1)
            until = np.where((following < len(t)) & (file[safe] == file[mine]), t[safe], _NEVER)
        else:
            until = np.empty(0, np.int64)
        begins = is_sync.nonzero()[0][::-1]
        next_sync = np.full(len(self._size), _NEVER)
        next_sync[file[begins]] = t[begins]  # the first of each file, as it comes last here
        waiting = self._waiting
        new = {**{name: changes[name][mine] for name in ("t", "file", "size")}, "n": np.ones_like(mine)}
        now = {name: np.concatenate([waiting[name], new[name]]) for name in waiting}
        until = np.concatenate([next_sync[waiting["file"]], until])
        if len(globally):
            until = np.minimum(until, np.r_[globally, _NEVER][np.searchsorted(globally, now["t"])])
        # A sync that soon finds the write still in the open or a quiescing transaction group, so that it goes
        # through the intent log.
        synced = until - now["t"] <= TXG_NS
        np.add.at(self.of_file["sync_writes"], now["file"][synced], now["n"][synced])
        np.add.at(self.of_file["sync_write_bytes"], now["file"][synced], now["size"][synced])
        self._waiting = _joined(_rows(now, ~synced & (now["t"] >= self.end - 1 - TXG_NS)))

    def totals(self) -> pl.DataFrame:
        """Return what adds up of each file that has events, with its role."""
        how = pl.col("how")
        op = how % (1 << _CALL)
        counts: list[pl.Expr] = []
        for kind, code in KINDS.items():
            mine = op == int(code)
            counts += [
                N.filter(mine).sum().alias(f"{kind}_count"),
                (N * SIZE).filter(mine).sum().alias(f"{kind}_bytes"),
            ]
            for bit, to in enumerate(self._alignments, _FITS):
                fits = mine & (how // (1 << bit) % 2 == 1) & (SIZE % to == 0)
                counts.append(N.filter(fits).sum().alias(f"{kind}_{to}"))
        directly = (op == int(Op.WRITE)) & (how // (1 << DIRECTLY) % 2 == 1)
        found = (
            self.sizes.total()
            .lazy()
            .group_by("file")
            .agg(
                *counts,
                N.filter(op.is_in(SYNCS)).sum().alias("syncs"),
                N.filter(directly).sum().alias("sync_writes"),
                (N * SIZE).filter(directly).sum().alias("sync_write_bytes"),
            )
            .sort("file")
            .collect()
        )
        file = found["file"].to_numpy()
        pages = self.pages.counts()
        more = {"pages": READ | WRITTEN, "read_pages": READ, "write_pages": WRITTEN}
        return found.with_columns(
            pl.Series("role", self._roles[file]),
            *(pl.Series(name, values[file]) for name, values in self.of_file.items() if name not in found),
            *((pl.col(name) + pl.Series(self.of_file[name][file])).alias(name) for name in _SYNCHRONOUS),
            *(pl.Series(name, pages[kinds][file]) for name, kinds in more.items()),
        )


def _rows(part: Columns, rows: npt.NDArray[Any]) -> Columns:
    return {name: values[rows] for name, values in part.items()}


def _joined(writes: Columns) -> Columns:
    """Return ``writes`` with neighbours of one file and one time as one row, ``n`` and ``size`` added up."""
    if not len(writes["t"]):
        return writes
    others = (np.diff(writes["t"]) != 0) | (np.diff(writes["file"]) != 0)
    first = np.r_[0, others.nonzero()[0] + 1]
    added = {name: np.add.reduceat(writes[name], first) for name in ("size", "n")}
    return {**_rows(writes, first), **added}


def _by_file(part: Columns, rows: npt.NDArray[np.bool_], *names: str) -> Columns:
    """Return the columns ``names`` of ``rows`` sorted by file, those of a file in the order they had."""
    chosen = np.flatnonzero(rows)
    file = part["file"][chosen]
    if len(file) and file.max() < 1 << 16:
        file = file.astype(np.uint8 if file.max() < 1 << 8 else np.uint16)  # many times faster to sort
    chosen = chosen[np.argsort(file, kind="stable")]
    return {name: part[name][chosen] for name in names}


def _ends(file: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the places of the first and of the last row of each file; rows are sorted by it."""
    new = np.flatnonzero(file[1:] != file[:-1]) + 1
    return np.r_[0, new], np.r_[new, len(file)] - 1
