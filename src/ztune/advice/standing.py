"""How the trials of a run stand: ranked by the objective, and the layout that is to be recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ztune.advice.choose import plainest
from ztune.advice.evidence import defaults_of
from ztune.analysis.candidates import Candidate, Collected, collect
from ztune.analysis.rank import Ranking, rank
from ztune.store.records import Trial
from ztune.study import DurabilityClass, Objective
from ztune.study.durability import Bar


@dataclass(frozen=True)
class Standing:
    """How the layouts of a run compare.

    ``allowed``: the worst durability class that is ranked. ``defaults``: by setting, the value that counts
    as the default.
    """

    collected: Collected
    ranking: Ranking
    defaults: Mapping[str, str]
    allowed: DurabilityClass

    @property
    def chosen(self) -> Candidate | None:
        """The layout to recommend; None while nothing is ranked."""
        return plainest(self.ranking, self.defaults) if self.ranking.ranked else None


def standing(trials: Sequence[Trial], objective: Objective) -> Standing:
    """Return how the finished ones of ``trials`` stand under ``objective``."""
    collected = collect(trials)
    defaults = defaults_of(collected.candidates, collected.baseline)
    base = next((t.layout for t in trials if t.is_baseline), None)
    bar = Bar.of(objective.durability, base)
    ranking = rank(collected, objective.minimise, objective.within, bar, defaults)
    return Standing(collected, ranking, defaults, bar.worst)
