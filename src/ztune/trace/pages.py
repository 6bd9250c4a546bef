"""Which pages of its files a trace touches: bits for what was touched, whatever the number of events.

A page takes a byte until `PACK` bytes are used, and a quarter of one from then on: 64 MiB for 1 TiB of files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.trace.figures import PAGE

Ints: TypeAlias = "npt.NDArray[np.signedinteger[Any]]"

_PAGE = PAGE.bit_length() - 1
READ, WRITTEN = 1, 2
_CHUNK = 12  # log2 of the pages of a chunk, 16 MiB of a file: what is noted at once, once one is touched
_IN_CHUNK = (1 << _CHUNK) - 1
_VAST = 1 << 20  # pages: longer pieces are kept as they are
_FAR = 1 << 34  # pages, 64 TiB: those beyond too, so that a damaged offset takes no table of its size
_AT_ONCE = 1 << 16  # calls, and pages, at a time: what they take stays in the processor's cache
PACK = 1 << 29
"""Bytes of notes from which on four pages share one: 2 TiB touched."""


class Pages:
    """The pages of files, of ``sizes`` bytes as far as is known: which were read, which were written."""

    def __init__(self, sizes: Sequence[int], pack: int = PACK) -> None:
        self._pack = pack
        self._packed = False
        self._room = np.minimum(np.array(sizes, np.int64) // (PAGE << _CHUNK) + 1, _FAR >> _CHUNK)
        self._base = _begin(self._room)
        self._slots = np.full(int(self._room.sum()), -1, np.int32)  # of each chunk of each file; -1: none
        self._files = np.zeros(0, np.int64)  # of each slot
        self._notes = np.zeros(0, np.uint8)
        self._vast: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)

    def add(self, kind: int, file: Ints, offset: Ints, size: Ints) -> None:
        """Note calls of ``kind``, `READ` or `WRITTEN`, sorted by ``file``; places in bytes."""
        for begin in range(0, len(file), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            self._add(kind, file[part], offset[part], size[part])

    def _add(self, kind: int, file: Ints, offset: Ints, size: Ints) -> None:
        some = size > 0
        if not some.all():
            file, offset, size = file[some], offset[some], size[some]
        if not len(file):
            return
        stop = offset + size
        # What goes on where the one before it stopped is one piece with it.
        new = np.flatnonzero(np.r_[True, (file[1:] != file[:-1]) | (offset[1:] != stop[:-1])])
        file, first = file[new], offset[new] >> _PAGE
        last = (stop[np.r_[new[1:] - 1, len(stop) - 1]] - 1 >> _PAGE) + 1
        long = (last - first > _VAST) | (last > _FAR)
        if long.any():
            rows = zip(file[long].tolist(), first[long].tolist(), last[long].tolist(), strict=True)
            for one, begin, end in rows:
                self._vast[one, kind].append((begin, end))
            file, first, last = file[~long], first[~long], last[~long]
        self._make_room(file, last)
        file, first, last = _by_chunk(file, first, last)
        n = last - first
        done = np.cumsum(n)
        begin = 0
        while begin < len(n):
            end = max(begin + 1, int(np.searchsorted(done, done[begin] - n[begin] + _AT_ONCE)))
            part = slice(begin, end)
            self._note(kind, self._base[file[part]] + (first[part] >> _CHUNK), first[part], n[part])
            begin = end

    def counts(self) -> dict[int, Ints]:
        """Return how many different pages of each file were read, written, and either (`READ | WRITTEN`)."""
        found = {kinds: np.zeros(len(self._base), np.int64) for kinds in (READ, WRITTEN, READ | WRITTEN)}
        for begin in range(0, len(self._files), 1 << 8):
            files = self._files[begin : begin + (1 << 8)]
            notes = self._of_slots(begin, len(files))
            for kinds, count in found.items():
                np.add.at(count, files, np.count_nonzero(notes & kinds, axis=1))
        vast = sorted({one for one, _ in self._vast})
        for kinds, count in found.items():
            for one in vast:
                pieces = [
                    p for kind in (READ, WRITTEN) if kind & kinds for p in self._vast.get((one, kind), ())
                ]
                for begin, end in _merged(pieces):
                    count[one] += end - begin - self._noted(one, begin, end, kinds)
        return found

    def _make_room(self, file: Ints, last: Ints) -> None:
        """Have a place in the table for each chunk of the files, up to the pages ``last``."""
        chunks = (last - 1 >> _CHUNK) + 1
        if (chunks <= self._room[file]).all():
            return
        need = self._room.copy()
        np.maximum.at(need, file, chunks)
        more = need > self._room
        room = np.where(more, np.minimum(2 * need, _FAR >> _CHUNK), self._room)
        base = _begin(room)
        slots = np.full(int(room.sum()), -1, np.int32)
        moved = np.repeat(base - self._base, self._room)
        slots[np.arange(len(moved)) + moved] = self._slots
        self._room, self._base, self._slots = room, base, slots

    def _note(self, kind: int, chunk: Ints, first: Ints, n: Ints) -> None:
        slot = self._slots[chunk]
        if (slot < 0).any():
            self._take_slots(np.unique(chunk[slot < 0]))
            slot = self._slots[chunk]
        begin = (slot.astype(np.int64) << _CHUNK) + (first & _IN_CHUNK)
        # One page after the other: of each piece, from its first on.
        place = np.repeat(begin - (np.cumsum(n) - n), n)
        place += np.arange(len(place))
        if not self._packed:
            self._notes[place] |= np.uint8(kind)
            return
        for k in range(4):
            self._notes[place[place & 3 == k] >> 2] |= np.uint8(kind << 2 * k)

    def _take_slots(self, chunks: Ints) -> None:
        have = len(self._files)
        self._slots[chunks] = np.arange(have, have + len(chunks))
        # Files without room are none: each has at least one chunk.
        self._files = np.r_[self._files, np.searchsorted(self._base, chunks, side="right") - 1]
        need = len(self._files) << _CHUNK
        if not self._packed and need > self._pack:
            self._packed = True
            self._notes = sum(self._notes[k::4] << np.uint8(2 * k) for k in range(4)).astype(np.uint8)  # type: ignore[union-attr]
        need >>= 2 * self._packed
        if need > len(self._notes):
            grown = np.zeros(max(need, len(self._notes) * 3 // 2 >> _CHUNK << _CHUNK), np.uint8)
            grown[: len(self._notes)] = self._notes
            self._notes = grown

    def _of_slots(self, begin: int, n: int) -> npt.NDArray[np.uint8]:
        """Return the notes of ``n`` slots from ``begin`` on, a byte a page, a row a slot."""
        if not self._packed:
            return self._notes[begin << _CHUNK : begin + n << _CHUNK].reshape(n, -1)
        packed = self._notes[begin << _CHUNK - 2 : begin + n << _CHUNK - 2]
        return np.stack([packed >> np.uint8(2 * k) & np.uint8(3) for k in range(4)], axis=1).reshape(n, -1)

    def _noted(self, file: int, begin: int, end: int, kinds: int) -> int:
        """Return how many pages from ``begin`` to ``end`` are noted one by one."""
        mine = self._slots[self._base[file] : self._base[file] + self._room[file]]
        found = 0
        for chunk in np.flatnonzero(mine >= 0).tolist():
            start = chunk << _CHUNK
            notes = self._of_slots(int(mine[chunk]), 1)[0]
            found += int(np.count_nonzero(notes[max(begin - start, 0) : max(end - start, 0)] & kinds))
        return found


def _by_chunk(file: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the pieces cut where a chunk ends."""
    chunk = first >> _CHUNK
    more = (last - 1 >> _CHUNK) - chunk
    if not more.any():
        return file, first, last
    mine = np.repeat(np.arange(len(file)), more + 1)
    done = np.cumsum(more + 1)
    chunk = chunk[mine] + np.arange(len(mine)) - (done - more - 1)[mine]
    return file[mine], np.maximum(first[mine], chunk << _CHUNK), np.minimum(last[mine], chunk + 1 << _CHUNK)


def _begin(room: Ints) -> Ints:
    return np.cumsum(room) - room


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ``pieces`` without overlaps."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(pieces):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
