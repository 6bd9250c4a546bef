"""Two layouts compared within blocks: the ratio of each block, and how well their mean is known.

A block holds every layout once, in random order, close in time. What disturbs a whole block (another tenant,
a warm disk, the hour) is in both layouts of a ratio, and cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000  # see stats.RESAMPLES
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


def paired(
    a: Mapping[int, float], b: Mapping[int, float], level: float = LEVEL, seed: int = 1
) -> Ratio | None:
    """Return how A compares with B over the blocks that have both, or None if no block has.

    ``a``, ``b``: value by block, all above 0 (others are left out). See ``interval`` for the interval.
    """
    logs = log_ratios(a, b)
    if not logs:
        return None
    mean = float(np.mean(logs))
    if len(logs) == 1:
        return Ratio(1, math.exp(mean), 0.0, math.inf, 0.0, level)
    low, high = interval(logs, level, seed)
    return Ratio(len(logs), math.exp(mean), math.exp(low), math.exp(high), float(np.std(logs, ddof=1)), level)


def log_ratios(a: Mapping[int, float], b: Mapping[int, float]) -> list[float]:
    """Return ln(A / B) of each block that has both above 0, in the order of blocks."""
    return [math.log(a[k] / b[k]) for k in sorted(a.keys() & b.keys()) if a[k] > 0 and b[k] > 0]


def interval(values: Sequence[float], level: float = LEVEL, seed: int = 1) -> tuple[float, float]:
    """Return the ends of an interval for the mean of ``values`` (two or more) at the confidence ``level``.

    The bootstrap's percentile interval, its percentiles widened for small samples (Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap", section 4.2), and never narrower than Student's: resampling 3
    values that happen to lie on one side of 0 would otherwise give an interval that excludes 0, which happens
    by chance one time in four.
    """
    data = np.asarray(values, dtype=float)
    n = len(data)
    mean, deviation = float(data.mean()), float(data.std(ddof=1))
    t = student(0.5 + level / 2, n - 1)
    half = t * deviation / math.sqrt(n)
    rng = np.random.default_rng(seed)
    means = rng.choice(data, size=(RESAMPLES, n)).mean(axis=1)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t)
    low, high = np.quantile(means, [tail, 1 - tail])
    return min(float(low), mean - half), max(float(high), mean + half)


def student(p: float, freedom: int) -> float:
    """Return the quantile ``p`` (above 0, below 1) of Student's t with ``freedom`` degrees (1 or more)."""
    # Here, as SciPy takes a third of a second to load, and most commands compare nothing.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


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
        return student(p, n - 1) * ratio.spread / math.sqrt(n) < allowed

    p = 0.5 + level / 2
    if not settled(most):
        return None
    low, high = ratio.n, most  # more blocks never make it less settled
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if settled(middle) else (middle + 1, high)
    return low
