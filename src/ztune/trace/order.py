"""Whether files that are written from front to back are also used here and there, as no log is.

A log goes on from where it stopped, also where it is written over: recycled, circular, begun anew, filled
with zeros beforehand. What else it writes is at a few places, such as a header. A file of pages may be laid
out in the same order, with far more calls than it gets later: so what is written over counts by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ztune.trace.reader import Trace
from ztune.trace.schema import Op

SCATTERED = 0.2
"""Of the calls: from this share on that go on from none of the last ones they are taken as here and there."""
PLACES = 8
"""Of such calls, for each file: as many and fewer may be headers, or where a log begins anew."""
_PAGE = 4096  # bytes; a log may fill up its last one, write it again, or leave its rest out
_LAST = 8  # calls that one may go on from: of streams that take turns, such as a log and its header

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass
class _Calls:
    """Reads or writes of one file. Those that begin at ``top`` or above are new ground, and don't count."""

    top: int
    count: int = 0
    jumps: int = 0
    places: set[int] = field(default_factory=set)
    _begin: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    _end: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, begin: Ints, end: Ints) -> Bools:
        """Count the next calls; return which of them go on from one of the last."""
        before = len(self._begin)
        begins, ends = np.concatenate([self._begin, begin]), np.concatenate([self._end, end])
        goes_on = np.zeros(len(begins), bool)
        for back in range(1, min(_LAST, len(begins) - 1) + 1):
            goes_on[back:] |= (begins[back:] >= begins[:-back]) & (begins[back:] - ends[:-back] < _PAGE)
        goes_on = goes_on[before:]
        top = np.maximum.accumulate(np.concatenate([[self.top], end]))
        over = begin < top[:-1]
        jumps = over & ~goes_on
        if not before:
            jumps[:1] = False  # the first may begin anywhere
        self.count += int(np.count_nonzero(over))
        self.jumps += int(np.count_nonzero(jumps))
        if len(self.places) <= PLACES:
            self.places.update((begin[jumps] // _PAGE).tolist())
        self.top = int(top[-1])
        self._begin, self._end = begins[-_LAST:], ends[-_LAST:]
        return goes_on

    @property
    def scattered(self) -> bool:
        return len(self.places) > PLACES and self.jumps >= SCATTERED * self.count


_EVERYWHERE = int(np.iinfo(np.int64).max)


@dataclass
class FileOrder:
    """How one file was used. ``overwrites``: what was written below its size; ``reads``: those after it was
    last written in order; ``all_reads``: how many there were in all.
    """

    overwrites: _Calls
    reads: _Calls = field(default_factory=lambda: _Calls(_EVERYWHERE))
    all_reads: int = 0

    def add(self, writes: Bools, begin: Ints, end: Ints) -> None:
        """Count the next calls on the file."""
        wrote, read = np.flatnonzero(writes), np.flatnonzero(~writes)
        self.all_reads += len(read)
        in_order = wrote[self.overwrites.add(begin[wrote], end[wrote])]
        if len(in_order):
            self.reads = _Calls(_EVERYWHERE)
            read = read[read > in_order[-1]]
        self.reads.add(begin[read], end[read])

    @property
    def written_here_and_there(self) -> bool:
        """Whether what was there was written over at many places, out of order."""
        return self.overwrites.scattered

    @property
    def then_read_here_and_there(self) -> bool:
        """Whether most reads came once it had been written, out of order: a log is read while it is written,
        or from front to back."""
        return 2 * self.reads.count >= self.all_reads and self.reads.scattered


def orders(trace: Trace, sizes: Mapping[int, int]) -> dict[int, FileOrder]:
    """Return how files of ``trace`` were used; ``sizes``: what they had at its start, by their ids.

    Raises InputError if the trace is damaged.
    """
    found = {id_: FileOrder(_Calls(size)) for id_, size in sizes.items()}
    if not found:
        return found
    for part in trace.parts("op", "file", "offset", "size"):
        rows = np.flatnonzero(np.isin(part["op"], (Op.READ, Op.WRITE)) & np.isin(part["file"], list(found)))
        rows = rows[np.argsort(part["file"][rows], kind="stable")]
        file, begin = part["file"][rows], part["offset"][rows]
        writes, end = part["op"][rows] == Op.WRITE, begin + part["size"][rows]
        bounds = np.flatnonzero(np.diff(file, prepend=-1, append=-1))
        for low, high in itertools.pairwise(bounds):
            found[int(file[low])].add(writes[low:high], begin[low:high], end[low:high])
    return found
