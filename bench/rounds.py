"""How ztune searched before it had a model, on the cells of a grid: what bench/search.py compares with.

Round 1 is the base and each value of each axis alone; each further round has the combination of what was best
alone, the two best with each of their values alone back at the base's, and once those are there the steps
along each axis from the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Cell = tuple[int, ...]
_TOP = 2  # how many of the best get their neighbours


def search(sizes: Sequence[int], base: Cell, values: Mapping[Cell, float]) -> Iterator[Cell]:
    """Give the cells in the order in which they would be tried. ``sizes``: values of each axis, as listed."""
    alone = [_with(base, i, at) for i, size in enumerate(sizes) for at in range(size)]
    tried: dict[Cell, None] = {}

    def new(cells: Sequence[Cell]) -> Iterator[Cell]:
        for cell in cells:
            if cell in values and cell not in tried:
                tried[cell] = None
                yield cell

    yield from new([base, *alone])
    while True:
        ranked = sorted(tried, key=values.__getitem__)
        best = [min((_worth(values, base, i, at), at) for at in range(n))[1] for i, n in enumerate(sizes)]
        wanted = [tuple(best)]
        for cell in ranked[:_TOP]:
            wanted += [_with(cell, i, base[i]) for i in range(len(sizes))]
        count = len(tried)
        yield from new(wanted)
        if len(tried) == count:
            first = ranked[0]
            yield from new([_with(first, i, first[i] + step) for i in range(len(sizes)) for step in (-1, 1)])
        if len(tried) == count:
            return


def _worth(values: Mapping[Cell, float], base: Cell, i: int, at: int) -> float:
    return values.get(_with(base, i, at), float("inf"))


def _with(cell: Cell, i: int, at: int) -> Cell:
    return (*cell[:i], at, *cell[i + 1 :])
