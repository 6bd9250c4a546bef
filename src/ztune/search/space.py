"""The cells of a finite space: one value on each axis, those that are valid together."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

Cell = tuple[int, ...]
"""For each axis, which of its values."""

ENUMERATED = 2048
"""Spaces of up to so many cells are looked at as a whole; of larger ones that many cells are drawn."""
_MOST_KNOWN = 32 * ENUMERATED  # cells of which it is kept whether they are valid
_TRIES = 20  # draws for each cell that is wanted, before a space is taken to have no more


@dataclass(frozen=True)
class SearchAxis:
    """One thing that varies. ``positions``: where each value lies, where they have an order (record sizes:
    log2 of the bytes); empty where they have none. ``size``: how many values there are.
    """

    name: str
    size: int
    positions: tuple[float, ...] = ()

    def features(self) -> list[list[float]]:
        """Return each value as numbers: its place from 0 to 1, or one number for each value."""
        if self.size == 1:
            return [[]]
        if not self.positions:
            return [[float(i == j) for j in range(self.size)] for i in range(self.size)]
        least, most = min(self.positions), max(self.positions)
        return [[(at - least) / ((most - least) or 1.0)] for at in self.positions]


@dataclass
class SearchSpace:
    """All cells of ``axes`` that ``valid`` lets through; of a small space it is asked about each once."""

    axes: Sequence[SearchAxis]
    valid: Callable[[Cell], bool] = lambda _: True
    _known: dict[Cell, bool] = field(default_factory=dict)

    def __contains__(self, cell: object) -> bool:
        if not isinstance(cell, tuple) or len(cell) != len(self.axes):
            return False
        if cell not in self._known:
            if len(self._known) >= _MOST_KNOWN:  # of a large space, drawn at random: few come again
                self._known.clear()
            inside = all(0 <= at < axis.size for at, axis in zip(cell, self.axes, strict=True))
            self._known[cell] = inside and self.valid(cell)
        return self._known[cell]

    @property
    def product(self) -> int:
        """How many cells there would be if all were valid."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def small(self) -> bool:
        """Whether it is looked at as a whole."""
        return self.product <= ENUMERATED

    def cells(self) -> list[Cell]:
        """Return all valid cells of a small space, in the order of the axes."""
        return [c for c in itertools.product(*(range(axis.size) for axis in self.axes)) if c in self]

    def neighbours(self, cell: Cell) -> Iterator[Cell]:
        """Give each valid cell that differs from ``cell`` on one axis."""
        for i, axis in enumerate(self.axes):
            for at in range(axis.size):
                other = (*cell[:i], at, *cell[i + 1 :])
                if at != cell[i] and other in self:
                    yield other

    def drawn(self, rng: random.Random, count: int, but: Collection[Cell] = ()) -> list[Cell]:
        """Return up to ``count`` different valid cells at random, none of ``but``."""
        found: dict[Cell, None] = {}
        for _ in range(count * _TRIES):
            if len(found) == count:
                break
            cell = tuple(rng.randrange(axis.size) for axis in self.axes)
            if cell not in but and cell not in found and cell in self:
                found[cell] = None
        return list(found)

    def untried(self, rng: random.Random, tried: Collection[Cell], best: Sequence[Cell]) -> list[Cell]:
        """Return the cells that could be next: all of a small space; else the neighbours of ``best`` and as
        many others at random as make ``ENUMERATED``.
        """
        if self.small:
            return [cell for cell in self.cells() if cell not in tried]
        near = dict.fromkeys(c for cell in best for c in self.neighbours(cell) if c not in tried)
        far = self.drawn(rng, max(0, ENUMERATED - len(near)), {*tried, *near})
        return [*near, *far]
