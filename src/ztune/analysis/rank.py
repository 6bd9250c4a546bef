"""The order of layouts: durability class first, then the objective with its tolerance.

docs/recommendation.md states the rule in words and gives an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ztune.analysis import units
from ztune.analysis.candidates import Candidate, Collected, Failed
from ztune.analysis.metrics import METRICS, resolve
from ztune.errors import InputError
from ztune.study import DurabilityClass
from ztune.study.durability import Bar


@dataclass(frozen=True)
class Ranked:
    """One layout in its place, with the sentence that says why it stands there."""

    rank: int
    candidate: Candidate
    why: str


@dataclass(frozen=True)
class Ranking:
    """All layouts of a run in order. ``weaker`` are those set apart: below the durability that the objective
    allows, or not known to be as durable.
    """

    minimise: tuple[str, ...]
    within: float
    durability: DurabilityClass  # the worst class allowed
    ranked: tuple[Ranked, ...]
    weaker: tuple[Ranked, ...]
    failed: tuple[Failed, ...]
    baseline: Candidate | None

    @property
    def best(self) -> Candidate | None:
        """The layout in the first place, or None if none is durable enough."""
        return self.ranked[0].candidate if self.ranked else None


def departures(settings: Mapping[str, str], defaults: Mapping[str, str]) -> int:
    """Return how many settings are not at their default; settings without a known default don't count."""
    return sum(1 for key, value in settings.items() if key in defaults and defaults[key] != value)


def select(
    candidates: Sequence[Candidate],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str] | None = None,
) -> tuple[Candidate, str]:
    """Return the candidate that the objective picks from ``candidates``, and what decided, as a clause.

    For each metric of ``minimise`` in turn, those within ``within`` (a share, 0.05 = 5 %) of the least stay.
    Of those left after the last, which the objective can't tell apart, the one with the fewest departures
    from ``defaults`` wins; then the least first metric, then the name. Raises ValueError for no candidates.
    """
    left = [c for c in candidates if all(c.value(m) is not None for m in minimise)]
    if not left:
        raise ValueError("no candidate has all metrics of the objective")
    why = "the only one left"
    decided = False
    for position, metric in enumerate(minimise):
        if len(left) == 1:
            break
        least = min(_value(c, metric) for c in left)
        near = [c for c in left if _value(c, metric) <= least * (1 + within)]
        if len(near) < len(left):
            label = METRICS[metric].label
            if len(near) == 1:
                why = (
                    f"least {label}"
                    if position == 0
                    else f"least {label} of {len(left)} within {_share(within)}"
                )
                decided = True
        left = near
    if len(left) == 1:
        return left[0], why if decided else "least by the objective"
    bases = defaults or {}
    chosen = min(left, key=lambda c: (departures(c.settings, bases), _value(c, minimise[0]), c.name, c.hash))
    others = len(left) - 1
    few = sorted(departures(c.settings, bases) for c in left)
    if few[0] < few[1]:
        return chosen, f"nearest to the defaults of {others + 1} that the objective can't tell apart"
    return chosen, f"least {METRICS[minimise[0]].label} of {others + 1} that the objective can't tell apart"


def _value(candidate: Candidate, metric: str) -> float:
    value = candidate.value(metric)
    assert value is not None  # select() dropped those without
    return value


def _share(within: float) -> str:
    return units.show(within, "share")


def order(
    candidates: Sequence[Candidate],
    minimise: Sequence[str],
    within: float,
    defaults: Mapping[str, str] | None = None,
) -> list[Ranked]:
    """Rank all ``candidates``: place n is what ``select`` picks when places 1 … n−1 are taken away."""
    left = [c for c in candidates if all(c.value(m) is not None for m in minimise)]
    ranked: list[Ranked] = []
    while left:
        chosen, why = select(left, minimise, within, defaults)
        ranked.append(Ranked(len(ranked) + 1, chosen, why))
        left = [c for c in left if c is not chosen]
    return ranked


def rank(
    collected: Collected,
    minimise: Sequence[str] = ("modelled_s", "allocated", "written"),
    within: float = 0.05,
    durability: DurabilityClass | str | Bar = DurabilityClass.NOTHING,
    defaults: Mapping[str, str] | None = None,
) -> Ranking:
    """Rank the layouts of a run; those that ``durability``, the worst class or a bar, keeps out go to
    ``weaker``.

    ``within`` is a share (0.05 = 5 %). Raises InputError for an unknown metric, an empty ``minimise`` or a
    share outside 0 … 1.
    """
    keys = tuple(dict.fromkeys(resolve(name) for name in minimise))
    if not keys:
        raise InputError(
            "the objective minimises nothing; name at least one of modelled_s, allocated, written"
        )
    if not 0 <= within < 1:
        raise InputError(f"within is {within:g}; it is a share from 0 to below 1, such as 0.05 for 5 %")
    bar = durability if isinstance(durability, Bar) else Bar(DurabilityClass(durability))
    usable = [c for c in collected.candidates if all(c.value(k) is not None for k in keys)]
    lacking = [
        Failed(
            c.name,
            c.hash,
            c.trials,
            "the engine did not report " + ", ".join(METRICS[k].label for k in keys if c.value(k) is None),
            c.baseline,
        )
        for c in collected.candidates
        if c not in usable
    ]
    strong = [c for c in usable if bar.admits(c.layout)]
    weak = [c for c in usable if not bar.admits(c.layout)]
    return Ranking(
        minimise=keys,
        within=within,
        durability=bar.worst,
        ranked=tuple(order(strong, keys, within, defaults)),
        weaker=tuple(order(weak, keys, within, defaults)),
        failed=(*collected.failed, *lacking),
        baseline=collected.baseline,
    )
