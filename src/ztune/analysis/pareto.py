"""The trade-off front: layouts that no other beats in everything at once."""

from __future__ import annotations

from collections.abc import Sequence

from ztune.analysis.metrics import MAIN
from ztune.analysis.results import LayoutResult


def front(candidates: Sequence[LayoutResult], metrics: Sequence[str] = MAIN) -> list[LayoutResult]:
    """Return the candidates that no other is at least as good as in all ``metrics`` and better in one.

    Less is better. Equal candidates stay together; those that lack a metric are left out. O(n²).
    """
    rows = [(c, tuple(v for m in metrics if (v := c.value(m)) is not None)) for c in candidates]
    full = [(c, values) for c, values in rows if len(values) == len(metrics)]
    return [c for c, mine in full if not any(_dominates(other, mine) for _, other in full)]


def _dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b
