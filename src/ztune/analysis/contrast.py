"""What single settings do in measured trials, and how they act together: always paired within blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ztune.analysis.effects import ABSENT
from ztune.analysis.measured import Cell
from ztune.analysis.paired import LEVEL, Ratio, interval, paired


@dataclass(frozen=True)
class OneFactor:
    """Two layouts that differ in one setting alone: ``ratios`` holds after / before by measure."""

    factor: str
    before: str
    after: str
    a: Cell
    b: Cell
    ratios: Mapping[str, Ratio]


@dataclass(frozen=True)
class TwoFactor:
    """Four layouts: neither setting changed, each alone, both.

    ``ratio``: what both do together, over what each does alone multiplied. 1: they act independently.
    """

    first: str
    second: str
    base: Cell
    only_first: Cell
    only_second: Cell
    both: Cell
    measure: str
    ratio: Ratio


def _difference(a: Cell, b: Cell) -> list[str]:
    keys = {*a.settings, *b.settings}
    return sorted(k for k in keys if a.settings.get(k) != b.settings.get(k))


def one_factor(cells: Sequence[Cell], measures: Sequence[str]) -> list[OneFactor]:
    """Return every pair of layouts that differ in exactly one setting, from the baseline's value where it
    has it.

    O(layouts²): a measured run has few.
    """
    base = next((c for c in cells if c.baseline), None)
    out = []
    for i, left in enumerate(cells):
        for right in cells[i + 1 :]:
            changed = _difference(left, right)
            if len(changed) != 1:
                continue
            key = changed[0]
            a, b = left, right
            if base is not None and b.settings.get(key) == base.settings.get(key):
                a, b = right, left
            ratios = {
                m: r
                for m in measures
                if m in a.values and m in b.values and (r := paired(b.values[m], a.values[m])) is not None
            }
            if ratios:
                out.append(
                    OneFactor(key, a.settings.get(key, ABSENT), b.settings.get(key, ABSENT), a, b, ratios)
                )
    return sorted(out, key=lambda e: (e.factor, e.before, e.after, e.a.name))


def two_factor(cells: Sequence[Cell], measure: str) -> list[TwoFactor]:
    """Return the interactions on ``measure``, for each square of four layouts in two settings that the run
    has.
    """
    neighbours: dict[str, list[tuple[str, Cell]]] = defaultdict(list)
    by_settings = {frozenset(c.settings.items()): c for c in cells if measure in c.values}
    usable = list(by_settings.values())
    base = next((c for c in usable if c.baseline), None)
    for a in usable:
        for b in usable:
            changed = _difference(a, b)
            if len(changed) == 1:
                neighbours[a.arm].append((changed[0], b))
    out: list[TwoFactor] = []
    seen: set[frozenset[str]] = set()
    # From the baseline where a square holds it: its sides are then what each setting does to today's layout.
    for corner in sorted(usable, key=lambda c: c is not base):
        for i, (first, x) in enumerate(neighbours[corner.arm]):
            for second, y in neighbours[corner.arm][i + 1 :]:
                if first == second:
                    continue
                wanted = dict(corner.settings)
                for key, cell in ((first, x), (second, y)):
                    wanted.pop(key, None)
                    if key in cell.settings:
                        wanted[key] = cell.settings[key]
                both = by_settings.get(frozenset(wanted.items()))
                if both is None:
                    continue
                square = frozenset((corner.arm, x.arm, y.arm, both.arm))
                if len(square) < 4 or square in seen:
                    continue
                ratio = _interaction(corner, x, y, both, measure)
                if ratio is not None:
                    seen.add(square)
                    out.append(TwoFactor(first, second, corner, x, y, both, measure, ratio))
    return out


def _interaction(base: Cell, x: Cell, y: Cell, both: Cell, measure: str) -> Ratio | None:
    rows = [c.values[measure] for c in (base, x, y, both)]
    blocks = sorted(set(rows[0]).intersection(*rows[1:]))
    logs = [
        math.log(rows[3][k]) + math.log(rows[0][k]) - math.log(rows[1][k]) - math.log(rows[2][k])
        for k in blocks
        if all(row[k] > 0 for row in rows)
    ]
    if len(logs) < 2:
        return None
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((v - mean) ** 2 for v in logs) / (len(logs) - 1))
    low, high = interval(logs, LEVEL)
    return Ratio(len(logs), math.exp(mean), math.exp(low), math.exp(high), spread, LEVEL)
