"""What a power-of-two histogram tells: its total, and between which bounds a quantile lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ztune.observe.model import Buckets


def bucket(value: float) -> int:
    """Return the lower bound of the power-of-two bucket that holds ``value``; 0 for what is below 1."""
    return 1 << (int(value).bit_length() - 1) if value >= 1 else 0


def total(buckets: Mapping[int, int]) -> int:
    """Return how many there are in all."""
    return sum(buckets.values())


def added(several: Iterable[Mapping[int, int]]) -> Buckets:
    """Return the sum of histograms, by rising bound."""
    found: Buckets = {}
    for one in several:
        for low, n in one.items():
            found[low] = found.get(low, 0) + n
    return dict(sorted(found.items()))


def bucket_of(buckets: Mapping[int, int], share: float) -> int | None:
    """Return the lower bound of the bucket in which the quantile ``share`` (0 to 1) lies; None without any.

    A histogram knows no more: the value is at least this, and below twice this.
    """
    wanted, seen = share * total(buckets), 0
    for low, n in sorted(buckets.items()):
        seen += n
        if n and seen >= wanted:
            return low
    return None


def rows(buckets: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return (lower bound, count) from the smallest to the largest, empty buckets between them included."""
    have = {low: n for low, n in buckets.items() if n}
    found = [(0, have[0])] if 0 in have else []
    positive = [low for low in have if low > 0]
    if positive:
        low, most = min(positive), max(positive)
        while low <= most:
            found.append((low, have.get(low, 0)))
            low *= 2
    return found
