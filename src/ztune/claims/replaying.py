"""Claims tried by replay: their layouts under several conditions, each stored as a trial of a run.

What is stored already (the same recording, layout, disks, ARC, seed and engine) is taken from there, so a
test that was cut goes on, and one that is done costs nothing again.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ztune.analysis.metrics import MEASURED
from ztune.claims.accuracy import replayed, smallest, unheld
from ztune.claims.claim import Claim, ComparedLayout, replay_cannot
from ztune.claims.conclusion import REPLAY, Compared, Condition, Scatter, Tried
from ztune.claims.recordings import Recordings
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.places.engine import Engine
from ztune.places.engine_run import sweep
from ztune.places.replay import Replay, unpaced
from ztune.runs import screening
from ztune.runs.asked import suited
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.runs.space import differences, first_round
from ztune.store.db import Store
from ztune.store.records import Trial
from ztune.study import Layout, NamedLayout, Study, profiles
from ztune.study.layout import MIN_ARC
from ztune.study.loader import resolve_profiles
from ztune.trace.reader import Trace
from ztune.units import counted, format_size

PROFILES = ("hdd-7200", "ssd-sata", "nvme")
ARC_SHARES = (1 / 6, 2.0)
"""The ARC's size over the data's: what the workloads' sizes call uncached and cached (databases.memory)."""
SEED = 1  # a study's default
_PER_OPERATION = ("time", "busy", "written", "read", "writes", "reads", "flushes")
_MIB = 1 << 20
NOT_YET = "it was not replayed"


@dataclass(frozen=True)
class Conditions:
    """What claims are replayed under. ``profiles``: names or files. ``arcs``: bytes; none: by the data.

    ``jobs`` 0: one per core as far as memory goes. ``own``: the disks of trials in real time, None for
    the claim's own, with the claim's own ARC: a claim on a time is replayed under these as well.
    """

    profiles: tuple[str, ...] = PROFILES
    arcs: tuple[int, ...] = ()
    jobs: int = 0
    own: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Hearing:
    """Who is told. ``view``: of one run; ``say``: a sentence."""

    view: Callable[[], AbstractContextManager[Observer]]
    say: Callable[[str], None]


@dataclass(frozen=True)
class _Side:
    """One layout under one condition: the study whose base it is, and what the engine is told of it."""

    claim: str
    name: str
    trace: Trace
    study: Study
    spec: str

    @property
    def label(self) -> str:
        return f"{self.claim}: {self.name}"

    @property
    def key(self) -> tuple[str, str]:
        return self.trace.sha, self.spec


@dataclass(frozen=True)
class _Comparison:
    claim: Claim
    condition: Condition
    sides: tuple[_Side, ...]
    again: _Side | None = None
    """The claim's layout on a second recording of its job, where the layouts are of different ones."""

    @property
    def every(self) -> tuple[_Side, ...]:
        """All that is replayed; the second recording last."""
        return self.sides if self.again is None else (*self.sides, self.again)


@dataclass(frozen=True)
class LayoutAlone:
    """A layout that is compared with nothing. ``why``: why it can't be replayed; then the rest is None."""

    name: str
    trace: Trace | None = None
    comparison: _Comparison | None = None
    why: str = ""


@dataclass
class _Stored:
    """What the store has of a recording, by what the engine was told."""

    ok: dict[str, tuple[str, Trial]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Replays:
    """Tries claims by replay. ``command``: what the user called, kept with the runs."""

    store: Store
    engine: Engine
    recordings: Recordings
    conditions: Conditions
    hearing: Hearing
    command: Sequence[str] = ()
    _targets: dict[str, Replay] = field(default_factory=dict)
    _problems: dict[tuple[str, str], str] = field(default_factory=dict)

    def test(self, claims: Iterable[Claim]) -> dict[str, tuple[Tried, ...]]:
        """Return the id of each claim → what was found, one for each condition.

        A claim that can't be tried has one that says why. Raises MissingError where the engine is not right;
        KeyboardInterrupt after what was done is stored.
        """
        found: dict[str, tuple[Tried, ...]] = {}
        comparisons: list[_Comparison] = []
        for claim in claims:
            found[claim.id] = ()
            why = replay_cannot(claim)
            failed = False
            try:
                comparisons += [] if why else self._comparisons(claim)
            except ZtuneError as error:
                # Another recording, or another job, than the claim speaks of is nobody's failure.
                why, failed = str(error), self.recordings.given is None
            if why:
                condition = Condition(REPLAY, "", 0, self.engine.openzfs)
                found[claim.id] = (Tried(condition, untried=why, failed=failed),)
        self._run(comparisons)
        traces = {side.trace.sha for each in comparisons for side in each.every}
        stored = {sha: self._stored(sha) for sha in traces}
        for each in comparisons:
            found[each.claim.id] += (self._tried(each, stored),)
        return {claim: _scattered(several) for claim, several in found.items()}

    # Layouts by themselves

    def alone(self, claim: Claim, side: ComparedLayout) -> LayoutAlone:
        """Return a layout of ``claim`` on its own disks with its own ARC; its job is recorded if need be."""
        try:
            one = self._side(claim, side, self.recordings.of(claim, side), None, None)
        except ZtuneError as error:
            return LayoutAlone(side.name, why=str(error))
        condition = Condition("replay", disks_of(one.study), one.study.layout.arc, self.engine.openzfs)
        return LayoutAlone(side.name, one.trace, _Comparison(claim, condition, (one,)))

    def replay(self, layouts: Iterable[LayoutAlone]) -> None:
        """Replay those of ``layouts`` that are not stored. Raises as ``test`` does."""
        self._run([each.comparison for each in layouts if each.comparison is not None])

    def trials_of(self, layouts: Sequence[LayoutAlone]) -> list[tuple[str, str]]:
        """Return of each of ``layouts`` its stored trial as RUN/N, or "" and why there is none."""
        stored = {sha: self._stored(sha) for sha in {e.trace.sha for e in layouts if e.trace is not None}}
        found = []
        for each in layouts:
            if each.comparison is None or each.trace is None:
                found.append(("", each.why))
                continue
            (side,), known = each.comparison.sides, stored[each.trace.sha]
            if side.spec in known.ok:
                run, trial = known.ok[side.spec]
                found.append((f"{run}/{trial.number}", ""))
            else:
                found.append(("", self._problems.get(side.key) or known.failed.get(side.spec) or NOT_YET))
        return found

    # What is compared

    def _comparisons(self, claim: Claim) -> list[_Comparison]:
        traces = {side.name: self.recordings.of(claim, side) for side in claim.layouts}
        differ = len({trace.sha for trace in traces.values()}) > 1
        second = self.recordings.again(claim, claim.subject) if differ else None
        disks = [None] if own_disks(claim) else list(self.conditions.profiles)
        arcs = self._arcs(claim, traces[claim.subject.name])
        found: dict[Condition, _Comparison] = {}
        own: list[str | None] = []
        if MEASURED[claim.metric].clock and not self.conditions.arcs:
            own = [None] if self.conditions.own and own_disks(claim) else list(self.conditions.own)
        pairs = [*itertools.product(own, [None]), *itertools.product(disks, arcs)]
        for profile, arc in pairs:
            sides = [self._side(claim, side, traces[side.name], profile, arc) for side in claim.layouts]
            again = None if second is None else self._side(claim, claim.subject, second, profile, arc)
            on = disks_of(sides[0].study) if profile is None else profiles.find(profile).name
            condition = Condition(REPLAY, on, sides[0].study.layout.arc, self.engine.openzfs)
            found.setdefault(condition, _Comparison(claim, condition, tuple(sides), again))
        return list(found.values())

    def _arcs(self, claim: Claim, trace: Trace) -> list[int | None]:
        if len({side.layout.arc for side in claim.layouts}) > 1:
            return [None]  # it speaks of them itself
        if self.conditions.arcs:
            return list(self.conditions.arcs)
        size = data_bytes(trace)
        return [max(MIN_ARC, round(size * share / _MIB) * _MIB) for share in ARC_SHARES]

    def _side(
        self, claim: Claim, side: ComparedLayout, trace: Trace, profile: str | None, arc: int | None
    ) -> _Side:
        bare = Study(name=claim.source.study, workload=claim.workload, seed=SEED, layout=side.layout)
        study = suited(bare, trace, profile, None if arc is None else format_size(arc))
        target = self._target(trace)
        target.check(study, study.layout)
        return _Side(claim.id, side.name, trace, study, _text(target.spec(study, study.layout, SEED)))

    def _target(self, trace: Trace) -> Replay:
        if trace.sha not in self._targets:
            self.hearing.say(f"read {trace.path.name}")
            self._targets[trace.sha] = Replay(trace, self.engine)
        return self._targets[trace.sha]

    # What is run

    def _run(self, comparisons: Sequence[_Comparison]) -> None:
        sweep()
        groups: dict[tuple[str, str, Condition], dict[str, _Side]] = {}
        for each in comparisons:
            for side in each.every:
                key = (side.trace.sha, each.claim.source.title, each.condition)
                groups.setdefault(key, {}).setdefault(side.spec, side)
        for (_, _, condition), sides in groups.items():
            trace = next(iter(sides.values())).trace
            self._go_on(trace, sides, condition)
            there = self._stored(trace.sha)
            missing = [side for spec, side in sides.items() if spec not in {*there.ok, *there.failed}]
            while missing:
                together, missing = self._together(missing)
                self._start(together, condition)

    def _go_on(self, trace: Trace, sides: Mapping[str, _Side], condition: Condition) -> None:
        """Finish the runs of earlier tests that were cut, or failed, in what is wanted now."""
        target = self._target(trace)
        for run in self.store.runs():
            if run.trace_sha != trace.sha or not ScreenOptions.of(run).only or self.store.is_live(run):
                continue
            if any(run.versions.get(k) != v for k, v in self._versions().items()):
                continue
            study = run.resolved_study
            left = [t for t in self.store.trials(run.id) if not t.ok]
            if left and all(_text(target.spec(study, t.layout, run.seed)) in sides for t in left):
                self._say(condition, len(left), f"run {run.id} goes on")
                options = replace(ScreenOptions.of(run), jobs=self.conditions.jobs)
                with self.hearing.view() as view:
                    screening.resume(self.store, run, trace, self.engine, options, observer=view)

    def _versions(self) -> dict[str, str]:
        return {"engine": self.engine.version, "openzfs": self.engine.openzfs}

    def _together(self, sides: Sequence[_Side]) -> tuple[list[_Side], list[_Side]]:
        """Return those that fit into one study with the first, and the others."""
        chosen, rest = [sides[0]], list[_Side]()
        for side in sides[1:]:
            try:
                study = one_study([(each.label, each.study) for each in (*chosen, side)])
                self._target(side.trace).check(study, first_round(study)[-1])
                same_job = side.study.layout.job_settings() == sides[0].study.layout.job_settings()
                fits = same_job and [layout.hash for layout in first_round(study)] == [
                    s.study.layout.hash for s in (*chosen, side)
                ]
            except (InputError, ValueError):
                fits = False
            (chosen if fits else rest).append(side)
        return chosen, rest

    def _start(self, sides: Sequence[_Side], condition: Condition) -> None:
        study = one_study([(side.label, side.study) for side in sides])
        name = f"claims of {study.name}, {condition.profile}, ARC {format_size(condition.arc)}"
        self._say(condition, len(sides), study.name)
        options = ScreenOptions(jobs=self.conditions.jobs, budget=len(sides), only=True, sample=1)
        try:
            with self.hearing.view() as view:
                screening.start(
                    self.store, sides[0].trace, study, self.engine, options,
                    name=name, command=self.command, observer=view,
                )  # fmt: skip
        except MissingError:
            raise
        except InputError as error:  # too little memory for such an ARC
            self._problems.update({side.key: str(error) for side in sides})

    def _say(self, condition: Condition, layouts: int, what: str) -> None:
        self.hearing.say(
            f"{what}: {counted(layouts, 'layout')} on disks of {condition.profile} "
            f"with an ARC of {format_size(condition.arc)}"
        )

    # What was found

    def _stored(self, sha: str) -> _Stored:
        found = _Stored()
        for run in self.store.runs():
            if run.trace_sha != sha or run.measured:
                continue
            # What failed with another engine says nothing of this one.
            own = all(run.versions.get(k) == v for k, v in self._versions().items())
            for trial in self.store.trials(run.id):
                if run.recording_of(trial)[1] != sha:
                    continue
                versions = {"engine": trial.engine_version, "openzfs": trial.openzfs_version}
                if trial.ok and versions == self._versions():
                    found.ok.setdefault(_text(trial.spec), (run.id, trial))
                elif trial.status == "failed" and own and ScreenOptions.of(run).only:
                    found.failed[_text(trial.spec)] = trial.error or "it failed without a message"
        return found

    def _tried(self, each: _Comparison, stored: Mapping[str, _Stored]) -> Tried:
        metric = replayed(each.claim.metric, closed=all(unpaced(s.trace) for s in each.sides))
        assert metric is not None  # replay_cannot comes first
        differ = len({s.trace.sha for s in each.sides}) > 1
        by_work = differ and each.claim.metric in _PER_OPERATION
        values: list[float] = []
        trials: list[str] = []
        for side in each.every:
            known = stored[side.trace.sha]
            if side.spec not in known.ok:
                why = self._problems.get(side.key) or known.failed.get(side.spec) or NOT_YET
                return Tried(each.condition, untried=f"{side.name}: {why}", failed=True)
            run, trial = known.ok[side.spec]
            value = metric.read(trial.result or {})
            work = operations(side.trace) if by_work else 1.0
            if value is None or not work:
                what = metric.label if value is None else "number of operations"
                why = f"the {what} of {side.name} is not known"
                return Tried(each.condition, untried=why, failed=True)
            values.append(value / work)
            trials.append(f"{run}/{trial.number}")
        scatter: Scatter = None
        if each.again is not None:
            scatter = _apart(values[0], values.pop())
        elif differ:
            scatter = "not known"
        pairs = zip(each.claim.others, values[1:], strict=True)
        compared = [(other.name, ratio(values[0], value)) for other, value in pairs]
        return Tried(
            each.condition,
            tuple(Compared(name, r, r, r) for name, r in compared),
            smallest(metric),
            tuple(dict.fromkeys(trials)),
            unheld=unheld(metric, flash=on_flash(each.sides[0].study)),
            scatter=scatter,
        )


def _apart(a: float, b: float) -> float:
    """Return how far two values lie apart, a share of the less; infinity where only one is 0."""
    return 0.0 if a == b else max(a, b) / min(a, b) - 1 if min(a, b) > 0 else math.inf


def _scattered(tried: Sequence[Tried]) -> tuple[Tried, ...]:
    """Return ``tried`` with what two recordings of one job differ by as no difference: the most that was
    seen under any condition, since there are only two.
    """
    known = [each.scatter for each in tried if isinstance(each.scatter, float)]
    if not known:
        return tuple(tried)
    most = max(known)
    return tuple(
        replace(each, smallest=(1 + each.smallest) * (1 + most) - 1) if each.compared else each
        for each in tried
    )


def ratio(a: float, b: float) -> float:
    """Return ``a`` / ``b``; 1 where both are 0, infinity where only ``b`` is."""
    return 1.0 if a == b else a / b if b else float("inf")


def data_bytes(trace: Trace) -> int:
    """Return how large the files of data and indexes are in the end, else those of all roles."""
    files = [f for f in trace.manifest.files if f.role is not None]
    data = [f for f in files if f.role in ("data", "index")]
    return sum(max(f.size_start, f.size_end) for f in data or files)


def operations(trace: Trace) -> float:
    """Return how many operations the recorded job did; 0 where that is not known."""
    info = trace.manifest.workload
    return 0.0 if info is None else float(info.result.get("operations") or 0)


def own_disks(claim: Claim) -> bool:
    """Whether the claim speaks of the data disks themselves: no others are put in their place."""

    def disks(layout: Layout) -> set[tuple[str, str]]:
        return {(p.name, v.profile) for p in layout.pools for v in p.vdevs if v.class_ == "data"}

    base = disks(claim.source.base())
    return any(disks(side.layout) != base for side in claim.layouts)


def on_flash(study: Study) -> bool:
    """Return whether some of the disks in use are flash."""
    used = (v.profile for pool in study.layout.used_pools() for v in pool.vdevs)
    return any(study.profile(name).kind == "flash" for name in used)


def disks_of(study: Study) -> str:
    """Return the profiles of the data disks."""
    used = (v for pool in study.layout.used_pools() for v in pool.vdevs if v.class_ == "data")
    return " and ".join(dict.fromkeys(v.profile for v in used))


def one_study(sides: Sequence[tuple[str, Study]]) -> Study:
    """Return the study of ``sides``, each the name of a layout and the study that has it as its base; the
    first is the whole's base. Raises ValueError, InputError where they can't be one.
    """
    label, first = sides[0]
    named = [
        NamedLayout(name=name, set=dict(differences(first.layout, study.layout))) for name, study in sides[1:]
    ]
    base = replace(first.layout, name=label)
    whole = first.model_copy(update={"layout": base, "layouts": tuple(named)})
    checked = Study.model_validate({**whole.to_json(), "profiles": {}})
    return resolve_profiles(checked, {k: v for _, study in sides for k, v in study.profiles.items()})


def _text(spec: object) -> str:
    """Return a spec as text: equal for what is stored and what is to be."""
    return json.dumps(spec, sort_keys=True)
