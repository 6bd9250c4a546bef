"""Two layouts compared within blocks: the ratio of each block, and how well their mean is known.

A block holds every layout once, in random order, close in time. What disturbs a whole block (another tenant,
a warm disk, the hour) is in both layouts of a ratio, and cancels.

Blocks of several hosts are nested in them: each host has a mean of its own, and counts as much as any other
however many blocks it did. What hosts have in common is the mean of their means; its error comes from the
blocks within hosts. Whether hosts agree is asked apart: by what remains with any one of them left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from ztune.analysis import intervals, units

LEVEL = 0.95
_WIDEST = 100.0  # times the mean, either way; beyond, an interval shows that blocks are too few, and no more


@dataclass(frozen=True)
class Ratio:
    """A / B over ``n`` blocks: the geometric mean of the blocks' ratios and its interval.

    ``low`` and ``high`` are 0 and infinity for a single block: one ratio says nothing about its own error.
    ``spread`` is the standard deviation of the ratios' logarithms: about 0.02 where blocks differ by 2 %.

    Of several hosts: ``by_host``, the mean of each, and ``without_one``, the widest that the interval can get
    (at 95 %) with one of them left out; else empty and None.
    """

    n: int
    mean: float
    low: float
    high: float
    spread: float
    level: float
    by_host: Mapping[str, float] = field(default_factory=dict)
    without_one: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.high)

    @property
    def shown(self) -> bool:
        """Whether there is an interval that people can believe."""
        return self.known and self.high <= _WIDEST * self.mean and self.mean <= _WIDEST * self.low

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, which have no infinity."""
        if not self.known:
            return {"n": self.n, "mean": self.mean}
        rest = self.without_one
        return {**asdict(self), "without_one": list(rest) if rest and math.isfinite(rest[1]) else None}

    def alone(self) -> str:
        """Return the host without which the others don't show that the ratio is above 1; "" for none."""
        if not self.by_host or self.without_one is None or self.low <= 1 or self.without_one[0] > 1:
            return ""
        return max(self.by_host, key=lambda host: self.by_host[host])

    @property
    def text(self) -> str:
        """The ratio for people, with its interval where there is one: "×0.62 (0.60 … 0.64)"."""
        if self.shown:
            return units.times(self.mean, self.low, self.high)
        return units.times(self.mean) + (f" (not known: {self.n} blocks)" if self.known else "")


def paired(
    a: Mapping[int, float],
    b: Mapping[int, float],
    level: float = LEVEL,
    seed: int = 1,
    hosts: Mapping[int, str] | None = None,
) -> Ratio | None:
    """Return how A compares with B over the blocks that have both, or None if no block has.

    ``a``, ``b``: value by block, all above 0 (others are left out). ``hosts``: the host of each block, where
    there are several.
    """
    logs = log_ratios(a, b)
    if not logs:
        return None
    groups: dict[str, list[float]] = {}
    for block, log in logs.items():
        groups.setdefault((hosts or {}).get(block, ""), []).append(log)
    return _of_hosts(groups, level, seed) if len(groups) > 1 else summary(list(logs.values()), level, seed)


def summary(logs: Sequence[float], level: float = LEVEL, seed: int = 1) -> Ratio:
    """Return the ratio whose logarithm each block measured: ``logs``, at least one."""
    middle = math.exp(fmean(logs))
    if len(logs) == 1:
        return Ratio(1, middle, 0.0, math.inf, 0.0, level)
    low, high = intervals.of_mean(logs, level, seed)
    return Ratio(len(logs), middle, math.exp(low), math.exp(high), stdev(logs), level)


def _of_hosts(groups: Mapping[str, Sequence[float]], level: float, seed: int) -> Ratio:
    """Return the ratio of blocks on two hosts or more: ``groups``, the logarithms by host."""
    count = sum(map(len, groups.values()))
    mean, low, high, spread = intervals.of_means(list(groups.values()), level)
    widest = [0.0, math.inf]
    if math.isfinite(high):
        ends = []
        for left in groups:
            rest = [logs for host, logs in groups.items() if host != left]
            if len(rest) > 1:
                ends.append(intervals.of_means(rest, LEVEL)[1:3])
            else:
                ends.append(
                    intervals.of_mean(rest[0], LEVEL, seed) if len(rest[0]) > 1 else (-math.inf, math.inf)
                )
        widest = [math.exp(min(end[0] for end in ends)), math.exp(max(end[1] for end in ends))]
    by_host = {host: math.exp(fmean(logs)) for host, logs in groups.items()}
    return Ratio(
        count, math.exp(mean), math.exp(low), math.exp(high), spread, level, by_host, (widest[0], widest[1])
    )


def log_ratios(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    """Return block → ln(A / B) of each block that has both above 0, in the order of blocks."""
    return {k: math.log(a[k] / b[k]) for k in sorted(a.keys() & b.keys()) if a[k] > 0 and b[k] > 0}


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
