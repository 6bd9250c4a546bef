"""How two settings act together in measured trials: always paired within blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ztune.analysis.paired import Ratio, summary
from ztune.analysis.results import LayoutResult


@dataclass(frozen=True)
class TwoFactor:
    """Two settings: the layout with neither changed and that with both.

    ``ratio``: what both do together, over what each does alone multiplied. 1: they act independently.
    """

    first: str
    second: str
    base: LayoutResult
    both: LayoutResult
    measure: str
    ratio: Ratio


def _tells(result: LayoutResult, measure: str) -> bool:
    return measure in result.values and measure not in result.few_calls


def _difference(a: LayoutResult, b: LayoutResult) -> list[str]:
    keys = {*a.settings, *b.settings}
    return sorted(k for k in keys if a.settings.get(k) != b.settings.get(k))


def two_factor(results: Sequence[LayoutResult], measure: str) -> list[TwoFactor]:
    """Return the interactions on ``measure``, for each square of four layouts in two settings that the run
    has; none from percentiles of too few calls.
    """
    neighbours: dict[str, list[tuple[str, LayoutResult]]] = defaultdict(list)
    by_settings = {frozenset(c.settings.items()): c for c in results if _tells(c, measure)}
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
                ratio = _interaction((corner, x, y, both), measure)
                if ratio is not None:
                    seen.add(square)
                    out.append(TwoFactor(first, second, corner, both, measure, ratio))
    return out


def _interaction(square: Sequence[LayoutResult], measure: str) -> Ratio | None:
    """``square``: neither setting, each alone, both."""
    rows = [c.values[measure] for c in square]
    blocks = sorted(set(rows[0]).intersection(*rows[1:]))
    logs = [
        math.log(rows[3][k]) + math.log(rows[0][k]) - math.log(rows[1][k]) - math.log(rows[2][k])
        for k in blocks
        if all(row[k] > 0 for row in rows)
    ]
    return summary(logs) if len(logs) > 1 else None
