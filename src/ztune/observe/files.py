"""The files of each role as they are on disk: sizes, holes, and how they would compress on ZFS.

Files are only looked at: opened for reading, without changing their access time where that is allowed, and
never through a link. Work is bounded in time and memory, whatever the number and size of the files.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ztune.databases.database import endings
from ztune.observe import histograms
from ztune.observe.allocation import HEADER, Allocation
from ztune.observe.model import Compressed, ObservedFiles
from ztune.onhost.host import mounts, noatime
from ztune.onhost.words import ROLES
from ztune.trace.compressibility import Compressor, compressor
from ztune.trace.manifest import RECORDSIZES
from ztune.trace.roles import RoleRules
from ztune.units import counted

ALGORITHMS: Final = ("off", "lz4", "zstd-3", "zstd-9", "gzip-6")
PLACES: Final = 512
"""Places drawn over all bytes of a role."""
READ_BUDGET: Final = 12 << 20
"""Bytes read of a role for record sizes up to ``PIECE``, and again for larger ones."""
PIECE: Final = 128 << 10
BLOCK_BUDGET: Final = 4 << 20
"""Bytes compressed of a role at one record size with one algorithm ..."""
LEAST_BLOCKS: Final = 64
"""... but at least so many blocks, if that many were read."""
LEAST_PLACES: Final = 8
MOST_HOLED: Final = 10_000
"""Files of a role that are looked through for holes."""
MOST_RUNS: Final = 10_000
"""Runs of data and holes of one file."""
RESAMPLED: Final = 1000
SETTLED_SECONDS: Final = 60.0
"""ZFS writes out a file that was just changed before it tells of its holes: younger ones are not asked."""
_SMALLEST = 512
_NEARLY_ALL = 0.95
"""Of a role's bytes."""


@dataclass
class _Role:
    """What is added up of one role, and where to look further."""

    files: ObservedFiles
    places: list[tuple[str, int, int] | None] = field(default_factory=lambda: [None] * PLACES)
    """Path, the file's size, offset."""
    holed: list[str] = field(default_factory=list)
    """Files with fewer blocks than bytes."""
    passed: int = 0
    """Such files that were not looked through."""


def files(
    roots: Iterable[str | Path] = (),
    listed: Mapping[str, str] | None = None,
    *,
    rules: RoleRules | None = None,
    allocations: Mapping[str, Allocation] | None = None,
    recordsizes: Sequence[int] = RECORDSIZES,
    algorithms: Sequence[str] = ALGORITHMS,
    seconds: float = 60.0,
    seed: int = 1,
) -> tuple[tuple[ObservedFiles, ...], tuple[str, ...]]:
    """Return what the files of each role are like, and sentences on what is not known.

    Args:
        roots: folders, looked through to their ends, or files; roles are by ``rules``.
        listed: paths of files → role, besides; those that are gone or no regular files are passed over.
        rules: which role a file plays; those of well-known databases unless given.
        allocations: role → how its pool lays blocks out (``Allocation.of`` a data vdev); sectors of 4 KiB
            without parity for roles that are not in it.
        recordsizes: powers of two from 512, bytes.
        algorithms: "off", "lz4", "zstd-N", "gzip-N". "off" shows what padding alone costs.
        seconds: time for everything; what does not fit is left out, and said so.
        seed: the same files and seed give the same blocks.

    ``Compressed`` leaves out blocks of zeros, which ZFS stores as holes. Its interval comes from drawing the
    places that blocks were read at again, as blocks side by side are alike.

    Raises InputError for an unknown algorithm.
    """
    compressors = {name: None if name == "off" else compressor(name) for name in algorithms}
    limits: list[str] = []
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    walk = _Walk(rules if rules is not None else RoleRules.parse(), rng, began + seconds / 2)
    walk.add_listed(listed or {})
    tops = {Path(root).resolve() for root in roots}
    for root in sorted(tops):
        if not tops.intersection(root.parents):
            walk.add(root)
    limits += walk.limits(seconds / 2)
    found = []
    for role in sorted(walk.roles, key=lambda r: ROLES.index(r) if r in ROLES else len(ROLES)):
        kept = walk.roles[role]
        files = kept.files
        _holes(kept, began + seconds * 0.7)
        if kept.passed:
            limits.append(
                f"role {role}: {kept.passed} of the {kept.passed + len(kept.holed)} files with fewer blocks "
                "than bytes were not looked through for holes: too many, or changed within the last minute"
            )
        allocation = (allocations or {}).get(role, Allocation())
        compressed = tuple(_compressed(kept, recordsizes, compressors, allocation, rng, began + seconds))
        if files.bytes and not compressed:
            limits.append(
                f"role {role}: nothing was compressed: no block but of zeros could be read, or time was over"
            )
        elif files.bytes and len(compressed) < len(recordsizes) * len(compressors):
            why = (
                f"{seconds:.0f} s were over"
                if time.monotonic() > began + seconds
                else "at the others all blocks that were drawn are zeros"
            )
            limits.append(
                f"role {role}: compressed at {len({c.recordsize for c in compressed})} of {len(recordsizes)} "
                f"record sizes only: {why}"
            )
        files.sizes = dict(sorted(files.sizes.items()))
        files.record_sizes = dict(sorted(files.record_sizes.items()))
        files.compressed = compressed
        if compressed:
            files.sector = allocation.sector
            files.parity = str(allocation) if allocation.parity else None
        found.append(files)
    return tuple(found), tuple(limits)


class _Walk:
    """Goes through files and adds them up by role; keeps a bounded number of places and paths."""

    def __init__(self, rules: RoleRules, rng: np.random.Generator, until: float) -> None:
        self.roles: dict[str, _Role] = {}
        self.zfs = {os.makedev(*m.device) for m in mounts.table() if m.type == "zfs"}
        self._rules = rules
        self._rng = rng
        self._until = until
        self._cut = False
        self._seen: set[tuple[int, int]] = set()
        """Files that may be met again: listed ones, and those of several names."""
        self._link = ""
        self._denied: list[str] = []
        self._others = 0
        self._links = 0

    def limits(self, seconds: float) -> Iterator[str]:
        if self._cut:
            count = sum(role.files.count for role in self.roles.values())
            yield (
                f"the folders were looked through for {seconds:.0f} s only: {count} files, which may not "
                "be like the others; their number, sizes and bytes are too low"
            )
        if self._links:
            yield (
                f"{self._links} links were not followed, such as {self._link}: what they lead to is counted "
                "only if it is below one of the given folders"
            )
        if self._denied:
            yield f"{counted(len(self._denied), 'folder')} could not be read, such as {self._denied[0]}"
        if self._others:
            plays, are = ("file plays", "is") if self._others == 1 else ("files play", "are")
            yield f"{self._others} {plays} no known role, and {are} left out"

    def add_listed(self, listed: Mapping[str, str]) -> None:
        for path, role in listed.items():
            with suppress(OSError):
                self._file(path, os.lstat(path), role, listed=True)

    def add(self, root: Path) -> None:
        with suppress(OSError):
            if root.is_file():
                self._file(str(root), root.lstat(), None)
                return
        todo = [str(root)]
        while todo:
            folder = todo.pop()
            try:
                with noatime.entries(folder) as entries:
                    for entry in entries:
                        if time.monotonic() > self._until:
                            self._cut = True
                            return
                        with suppress(OSError):
                            self._entry(f"{folder.rstrip('/')}/{entry.name}", entry, todo)
            except OSError as error:
                self._denied.append(f"{folder}: {error.strerror}")

    def _entry(self, path: str, entry: os.DirEntry[str], todo: list[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            todo.append(path)
        elif entry.is_symlink():
            self._links += 1
            self._link = self._link or path
        elif entry.is_file(follow_symlinks=False):
            self._file(path, entry.stat(follow_symlinks=False), None)

    def _file(self, path: str, status: os.stat_result, role: str | None, *, listed: bool = False) -> None:
        if not stat.S_ISREG(status.st_mode):
            return
        role = role or self._rules.role(path)
        if role is None:
            self._others += 1
            return
        key = (status.st_dev, status.st_ino)
        if key in self._seen:
            return
        if status.st_nlink > 1 or listed:
            self._seen.add(key)
        if role not in self.roles:
            self.roles[role] = _Role(ObservedFiles(role=role, count=0, bytes=0, allocated=0))
        kept = self.roles[role]
        files = kept.files
        size = status.st_size
        files.count += 1
        files.bytes += size
        files.allocated += status.st_blocks * 512
        bucket = histograms.bucket(size)
        files.sizes[bucket] = files.sizes.get(bucket, 0) + 1
        if any(ending.fullmatch(path) for ending in endings("preallocated")):
            files.preallocated += 1
        on_zfs = status.st_dev in self.zfs
        if on_zfs and size > status.st_blksize:
            files.record_sizes[status.st_blksize] = files.record_sizes.get(status.st_blksize, 0) + 1
        if status.st_blocks * 512 < size:
            young = on_zfs and time.time() - status.st_mtime < SETTLED_SECONDS
            if young or len(kept.holed) >= MOST_HOLED:
                kept.passed += 1
            else:
                kept.holed.append(path)
        if size:
            # Each place moves here with the chance that this file has among all bytes so far: at the end each
            # is drawn evenly over all bytes, though no list of files was kept.
            moved = np.flatnonzero(self._rng.random(PLACES) * files.bytes < size)
            for i, offset in zip(moved, self._rng.integers(0, size, len(moved)), strict=True):
                kept.places[i] = (path, size, int(offset))


def _holes(kept: _Role, until: float) -> None:
    """Look through the files that may have holes, as long as there is time."""
    for done, path in enumerate(kept.holed):
        if time.monotonic() > until:
            kept.passed += len(kept.holed) - done
            del kept.holed[done:]
            return
        with suppress(OSError):
            fd = noatime.open_regular(path, os.O_NOFOLLOW)
            try:
                if size := _hole_bytes(fd):
                    kept.files.sparse += 1
                    kept.files.hole_bytes += size
            finally:
                os.close(fd)


def _hole_bytes(fd: int) -> int:
    """Return the bytes of a file that are in holes; of its first runs if there are very many."""
    size = os.fstat(fd).st_size
    at = holes = 0
    for _ in range(MOST_RUNS):
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: no more data
            return holes + max(0, size - at)
        holes += start - at
        at = os.lseek(fd, start, os.SEEK_HOLE)
        if at >= size:
            break
    return holes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a file from an offset that is a multiple of every record size up to the piece's."""

    content: bytes
    whole: bool
    """Whether it is all of the file."""


@dataclass(slots=True)
class _Drawn:
    """What was read of a role."""

    pieces: list[_Piece]
    places: list[tuple[int, int]]
    """Piece, and where in it, in the order of the draw: each byte of the role was equally likely."""
    nearly_all: bool = False
    """Whether these are nearly all bytes of the role."""

    def first(self, count: int) -> list[tuple[int, int]]:
        """Return the first ``count`` places; so many spread evenly where chance has nothing to add."""
        if not self.nearly_all:
            return self.places[:count]
        ends = np.cumsum([len(piece.content) for piece in self.pieces])
        at = ((np.arange(count) + 0.5) * (int(ends[-1]) / count)).astype(np.int64)
        piece = np.searchsorted(ends, at, "right")
        begins = np.concatenate([[0], ends])[piece]
        return list(zip(piece.tolist(), (at - begins).tolist(), strict=True))


def _drawn(kept: _Role, size: int) -> _Drawn:
    """Read the pieces of up to ``size`` at the places that were drawn."""
    found = _Drawn([], [])
    numbers: dict[tuple[str, int], int | None] = {}
    budget = max(READ_BUDGET, size)
    for place in kept.places:
        if place is None:
            continue
        path, file_size, offset = place
        start = offset - offset % size
        if (path, start) not in numbers:
            if budget <= 0:
                break
            content = noatime.part(path, start, size)
            numbers[path, start] = len(found.pieces) if content else None
            if content:
                found.pieces.append(_Piece(content, whole=start == 0 and len(content) == file_size))
                budget -= len(content)
        number = numbers[path, start]
        if number is not None and offset - start < len(found.pieces[number].content):
            found.places.append((number, offset - start))
    found.nearly_all = sum(len(piece.content) for piece in found.pieces) >= _NEARLY_ALL * kept.files.bytes
    return found


@dataclass(frozen=True, slots=True)
class _Block:
    """A block as ZFS would write it."""

    piece: int
    content: bytes
    logical: int
    """Bytes of the file in it; the rest is padding of the last record."""


def _blocks(drawn: _Drawn, size: int) -> list[_Block]:
    """Return the block of a record size at each place, as far as the budget goes, but those of zeros."""
    found = []
    for i, at in drawn.first(max(LEAST_BLOCKS, BLOCK_BUDGET // size)):
        piece = drawn.pieces[i]
        content = piece.content[at - at % size :][:size]
        if content == bytes(len(content)):
            continue
        logical = len(content)
        # A file of one record has a block of its own size; of several, all blocks are whole records.
        alone = piece.whole and len(piece.content) <= size
        length = -(-logical // _SMALLEST) * _SMALLEST if alone else size
        found.append(_Block(i, content.ljust(length, b"\0"), logical))
    return found


def _compressed(
    kept: _Role,
    recordsizes: Sequence[int],
    compressors: Mapping[str, Compressor | None],
    allocation: Allocation,
    rng: np.random.Generator,
    until: float,
) -> Iterator[Compressed]:
    drawn: dict[int, _Drawn] = {}
    for size in recordsizes:
        piece_size = max(PIECE, size)
        if piece_size not in drawn:
            drawn[piece_size] = _drawn(kept, piece_size)
        blocks = _blocks(drawn[piece_size], size)
        if not blocks:
            continue
        if time.monotonic() > until:
            return
        bytes_ = np.array([block.logical for block in blocks], np.float64)
        # Places were drawn by bytes, so a short block stands for as many bytes as a long one.
        logical = np.full(len(blocks), bytes_.mean())
        weight = logical / bytes_
        for name, run in compressors.items():
            header = HEADER.get(name.partition("-")[0], 0)
            packed = [None if run is None else len(run(block.content)) + header for block in blocks]
            small = np.array(
                [
                    min(p if p is not None else b.logical, b.logical)
                    for p, b in zip(packed, blocks, strict=True)
                ],
                np.float64,
            )
            small *= weight
            stored = np.array(
                [allocation.stored(len(b.content), p) for p, b in zip(packed, blocks, strict=True)],
                np.float64,
            )
            stored *= weight
            low, high = _interval(logical, stored, np.array([b.piece for b in blocks]), rng)
            yield Compressed(
                recordsize=size,
                algorithm=name,
                blocks=len(blocks),
                ratio=round(float(logical.sum() / small.sum()), 4),
                stored_ratio=_ratio(float(logical.sum()), float(stored.sum())),
                low=low,
                high=high,
            )


def _ratio(logical: float, stored: float) -> float:
    # Blocks that all fit into their pointers take no room of their own; count a pointer's 128 bytes' worth.
    return round(logical / max(stored, 128.0), 4)


def _interval(
    logical: npt.NDArray[np.float64],
    stored: npt.NDArray[np.float64],
    piece: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the 2.5 and 97.5 per cent points of the ratio of sums when places are drawn again."""
    _, group = np.unique(piece, return_inverse=True)
    if group.max() + 1 < LEAST_PLACES:
        group = np.arange(len(logical))  # too few places: by blocks, which is too narrow if they are alike
    n = int(group.max()) + 1
    sums = np.bincount(group, logical, n), np.bincount(group, stored, n)
    drawn = rng.multinomial(n, np.full(n, 1 / n), RESAMPLED).astype(np.float64)
    ratios = (drawn @ sums[0]) / np.maximum(drawn @ sums[1], 128.0)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return round(float(low), 4), round(float(high), 4)
