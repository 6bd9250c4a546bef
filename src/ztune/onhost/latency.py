"""How long operations took, as results say it: mean, p50, p90, p95, p99, p999 and max, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def summary(ordered: Sequence[float], unit: float = 1.0) -> dict[str, float]:
    """Return the figures of sorted times; none if there are none.

    Args:
        ordered: the times.
        unit: how many of what they are counted in make a millisecond: 1000 for microseconds.
    """
    if not ordered:
        return {}
    found = {
        "mean": math.fsum(ordered) / len(ordered),
        **{name: quantile(ordered, share) for name, share in _SHARES.items()},
        "max": ordered[-1],
    }
    return {name: round(value / unit, 4) for name, value in found.items()}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0…1) of ``ordered`` lies, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def tells(count: float, share: float) -> bool:
    """Return whether ``count`` calls have a quantile ``share`` (0…1) of their own: one call or more lies
    beyond it. The p99 of fewer than 100 is about the longest of them, and is not printed."""
    return count * (1 - share) > 1 - 1e-9


def share_of(figure: str) -> float | None:
    """Return what "p99" is as a share; None for what is no quantile."""
    return _SHARES.get(figure)


def of_bins(bins: Mapping[float, int], mean: float, most: float) -> dict[str, float]:
    """Return the figures from a histogram: times → how many. ``most``, the longest, bounds every share."""
    total = sum(bins.values())
    found = {"mean": mean}
    for name, share in _SHARES.items():
        left = share * total
        for value in sorted(bins):
            left -= bins[value]
            if left <= 0:
                found[name] = min(value, most)
                break
    return {**found, "max": most}


def undilated(found: Mapping[str, float], dilation: float) -> dict[str, float]:
    """Return the figures of a run in which everything took ``dilation`` times as long as in reality."""
    return {name: ms / dilation for name, ms in found.items()}


def by_kind(times: Mapping[str, Sequence[float]], dilation: float) -> dict[str, dict[str, float]]:
    """Return the figures of each kind of operation that was done, from sorted times in µs."""
    return {kind: undilated(summary(us, 1000), dilation) for kind, us in times.items() if us}
