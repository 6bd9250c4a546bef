"""Which screened layout to recommend: the first in the ranking, or a plainer one that is as good."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ztune.analysis import demand
from ztune.analysis.effects import ABSENT, pair_to
from ztune.analysis.rank import EXACT, tolerance
from ztune.analysis.results import LayoutResult
from ztune.analysis.stats import differs

# Settings that a short replay flatters. logbias=throughput, zfsprops(7): its blocks end up where reads that
# come long after the trace have to seek for them.
UNSEEN = frozenset({("logbias", "throughput")})


def plainest(
    ranked: Sequence[LayoutResult],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str],
    held: Collection[str] = (),
    errors: Mapping[str, float] = EXACT,
) -> LayoutResult:
    """Return the layout to recommend of ``ranked``, which are in order; at least one.

    ``held``: hashes of those that were held back there, which are no plain step to take: what they cost
    elsewhere is not in the objective. ``errors``: as ``rank.select`` has them.

    From the first in the ranking, one setting after the other goes back to its default as long as the layout
    that results was screened, is no weaker in durability, and no objective gets worse by more than the
    tolerance: the first objective than the least that the first in the ranking is as good as, the others than
    the first in the ranking. So small steps can't add up. Among several such steps the one with the least
    first objective is taken.

    Before that, settings whose price a replay can't show (``UNSEEN``) go back wherever the first objective
    allows it: what they save elsewhere is not the whole account. Where no such step allows it, the first
    layout in the ranking with fewer of them is taken that is as good in all but the bytes written.
    """
    slow = demand.held(ranked) if minimise[0] == "modelled_s" else {}
    field = [c for c in ranked if c.hash not in slow]
    equal = [c for c in field if as_good(ranked[0], c, minimise[:1], within)]  # what has less costs too much
    fastest = min(equal, key=lambda c: c.value(minimise[0]) or 0.0, default=ranked[0])

    def back(start: LayoutResult, unseen: bool) -> LayoutResult:
        """Take steps back to the defaults; with ``unseen`` only of settings in ``UNSEEN``."""
        current = start
        while steps := [
            pair.b
            for factor, value in current.settings.items()
            if factor in defaults
            and defaults[factor] not in (value, ABSENT)
            and (not unseen or (factor.rpartition(".")[2], value) in UNSEEN)
            and (pair := pair_to(field, current, factor, defaults[factor])) is not None
            and (unseen or pair.b.hash not in held)
            and pair.b.judged.no_weaker(current.judged)
            and as_good(pair.b, fastest, minimise[:1], within)
            and (unseen or as_good(pair.b, start, minimise[1:], within, errors))
        ]:
            current = min(steps, key=lambda c: (c.value(minimise[0]) or 0.0, c.name, c.hash))
        return current

    def flattered(layout: LayoutResult) -> int:
        """Return how many of its settings are in ``UNSEEN``."""
        return sum((factor.rpartition(".")[2], value) in UNSEEN for factor, value in layout.settings.items())

    first = back(ranked[0], unseen=True)
    rest = [metric for metric in minimise[1:] if metric != "written"]  # what such a setting spares
    for other in field if flattered(first) else ():
        fewer = flattered(other) < flattered(first) and other.judged.no_weaker(first.judged)
        if (
            fewer
            and as_good(other, fastest, minimise[:1], within)
            and as_good(other, first, rest, within, errors)
        ):
            first = other
            break
    return back(first, unseen=False)


def as_good(
    candidate: LayoutResult,
    than: LayoutResult,
    minimise: Sequence[str],
    within: float,
    errors: Mapping[str, float] = EXACT,
) -> bool:
    """Say whether ``candidate`` is worse than ``than`` in none of ``minimise`` by more than ``within``, or
    than what a sample can tell (``errors``)."""
    for metric in minimise:
        mine, theirs = candidate.value(metric), than.value(metric)
        if mine is None or theirs is None:
            return False
        share = tolerance(metric, within, than, errors)
        if mine > theirs and differs(candidate.estimates.get(metric), than.estimates.get(metric), share):
            return False
    return True
