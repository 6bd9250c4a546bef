"""Intervals of a median and of a mean, by resampling and by Student's t.

The one place in this room that asks for NumPy and SciPy, and it does so with the first interval: they take
half of the time of a command that shows a screening, where each layout was replayed once and has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

RESAMPLES = 2000
"""Of the bootstrap. 2,000 put the ends of a 95 % percentile interval within about 1 % of its width (Efron &
Tibshirani 1993, ch. 13: 1,000 or more)."""

_KEPT = 8192
"""How many intervals are kept: whoever judges a run after each trial asks for those of all trials again."""


def of_median(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Return the ends of the 95 % percentile bootstrap for the median of ``values``.

    ``seed`` fixes the resampling, so that the same records always give the same report.
    """
    return _of_median(tuple(values), seed)


@lru_cache(_KEPT)
def _of_median(values: tuple[float, ...], seed: int) -> tuple[float, float]:
    import numpy as np

    medians = np.median(_resampled(values, seed), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def of_mean(values: Sequence[float], level: float, seed: int = 1) -> tuple[float, float]:
    """Return the ends of an interval for the mean of ``values`` (two or more) at the confidence ``level``.

    The bootstrap's percentile interval, its percentiles widened for small samples (Hesterberg 2015, "What
    Teachers Should Know About the Bootstrap", section 4.2), and never narrower than Student's: resampling 3
    values that happen to lie on one side of 0 would otherwise give an interval that excludes 0, which happens
    by chance one time in four.
    """
    return _of_mean(tuple(values), level, seed)


@lru_cache(_KEPT)
def _of_mean(values: tuple[float, ...], level: float, seed: int) -> tuple[float, float]:
    import numpy as np

    n, mean = len(values), fmean(values)
    t = student(0.5 + level / 2, n - 1)
    half = t * stdev(values) / math.sqrt(n)
    means = _resampled(values, seed).mean(axis=1)
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * t)
    low, high = np.quantile(means, [tail, 1 - tail])
    return min(float(low), mean - half), max(float(high), mean + half)


def _resampled(values: tuple[float, ...], seed: int) -> npt.NDArray[np.float64]:
    """Return as many values for each of the ``RESAMPLES``, drawn from ``values``."""
    import numpy as np

    return np.asarray(values, dtype=float)[_drawn(len(values), seed)]


@lru_cache(16)
def _drawn(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return which of ``count`` values are drawn: always the same."""
    import numpy as np

    return np.random.default_rng(seed).choice(count, size=(RESAMPLES, count))


def of_means(groups: Sequence[Sequence[float]], level: float) -> tuple[float, float, float, float]:
    """Return the mean of the groups' means, the ends of its interval, and the spread within groups.

    Each of two groups or more counts the same, whatever its size. The error comes from the spread within
    groups, pooled: Student's t with as many degrees of freedom as there are values beyond one for each group
    (a fixed effect of each group; Montgomery, Design and Analysis of Experiments, on nested designs). Without
    any the interval is infinite.
    """
    means = [fmean(group) for group in groups]
    mean, free = fmean(means), sum(map(len, groups)) - len(groups)
    if free < 1:
        return mean, -math.inf, math.inf, 0.0
    inside = sum((x - m) ** 2 for group, m in zip(groups, means, strict=True) for x in group)
    spread = math.sqrt(inside / free)
    half = student(0.5 + level / 2, free) * spread * math.sqrt(sum(1 / len(g) for g in groups)) / len(groups)
    return mean, mean - half, mean + half, spread


def student(p: float, freedom: int) -> float:
    """Return the quantile ``p`` (above 0, below 1) of Student's t with ``freedom`` degrees (1 or more)."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))
