"""How the layouts of a run stand: in order, what decides, and the one to recommend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ztune.analysis import verdict
from ztune.analysis.basis import basis
from ztune.analysis.choose import UNSEEN, plainest
from ztune.analysis.metrics import Basis, replayed, table
from ztune.analysis.pace import Pace, pace
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.rank import RankedLayout, defaults_of, rank
from ztune.analysis.resolve import effects
from ztune.analysis.results import Failed, LayoutResult, Results, collect
from ztune.analysis.sampled import of_ratios
from ztune.errors import InputError
from ztune.store.records import Run, Trial
from ztune.study import DurabilityClass, Objective
from ztune.study.durability import Bar


@dataclass(frozen=True)
class Standing:
    """All layouts of a run, best first. After them, without a rank: those that take hardware which is not
    there, then those set apart for their durability.

    ``minimise``: the metrics that order them, most important first; ``within``: the share below which
    differences don't matter. ``chosen``: the layout to recommend; None while nothing is ranked, and of trials
    until the baseline has a result. ``allowed``: the worst durability class that is ranked. ``defaults``: by
    setting, the value that counts as the default. Of trials: ``outcome``, what was decided, in the form of
    ``Run.outcome``; ``pace`` of the job.
    """

    run: Run
    basis: Basis
    found: Results
    minimise: tuple[str, ...]
    within: float
    places: tuple[RankedLayout, ...]
    failed: tuple[Failed, ...]
    chosen: LayoutResult | None
    allowed: DurabilityClass
    defaults: Mapping[str, str]
    outcome: Mapping[str, Any] = field(default_factory=dict)
    pace: Pace | None = None

    @property
    def ranked(self) -> tuple[RankedLayout, ...]:
        """The layouts that compete."""
        return tuple(p for p in self.places if p.rank is not None)

    @property
    def weaker(self) -> tuple[RankedLayout, ...]:
        """The layouts that are set apart for what a power cut may lose."""
        return tuple(p for p in self.places if p.weak)

    @property
    def to_buy(self) -> tuple[RankedLayout, ...]:
        """The layouts that would compete if their hardware were there, in their own order."""
        return tuple(p for p in self.places if p.to_buy and not p.weak)

    @property
    def first(self) -> LayoutResult | None:
        """The layout in the first place."""
        return self.ranked[0].result if self.ranked else None

    @property
    def baseline(self) -> LayoutResult | None:
        """The layout that the user lives with today, if it has a result."""
        return self.found.baseline

    @property
    def lacking(self) -> str:
        """Why trials with results have no answer, to be a sentence or its end; "" where they have one."""
        if not self.run.measured or not self.found.layouts or self.baseline is not None:
            return ""
        return f"the baseline has no result yet; `ztune run --resume {self.run.id}` goes on"

    @property
    def passed_over(self) -> str:
        """Why the layout in the first place is not the one to recommend, to follow "but"; "" where it is."""
        if self.chosen is self.first or self.chosen is None or self.first is None:
            return ""
        if self.basis != "modelled":
            return "is not known to be better than the baseline"
        kept = self.chosen.settings
        for factor, value in self.first.settings.items():
            name = factor.rpartition(".")[2]
            if (name, value) in UNSEEN and kept.get(factor) != value:
                return f"a short replay flatters its {name}={value}"
        return "is as good, and further from the defaults"

    @property
    def quiet(self) -> float:
        """What differences of the first metric count as shares of at least: ``Need.quiet`` where that is
        modelled time, else 0."""
        need = None if self.chosen is None or self.minimise[:1] != ("modelled_s",) else self.chosen.need
        return 0.0 if need is None else need.quiet

    def label(self, key: str) -> str:
        """Return a metric's name; seconds of an emulated lab are marked so."""
        return table(self.basis, self.found.per_operation)[key].named(self.basis)

    def caution(self) -> str | None:
        """Return what must be said beside any advice from this run, or None."""
        if self.basis != "emulated":
            return None
        return (
            "The target ran without hardware virtualisation: its operations and bytes are those of real "
            "ZFS, its seconds are not those of any machine. Layouts are ordered by operations and "
            "bytes; do not choose by the times."
        )

    def columns(self, most: int = 7) -> list[str]:
        """Return the metrics that a table of trials shows: first what orders, then what explains.

        Beside the mean latency stands its p99.
        """
        usual = ["time", "latency", "p99", "ios", "written", "read", "space", "cpu", "mount_cpu"]
        if self.basis == "emulated":
            usual = ["ios", "written", "read", "space", "time"]
        first = ["latency", "p99"] if self.minimise[:1] == ("latency",) else []
        known = {k for p in self.places for k in p.result.values}
        return [k for k in dict.fromkeys([*first, *self.minimise, *usual]) if k in known][:most]


def standing(run: Run, trials: Sequence[Trial], objective: Objective | None = None) -> Standing:
    """Return how the finished ones of ``trials`` stand under ``objective`` (default: the run's).

    What was measured stands by the run's own decision, or by one made anew where ``objective`` minimises
    something else first. Raises InputError for a metric that these trials don't have.
    """
    # Another age is another question: docs/age.md.
    base = next((t.layout for t in trials if t.is_baseline), None)
    trials = [t for t in trials if base is None or t.layout.age == base.age]
    found = collect(trials, basis(run))
    if run.measured:
        if objective is not None:
            _must_be_known(objective, run, found)
        return _measured(run if objective is None else replace(run, objective=objective), found)
    goal = objective or run.objective
    defaults = defaults_of(found.layouts, found.baseline)
    bar = Bar.of(goal.durability, found.base_layout)
    keys = replayed(goal.minimise)
    errors = of_ratios(run, trials)
    places, failed = rank(found, keys, goal.within, bar, defaults, verdict.hardware(run, found), errors)
    ranked = [p.result for p in places if p.rank is not None]
    held = {p.result.hash for p in places if p.note}
    chosen = plainest(ranked, keys, goal.within, defaults, held, errors) if ranked else None
    # What it was held back for was the saving of a setting that a short replay flatters (``UNSEEN``).
    places = tuple(replace(p, note="") if p.result is chosen else p for p in places)
    return Standing(
        run=run,
        basis="modelled",
        found=found,
        minimise=keys,
        within=goal.within,
        places=places,
        failed=failed,
        chosen=chosen,
        allowed=bar.worst,
        defaults=defaults,
    )


_WHY = {
    "leader": "leads", "worse": "worse than the leader", "equal": "equal to the leader",
    "open": "not resolved",
}  # fmt: skip


def _must_be_known(objective: Objective, run: Run, found: Results) -> None:
    for word in objective.minimise:
        if not any(m.key in c.values for m in verdict.answering(word) for c in found.layouts):
            raise InputError(f"no trial of run {run.id} knows {word}, so it can't be minimised there")


def _measured(run: Run, found: Results) -> Standing:
    keys = verdict.goals(run, found.layouts)
    bar = verdict.bar_of(run, found)
    needs = verdict.hardware(run, found)
    able = [c for c in found.layouts if bar.admits(c.layout)]
    strong = [c for c in able if not needs[c.hash]]
    more = [c for c in able if needs[c.hash]]
    weak = [c for c in found.layouts if c not in able]
    outcome = _outcome(run, found, keys, more)
    leader = next((c for c in strong if c.arm == outcome.get("leader")), None)
    words = {o["arm"]: o["standing"] for o in outcome.get("others", [])}
    lagging = verdict.lagging(keys, found)

    def behind(result: LayoutResult) -> bool:
        return lagging is not None and result.arm in lagging.behind

    values = {c.arm: c.values[keys[0]] for c in found.layouts if keys and keys[0] in c.values}
    level = effects(values, found.hosts)

    def order(result: LayoutResult) -> tuple[bool, bool, float]:
        if lagging is not None and behind(result):
            done, asked = lagging.rates[result.arm]
            return (True, True, -done / asked)
        return (result is not leader, False, level.get(result.arm, math.inf))

    def place(rank: int | None, result: LayoutResult, word: str) -> RankedLayout:
        lag = lagging.lag(result.arm) if lagging is not None else ""
        return RankedLayout(
            rank,
            result,
            ": ".join(filter(None, (_WHY.get(word, ""), lag))),
            standing=word,
            to_leader=_to(result, leader, keys[0]) if keys and not behind(result) else None,
            lag=lag,
            to_buy=needs[result.hash],
            weak=result in weak,
        )

    places = [
        place(i, c, "leader" if c is leader else words.get(c.arm, ""))
        for i, c in enumerate(sorted(strong, key=order), start=1)
    ]
    places += [place(None, c, "") for some in (more, weak) for c in sorted(some, key=order)]
    first = places[0].result if strong and found.baseline is not None else None
    # The baseline stays where nothing is known to be better than it.
    kept = [p.result for p in places if p.result is found.baseline and p.rank and p.standing != "worse"]
    return Standing(
        run=run,
        basis=basis(run),
        found=found,
        minimise=keys,
        within=verdict.resolution_of(run),
        places=tuple(places),
        failed=found.failed,
        chosen=kept[0] if kept else first,
        allowed=run.objective.durability,
        defaults=defaults_of(found.layouts, found.baseline),
        outcome=outcome,
        pace=pace(found.layouts),
    )


def _outcome(
    run: Run, found: Results, keys: Sequence[str], to_buy: Sequence[LayoutResult]
) -> Mapping[str, Any]:
    """Return the run's own decision; made anew where an older ztune decided by another measure, and where
    layouts of ``to_buy`` took part."""
    stored: dict[str, Any] = run.outcome
    if not stored or not keys:
        return stored
    took_part = {stored.get("leader"), *(o["arm"] for o in stored.get("others", []))}
    bought = any(c.arm in took_part for c in to_buy)
    if stored.get("measure") == keys[0] and not bought:
        return stored
    least, most = run.options.get("blocks", (1, 1))
    among = replace(found, layouts=tuple(c for c in found.layouts if c not in to_buy))
    again = verdict.judge(run, among, verdict.resolution_of(run), most - least + 1)
    if again is None:
        return {} if bought else stored
    names = {c.arm: c.name for c in found.layouts}
    return verdict.outcome(*again, str(stored.get("reason", "")), names)


def _to(result: LayoutResult, leader: LayoutResult | None, key: str) -> Ratio | None:
    if leader is None or result is leader or key not in result.values or key not in leader.values:
        return None
    return paired(result.values[key], leader.values[key], hosts=result.hosts)
