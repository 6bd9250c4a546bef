"""Which screened layout to recommend: the first in the ranking, or a plainer one that is as good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ztune.analysis.candidates import Candidate
from ztune.analysis.effects import ABSENT, pair_to
from ztune.analysis.rank import Ranking
from ztune.analysis.stats import differs


def plainest(ranking: Ranking, defaults: Mapping[str, str]) -> Candidate:
    """Return the layout to recommend.

    From the first in the ranking, one setting after the other goes back to its default as long as the layout
    that results was screened, is no weaker in durability, and no objective gets worse by more than the
    tolerance: the first objective than the least of all, the others than the first in the ranking. So small
    steps can't add up. Among several such steps the one with the least first objective is taken. Raises
    ValueError for an empty ranking.
    """
    first = ranking.best
    if first is None:
        raise ValueError("the ranking is empty")
    field = [r.candidate for r in ranking.ranked]
    fastest = min(field, key=lambda c: c.value(ranking.minimise[0]) or 0.0)
    current = first
    while True:
        steps = [
            pair.b
            for factor, value in current.settings.items()
            if factor in defaults
            and defaults[factor] not in (value, ABSENT)
            and (pair := pair_to(field, current, factor, defaults[factor])) is not None
            and pair.b.durability.rank <= current.durability.rank
            and as_good(pair.b, fastest, ranking.minimise[:1], ranking.within)
            and as_good(pair.b, first, ranking.minimise[1:], ranking.within)
        ]
        if not steps:
            return current
        current = min(steps, key=lambda c: (c.value(ranking.minimise[0]) or 0.0, c.name, c.hash))


def as_good(candidate: Candidate, than: Candidate, minimise: Sequence[str], within: float) -> bool:
    """Say whether ``candidate`` is worse than ``than`` in none of ``minimise`` by more than ``within``."""
    for metric in minimise:
        mine, theirs = candidate.value(metric), than.value(metric)
        if mine is None or theirs is None:
            return False
        if mine > theirs and differs(candidate.estimates.get(metric), than.estimates.get(metric), within):
            return False
    return True
