"""Medians with intervals, and when two numbers differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ztune.analysis import intervals
from ztune.analysis.metrics import Basis

# Below this many repeats a percentile bootstrap of the median is no more than the range; we then call it so.
BOOTSTRAP_FROM = 5


@dataclass(frozen=True)
class Estimate:
    """A median, what it rests on and how well it is known. ``low``/``high`` are None for a single replay."""

    n: int
    median: float
    low: float | None = None
    high: float | None = None
    kind: Literal["one replay", "range", "bootstrap 95 %"] = "one replay"
    basis: Basis = "modelled"


def estimate(values: Sequence[float], seed: int = 1, basis: Basis = "modelled") -> Estimate:
    """Return the median of ``values`` with an interval: their range for 2–4, a 95 % bootstrap from 5 on.

    ``seed`` fixes the resampling, so that the same records always give the same report.
    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no values")
    middle = float(median(values))
    if len(values) == 1:
        return Estimate(1, middle, basis=basis)
    if len(values) < BOOTSTRAP_FROM:
        return Estimate(len(values), middle, float(min(values)), float(max(values)), "range", basis)
    low, high = intervals.of_median(values, seed)
    return Estimate(len(values), middle, low, high, "bootstrap 95 %", basis)


def ratio(after: float | None, before: float | None) -> float | None:
    """Return after / before; 1 if both are 0; None if only ``before`` is 0 or either is absent."""
    if after is None or before is None:
        return None
    if before == 0:
        return 1.0 if after == 0 else None
    return after / before


def differs(after: Estimate | None, before: Estimate | None, within: float) -> bool:
    """Say whether two estimates differ by more than ``within`` (a share) and by more than their intervals.

    The share is of the smaller one, so that the answer does not depend on which is called first. From nothing
    to something differs. An absent estimate can't be told to differ.
    """
    if after is None or before is None:
        return False
    if (
        (
            after.low is not None
            and after.high is not None
            and before.low is not None
            and before.high is not None
        )
        and after.low <= before.high
        and before.low <= after.high
    ):
        return False
    small, large = sorted((abs(after.median), abs(before.median)))
    return large > small * (1 + within)


def upper_bound(tries: int) -> float:
    """Return the probability per try above which none in ``tries`` would be seen by fewer than 1 of 20.

    About 3 divided by ``tries``: the rule of three. J. A. Hanley, A. Lippman-Hand, If nothing goes wrong, is
    everything all right?, JAMA 249 (1983) 1743.
    """
    return float(1 - 0.05 ** (1 / tries))
