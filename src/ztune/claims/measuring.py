"""Claims tried in real time: the database's own job on a claim's layouts, on a mount, as ordinary runs.

A run is repeated block by block until the claim's question is answered, or the most blocks were not enough.
What the store has of the same layouts, job, disks and versions is taken from there, so a test that was cut
goes on, and one that is done costs nothing again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED
from ztune.analysis.pace import pace
from ztune.analysis.paired import paired
from ztune.analysis.resolve import adjusted
from ztune.analysis.results import collect
from ztune.claims.claim import Claim, ComparedLayout, replay_cannot
from ztune.claims.conclusion import Compared, Condition, Tried, state, undecided
from ztune.claims.recordings import Recordings
from ztune.claims.replaying import SEED, Hearing, disks_of, one_study, own_disks
from ztune.databases import registry
from ztune.errors import InputError, ZtuneError
from ztune.places.channel import Place
from ztune.runs import refusals, runner
from ztune.runs.asked import changed
from ztune.runs.options import TrialOptions
from ztune.runs.plan import RunJob, workload_job
from ztune.runs.space import first_round
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout, Objective, Study
from ztune.study.layout import with_settings
from ztune.units import format_size


def takes_trials(claim: Claim) -> bool:
    """Return whether trials tell more of ``claim`` than a replay: of times, and where no replay answers."""
    return not claim.cannot and (MEASURED[claim.metric].clock or bool(replay_cannot(claim)))


@dataclass(frozen=True)
class _Asked:
    """A claim under one condition. ``arms``: the name of each side → what its layout means, the claim's own
    first; the study has them in that order.
    """

    claim: Claim
    condition: Condition
    study: Study
    job: RunJob
    versions: Mapping[str, str]
    arms: Mapping[str, str]


@dataclass
class Measurements:
    """Tries claims at ``place``. ``recordings``: knows the job's parameters; nothing is recorded.

    ``profiles``: of the data disks, ``arcs``: bytes; none: the claim's own. ``command``: what the user
    called, kept with the runs.
    """

    store: Store
    place: Place
    recordings: Recordings
    hearing: Hearing
    options: TrialOptions = field(default_factory=TrialOptions)
    profiles: tuple[str, ...] = ()
    arcs: tuple[int, ...] = ()
    command: Sequence[str] = ()
    _there: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise MissingError, InputError where nothing can be tried at the place."""
        with self.place:
            self._there = self.place.about_host()

    def test(self, claim: Claim) -> tuple[Tried, ...]:
        """Return what was found, one for each condition; after ``check``.

        What can't be tried says why. Raises KeyboardInterrupt after what was done is stored, and the trial
        that ran destroyed what it made.
        """
        found: dict[Condition, Tried] = {}
        for profile, arc in itertools.product(
            [None] if own_disks(claim) else self.profiles or [None],
            [None] if len({side.layout.arc for side in claim.layouts}) > 1 else self.arcs or [None],
        ):
            try:
                asked = self._asked(claim, profile, arc)
                if asked.condition not in found:
                    found[asked.condition] = self._tried(asked)
            except ZtuneError as error:
                nowhere = Condition(self.place.name, "", 0, "")
                # What such a layout or job can't be had for is told before anything runs.
                failed = not isinstance(error, InputError)
                found[nowhere] = Tried(nowhere, untried=str(error), failed=failed)
        return tuple(found.values())

    # What is asked

    def _asked(self, claim: Claim, profile: str | None, arc: int | None) -> _Asked:
        common = self.recordings.parameters(claim, claim.subject)
        made = registry.make(claim.workload, common)
        job = workload_job(made)
        settings = registry.settings_of(claim.workload, common)
        declared = registry.declared(claim.workload, common)
        sides: list[tuple[str, Study]] = []
        for side in claim.layouts:
            own = self._settings(claim, side, common, settings)
            layout = with_settings(side.layout, {f"database.{name}": value for name, value in own.items()})
            bare = Study(name=claim.source.study, workload=claim.workload, seed=SEED, layout=layout)
            size = None if arc is None else format_size(arc)
            sides.append((f"{claim.id}: {side.name}", changed(bare, profile, size, settings, declared)))
        try:
            study = one_study(sides)
        except ValueError as error:
            raise InputError(f"its layouts are no one study: {error}") from None
        if [layout.hash for layout in first_round(study)] != [one.layout.hash for _, one in sides]:
            raise InputError("its layouts are not changes of one of them, as a run's are")
        asked = MEASURED[claim.metric].asked
        if asked:  # what a view shows the best by
            study = study.model_copy(update={"objective": Objective(minimise=asked[:1])})
        job = replace(job, version=made.check())
        versions = refusals.versions_of(self._there, job)
        layout = study.layout
        condition = Condition(self.place.name, disks_of(study), layout.arc, versions.get("openzfs", ""))
        arms = zip(claim.layouts, first_round(study), strict=True)
        return _Asked(claim, condition, study, job, versions, {s.name: _meaning(study, a) for s, a in arms})

    def _settings(
        self, claim: Claim, side: ComparedLayout, common: Mapping[str, Any], settings: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the database's settings that make the job with ``common`` that of ``side``: the trials of a
        run have one job. Raises InputError where no settings do.
        """
        own = self.recordings.parameters(claim, side)
        theirs = registry.settings_of(claim.workload, own)
        found = {name: value for name, value in theirs.items() if settings.get(name) != value}
        for name in own:
            if own[name] != common.get(name) and not any(
                setting == name or setting.endswith(f"_{name}") for setting in found
            ):
                raise InputError(
                    f"its layouts differ in the job's {name}, which is no setting of the database: "
                    "the trials of one run have one job"
                )
        return found

    # What is run

    def _tried(self, asked: _Asked) -> Tried:
        claim = asked.claim
        tried = self._found(asked)
        if state(claim, tried) not in ("holds", "fails"):
            self._run(asked)
            tried = self._found(asked)
        return tried

    def _run(self, asked: _Asked) -> None:
        def left(run: Run, trials: Sequence[Trial]) -> set[str]:
            """Return the arms that must run again for the claim to be told."""
            names = {asked.arms[name]: name for name in asked.arms}
            arms = {names[_meaning(run.resolved_study, t.layout)]: t.arm for t in trials}
            tried = self._compared(asked, [(run, trials)])
            blind = {
                name
                for name, arm in arms.items()
                if any(t.ok and t.arm == arm and not _value(claim, t) for t in trials)
            }
            if claim.subject.name in blind:
                return set()
            return {arms[name] for name in undecided(claim, tried) - blind if name in arms}

        claim = asked.claim
        for run in self._runs(asked):
            trials = self.store.trials(run.id)
            same = {_meaning(run.resolved_study, t.layout) for t in trials} == set(asked.arms.values())
            if not same:
                continue
            most = TrialOptions.of(run).blocks[1]
            done = max(t.block for t in trials)
            if done < most or not all(t.ok for t in trials):
                self.hearing.say(f"run {run.id} goes on")
                with self.hearing.view() as view:
                    runner.resume(self.store, run, self.place, view, left)
                return
            if done >= self.options.blocks[1]:
                return  # as often as was asked for, and not told apart
        self.hearing.say(
            f"{claim.id}: measure {len(asked.arms)} layouts on disks of {asked.condition.profile} "
            f"with an ARC of {format_size(asked.condition.arc)}"
        )
        request = runner.Request(
            study=asked.study, layouts=first_round(asked.study), job=asked.job, place=self.place,
            options=self.options, seed=SEED, name=f"claim {claim.id}", command=self.command, undecided=left,
        )  # fmt: skip
        with self.hearing.view() as view:
            runner.start(self.store, request, view)

    # What was found

    def _runs(self, asked: _Asked) -> list[Run]:
        """Return the stored runs of the same job, place and versions, the latest first."""
        found = []
        target = {"name": self.place.name, **self.place.describe()}
        for run in self.store.runs():
            if not run.measured or self.store.is_live(run) or _text(run.target) != _text(target):
                continue
            options = TrialOptions.of(run)
            if options.aa or options.saved or options.settle != self.options.settle:
                continue
            job = RunJob.of(run)
            mine, theirs = ([j.name, j.version, dict(j.params)] for j in (asked.job, job))
            versions = {k: v for k, v in run.versions.items() if k != "ztune"}
            if _text(mine) == _text(theirs) and all(
                versions.get(k) == v for k, v in asked.versions.items() if k != "ztune"
            ):
                found.append(run)
        return found[::-1]

    def _found(self, asked: _Asked) -> Tried:
        return self._compared(asked, [(run, self.store.trials(run.id)) for run in self._runs(asked)])

    def _compared(self, asked: _Asked, runs: Sequence[tuple[Run, Sequence[Trial]]]) -> Tried:
        """Return the ratio of the claim's layout to each other one, each from the run with most blocks of
        both.
        """
        claim = asked.claim
        best: dict[str, tuple[Compared, int, list[str]]] = {}
        errors: dict[str, str] = {}
        instead = ""
        for run, trials in runs:
            study = run.resolved_study
            layouts = collect(trials, basis(run)).layouts
            results = {_meaning(study, one.layout): one for one in layouts}
            key = claim.metric
            if key in _SPEED and pace(layouts) is not None:
                # As runs do: who keeps the pace takes as long as everybody else who does.
                if key == "per_second":
                    errors.setdefault(claim.subject.name, _PACED)
                    continue
                key, instead = "latency", MEASURED["latency"].label
            for name, meaning in asked.arms.items():
                mine = [t for t in trials if _meaning(study, t.layout) == meaning]
                if meaning not in results and any(t.status == "failed" for t in mine):
                    errors.setdefault(name, next(t.error or "" for t in mine if t.status == "failed"))
            subject = results.get(asked.arms[claim.subject.name])
            for side in claim.others:
                other = results.get(asked.arms[side.name])
                if subject is None or other is None:
                    continue
                a, b = (one.values.get(key, {}) for one in (subject, other))
                ratio = paired(a, b, adjusted(TrialOptions.of(run).looks, len(claim.others)))
                if ratio is not None and (side.name not in best or ratio.n > best[side.name][1]):
                    cited = [f"{run.id}/{n}" for n in sorted({*subject.trials, *other.trials})]
                    best[side.name] = Compared.of(side.name, ratio), ratio.n, cited
        if not best:
            why = "; ".join(f"{name}: {error}" for name, error in errors.items())
            why = why or f"no trial tells the {MEASURED[claim.metric].label}"
            return Tried(asked.condition, untried=why, failed=bool(errors))
        return Tried(
            asked.condition,
            tuple(best[side.name][0] for side in claim.others if side.name in best),
            self.options.resolution,
            tuple(dict.fromkeys(t for _, _, cited in best.values() for t in cited)),
            instead=instead,
            failed=bool(errors),
            untried="; ".join(f"{name}: {error}" for name, error in errors.items()),
        )


_SPEED = ("time", "per_second")
_PACED = "its job does as much per second as it is asked to, under each layout; `-p rate=0` lets it run free"


def _value(claim: Claim, trial: Trial) -> float | None:
    return MEASURED[claim.metric].read(trial.result or {})


def _meaning(study: Study, layout: Layout) -> str:
    """Return what a layout is on the disks of its study: equal for what is stored and what is to be."""
    profiles = {name: study.profile(name).model_dump(mode="json") for name in layout.profiles()}
    return _text([layout.hash, profiles])


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
