"""Two layouts compared within blocks: the ratio of each block, and how well their mean is known.

A block holds every layout once, in random order, close in time. What disturbs a whole block (another tenant,
a warm disk, the hour) is in both layouts of a ratio, and cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ztune.analysis import intervals, units

LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """A / B over ``n`` blocks: the geometric mean of the blocks' ratios and its interval.

    ``low`` and ``high`` are 0 and infinity for a single block: one ratio says nothing about its own error.
    ``spread`` is the standard deviation of the ratios' logarithms: about 0.02 where blocks differ by 2 %.
    """

    n: int
    mean: float
    low: float
    high: float
    spread: float
    level: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.n > 1

    @property
    def text(self) -> str:
        """The ratio for people, with its interval where there is one: "×0.62 (0.60 … 0.64)"."""
        return units.times(self.mean, self.low, self.high) if self.known else units.times(self.mean)


def paired(
    a: Mapping[int, float], b: Mapping[int, float], level: float = LEVEL, seed: int = 1
) -> Ratio | None:
    """Return how A compares with B over the blocks that have both, or None if no block has.

    ``a``, ``b``: value by block, all above 0 (others are left out).
    """
    logs = log_ratios(a, b)
    if not logs:
        return None
    return summary(logs, level, seed)


def summary(logs: Sequence[float], level: float = LEVEL, seed: int = 1) -> Ratio:
    """Return the ratio whose logarithm each block measured: ``logs``, at least one."""
    middle = math.exp(fmean(logs))
    if len(logs) == 1:
        return Ratio(1, middle, 0.0, math.inf, 0.0, level)
    low, high = intervals.of_mean(logs, level, seed)
    return Ratio(len(logs), middle, math.exp(low), math.exp(high), stdev(logs), level)


def log_ratios(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    """Return ln(A / B) of each block that has both above 0, in the order of blocks."""
    return [math.log(a[k] / b[k]) for k in sorted(a.keys() & b.keys()) if a[k] > 0 and b[k] > 0]


def blocks_needed(ratio: Ratio, resolution: float, level: float = LEVEL, most: int = 10_000) -> int | None:
    """Return how many blocks in all it would take to settle ``ratio``, if its mean and spread stay as they
    are.

    Settled means: its interval at ``level`` is on one side of 1, or within ``resolution`` (0.02 = 2 %) of 1.
    None where more than ``most`` would not do, or a single block gives no spread.
    """
    if not ratio.known:
        return None
    limit, mean = math.log1p(resolution), abs(math.log(ratio.mean))
    allowed = max(mean, limit - mean)

    def settled(n: int) -> bool:
        return intervals.student(p, n - 1) * ratio.spread / math.sqrt(n) < allowed

    p = 0.5 + level / 2
    if not settled(most):
        return None
    low, high = ratio.n, most  # more blocks never make it less settled
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if settled(middle) else (middle + 1, high)
    return low
