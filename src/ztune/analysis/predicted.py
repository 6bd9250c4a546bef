"""What screening predicted, against what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import correlation

from ztune.analysis.metrics import MEASURED
from ztune.analysis.pace import pace
from ztune.analysis.results import LayoutResult, collect
from ztune.analysis.stats import ratio
from ztune.store.records import Trial


@dataclass(frozen=True)
class Point:
    """One layout: both as multiples of the baseline. ``error``: predicted / measured − 1."""

    name: str
    arm: str
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Comparison:
    """One measure over all layouts that both runs have.

    ``spearman``: rank correlation, 1 where screening has the layouts in the measured order; None below three
    layouts or where all are equal. ``worst``: the largest error, as a share.
    """

    measure: str
    label: str
    points: tuple[Point, ...]
    spearman: float | None
    worst: float


def compare(cells: Sequence[LayoutResult], screened: Iterable[Trial]) -> list[Comparison]:
    """Return, for each measure that both know, predicted against measured; empty without a common baseline.

    Both as multiples of the baseline: a trace is a fixed amount of work, a trial does as much as it can, per
    operation they mean the same. Time is left out where the job had a pace of its own that all layouts kept:
    it says nothing of them then; what the busiest disk had to do does.
    """
    known = {c.hash: c for c in collect(screened).layouts}
    base = next((c for c in cells if c.baseline), None)
    if base is None or base.hash not in known:
        return []
    out = []
    paced = pace(cells) is not None
    for key, metric in MEASURED.items():
        if not metric.predicted or (key == "time" and paced):
            continue
        points = []
        for cell in cells:
            if cell.hash not in known:
                continue
            guess = ratio(*(known[h].value(metric.predicted) for h in (cell.hash, base.hash)))
            found = cell.against.get(key)
            if cell is base:
                if guess is None or key not in cell.values:
                    continue
                points.append(Point(cell.name, cell.arm, 1.0, 1.0, 1.0, 1.0))
            elif guess is not None and guess > 0 and found is not None:
                points.append(Point(cell.name, cell.arm, guess, found.mean, found.low, found.high))
        if len(points) < 2:
            continue
        out.append(
            Comparison(
                key,
                metric.label,
                tuple(points),
                spearman([p.predicted for p in points], [p.measured for p in points]),
                max((abs(p.error) for p in points), default=0.0),
            )
        )
    return out


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties with their mean rank; None below three values or without
    order.
    """
    if len(a) != len(b):
        raise ValueError("the two differ in length")
    if len(a) < 3:
        return None
    x, y = _ranks(a), _ranks(b)
    return None if len(set(x)) == 1 or len(set(y)) == 1 else correlation(x, y)


def _ranks(values: Sequence[float]) -> list[float]:
    in_order = sorted(values)
    return [in_order.index(v) + (in_order.count(v) + 1) / 2 for v in values]
