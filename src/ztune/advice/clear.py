"""What differs clearly where the figure that decides does not.

Trials may not resolve the time of layouts that write a third of the bytes; who pays for each byte, as an SSD
does, has to know that.
"""

from __future__ import annotations

from ztune.advice.evidence import compare
from ztune.advice.model import Side
from ztune.analysis import units
from ztune.analysis.results import LayoutResult
from ztune.analysis.standing import Standing

_FIGURES = {"written": "bytes written per op", "space": "space"}


def sentences(now: Standing, chosen: LayoutResult) -> list[str]:
    """Return for each layout that the trials do not tell from the baseline, which they keep, which figures it
    has clearly less or more of, with the medians; a sentence each, the best layout's first.
    """
    if now.basis == "modelled" or chosen is not now.baseline or not now.minimise:
        return []
    out = []
    for place in now.ranked:
        if place.result is chosen or place.standing == "worse" or place.lag:
            continue
        metrics = [key for key in _FIGURES if key != now.minimise[0]]
        sides = [side for side in compare(chosen, place.result, now.within, metrics) if side.matters]
        if sides:
            does = "Equal" if _equal(now, place.standing) else "Not resolved"
            said = ", ".join(map(_said, sides))
            out.append(f"{does} in {now.label(now.minimise[0])}, but {said}: {place.result.name}.")
    return out


def _equal(now: Standing, standing: str) -> bool:
    """Say whether a layout is known to be as good as the baseline: both are as good as the one that leads."""
    baseline = next((p for p in now.ranked if p.result is now.baseline), None)
    return baseline is not None and {standing, baseline.standing} <= {"leader", "equal"}


def _said(side: Side) -> str:
    here, there = units.show(side.here, side.unit), units.show(side.other, side.unit)
    return f"{_FIGURES[side.metric]} {here} → {there} ({units.times(side.ratio)})"
