"""Goes through a run: block by block, trial by trial, each stored as soon as it ended.

``start`` begins a run, ``resume`` goes on with one that was cut at any point; both return the run when it is
done.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ztune import __version__
from ztune.analysis import verdict
from ztune.analysis.resolve import Decision
from ztune.databases.database import of_workload
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import interrupt, room
from ztune.onhost.jobs import beside as two_jobs
from ztune.onhost.jobs import registry as jobs
from ztune.onhost.trial import spec as specs
from ztune.places import bundle
from ztune.places.channel import Lost, Place, ask
from ztune.places.mount import MountPlace
from ztune.runs import plan, prepared, stopping
from ztune.runs import trial as trials
from ztune.runs.ending import ending
from ztune.runs.follow import KEY, Followed, Following, ScreenedPrior
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.plan import RunJob, held
from ztune.store import environment
from ztune.store.db import Store
from ztune.store.records import BOTH, NEIGHBOUR, Run, Trial
from ztune.study import Layout, Study

RECONNECT = 3  # attempts to bring a lost place up again
LOST_TRIALS = 2  # so often may a trial take its place down before it counts as failed
_PAUSE_S = 5.0
_THE_USERS = ("command", "http")  # whose databases only the user knows


Undecided = Callable[[Run, Sequence[Trial]], Collection[str]]
"""The question that blocks are repeated for: returns the arms that must run again beside the baseline, none
once it is answered."""


class LoadError(ZtuneError):
    """The database can't be brought to its starting state."""


@dataclass(frozen=True)
class Request:
    """What to run where. ``layouts``: the baseline first.

    ``undecided``: the question to answer instead of which layout is the best. ``prior``: a screening, whose
    layouts join those of ``layouts``.
    """

    study: Study
    layouts: Sequence[Layout]
    job: RunJob
    place: Place
    options: TrialOptions = field(default_factory=TrialOptions)
    seed: int | None = None
    name: str | None = None
    command: Sequence[str] = ()
    source_run: str | None = None
    undecided: Undecided | None = None
    prior: ScreenedPrior | None = None


def start(store: Store, request: Request, observer: Observer | None = None) -> Run:
    """Run the layouts of ``request`` and return the run.

    What is wrong with the input is found before the run is stored. Raises InputError, MissingError,
    ZtuneError; KeyboardInterrupt after the trial tidied up and the run was marked interrupted.
    """
    study, options = request.study, request.options
    prior = None if options.aa else request.prior
    may_join = [] if prior is None else prior.layouts_of(study)
    _check_options(options, [*request.layouts, *may_join])
    layouts = [study.layout] if options.aa else plan.renamed(study, request.layouts)
    options = replace(options, settle=options.settle or _caches(request.job.params))
    jobs_of = {repr(one.job_settings()): (one, request.job.under(one, study.layout)) for one in layouts}
    for layout in layouts:
        _, job = jobs_of[repr(layout.job_settings())]
        _check_roles(job, layout, study)
        _check_settings(job, layout)
    if options.saved is not None and isinstance(request.place, MountPlace):
        request.place.check_keeping(Path(options.saved), cold=options.settle == "cold")
    copied = options.saved is None and not _loads_where_it_measures(request.job, [*layouts, *may_join])
    if copied and request.place.shared(Path("/")) is not None:
        for layout, job in jobs_of.values():
            prepared.require_room(job.name, job.params, layout.database)
    watcher = observer or Observer()
    with _up(request.place, watcher) as place:
        for layout in layouts:
            place.check(study, layout)
        if prior is not None:
            prior = _possible(prior, study, request.job, place, watcher)
            prior = prior.with_others([one for one in layouts if one.hash != study.layout.hash])
            options = replace(options, follow=prior.to_json())
        there = place.about_host()
        described = place.describe()
        # A load that can't be slowed down is refused now, not by each trial after its database was made.
        for _, job in jobs_of.values():
            jobs.get(job.name)(job.params, dilation=_dilation(described))
        run = store.create_run(
            kind="run",
            study=study,
            environment={**environment.collect(), "target": there},
            versions=versions_of(there, request.job),
            seed=study.seed if request.seed is None else request.seed,
            name=request.name,
            command=list(request.command),
            options=options.to_json(),
            target={"name": place.name, **described},
            job=request.job.to_json(),
            source_run=request.source_run,
        )
        runner = _Runner(store, run, place, request.job, options, layouts, watcher, request.undecided)
        layouts += runner.joining()
        _add_block(store, run, layouts, 1, options)
        return runner.go()


def resume(
    store: Store,
    run: Run,
    place: Place,
    observer: Observer | None = None,
    undecided: Undecided | None = None,
) -> Run:
    """Go on with ``run``: what finished stays; what failed or was cut is tried again, after a clean-up.

    ``undecided``: as in ``Request``; a run is resumed for another question as well.

    Raises InputError where another process works on it, or the target's OpenZFS is another than the run's.
    """
    if not run.measured:
        raise InputError(f"run {run.id} is a replay; `ztune screen --resume {run.id}` goes on with it")
    if store.is_live(run):
        raise InputError(store.busy(run))
    job, options = RunJob.of(run), TrialOptions.of(run)
    watcher = observer or Observer()
    with _up(place, watcher):
        now = versions_of(place.about_host(), job)
        for part, before in run.versions.items():
            if part != "ztune" and now.get(part, before) != before:
                raise InputError(
                    f"run {run.id} was made under {part} {before}, {place.name} has {now[part]} now: results "
                    "are not to be mixed; start a new run without --resume"
                )
        layouts = list({t.layout_hash: t.layout for t in store.trials(run.id)}.values())
        base = run.resolved_study.layout.hash
        layouts.sort(key=lambda layout: layout.hash != base)
        runner = _Runner(store, run, place, job, options, layouts, watcher, undecided)
        # First of all: what was left may take the room that all the rest needs.
        runner.clean()
        for layout in layouts:
            place.check(run.resolved_study, layout)
        runner.run = store.resume_run(run.id)
        return runner.go()


def _possible(
    prior: ScreenedPrior, study: Study, job: RunJob, place: Place, observer: Observer
) -> ScreenedPrior:
    """Return ``prior`` without layouts that can't run at ``place``, and say which; raise what the best of
    them is refused for if none can."""
    refused: dict[str, InputError] = {}

    def possible(layout: Layout) -> bool:
        try:
            _check_settings(job.under(layout, study.layout), layout)
            place.check(study, layout)
        except InputError as error:
            refused[layout.name] = error
            return False
        return True

    left = prior.only(study, possible)
    if not left.layouts:
        raise next(iter(refused.values()))
    if refused:
        name, error = next(iter(refused.items()))
        observer.say(f"{len(refused)} of the screened layouts can't run there, such as {name}: {error}")
    return left


def _check_options(options: TrialOptions, layouts: Sequence[Layout]) -> None:
    least, most = options.blocks
    if not 1 <= least <= most:
        raise InputError(f"--blocks is {least}:{most}; write MIN:MAX with 1 ≤ MIN ≤ MAX, such as 3:8")
    if not 0 < options.resolution < 1:
        raise InputError(f"--resolution is {options.resolution:g}; it is a share such as 2%")
    if len(layouts) < 2 and not options.aa:
        raise InputError("there is only the baseline to run; a comparison needs another layout")


def _check_roles(job: RunJob, layout: Layout, study: Study) -> None:
    for role in job.roles:
        if layout.dataset_of(role) is None:
            raise InputError(
                f'role {role} of workload {job.workload} has no dataset in layout "{layout.name}" of study '
                f'"{study.name}"; add it to the roles of a dataset'
            )


def _check_settings(job: RunJob, layout: Layout) -> None:
    """Refuse a layout with a setting that its job would refuse, or whose value can't be."""
    made = jobs.get(job.name)(job.params, layout.database)
    check = getattr(made, "check_settings", None)  # another's job may do without
    try:
        if check is not None:
            check()
    except InputError as error:
        raise InputError(f'layout "{layout.name}": {error}') from None


def _caches(params: Mapping[str, Any]) -> str:
    """Return how the caches are when a job begins: a load that goes on for a time is that of a database in
    use, whose ARC a warm-up of seconds on slow disks would not fill; what runs once finds its files uncached.
    """
    return "warm" if "seconds" in params else "cold"


def versions_of(there: dict[str, Any], job: RunJob) -> dict[str, str]:
    """Return the versions that a run of ``job`` is made under; ``there``: what a place says of its host."""
    zfs = there.get("openzfs") or {}
    found = {
        "ztune": __version__,
        # In user space there is no module, but a library.
        "openzfs": str(zfs.get("kernel") or zfs.get("library", "")),
        "ztune-mount": str(there.get("mount", "")),
        "kernel": str(there.get("kernel", "")),
        "database": job.version,
    }
    return {k: v for k, v in found.items() if v}


@contextmanager
def _up(place: Place, observer: Observer) -> Iterator[Place]:
    """Bring the place up, and down at the end; a place that is lost may be brought up again inside."""
    place.__enter__()
    try:
        yield place
    finally:
        with contextlib.suppress(Lost):
            place.__exit__(None, None, None)


def _add_block(store: Store, run: Run, layouts: Sequence[Layout], number: int, options: TrialOptions) -> None:
    """Store the trials of one block as pending, in their random order: the plan survives whatever happens."""
    base = run.resolved_study.layout.hash
    by_arm = {layout.hash: (layout, 0) for layout in layouts}
    if options.aa:
        by_arm[f"{layouts[0].hash}+1"] = (layouts[0], 1)
    # With a neighbour each layout runs in each block alone, beside it, and without it.
    conditions = _WHICH if run.job.get("beside") else ("",)
    everything = {f"{arm} {c}".strip(): (arm, c) for arm in by_arm for c in conditions}
    for key in plan.order(list(everything), number, run.seed):
        arm, condition = everything[key]
        layout, twin = by_arm[arm]
        target = ", ".join(filter(None, (str(run.target["name"]), condition)))
        baseline = layout.hash == base and not twin and not condition
        store.add_trial(run.id, layout, target=target, is_baseline=baseline, block=number, twin=twin)


_WHICH = {"": two_jobs.FIRST, BOTH: two_jobs.BOTH, NEIGHBOUR: two_jobs.NEIGHBOUR}
"""The condition of a trial → which of two jobs run."""


def _dilation(described: dict[str, Any]) -> float:
    return float(described.get("dilation") or 1.0)


class _Runner:
    """A run that is going on."""

    def __init__(
        self,
        store: Store,
        run: Run,
        place: Place,
        job: RunJob,
        options: TrialOptions,
        layouts: Sequence[Layout],
        observer: Observer,
        undecided: Undecided | None = None,
    ) -> None:
        self.undecided = undecided
        self.store, self.run, self.place, self.job = store, run, place, job
        self.options, self.layouts, self.observer = options, list(layouts), observer
        prior = ScreenedPrior.kept(options)
        study = run.resolved_study
        self._following = None if prior is None else Following(study, prior, options, run.seed)
        self._followed: Followed | None = None
        self._news: list[str] = []
        self.began = time.monotonic()
        self._lost: dict[int, int] = {}
        self._held = ExitStack()
        self._starts: dict[str, dict[str, Any] | LoadError] = {}
        # Once: all trials of a run are made by the same program, whatever becomes of its sources meanwhile.
        self._bundle = bundle.build(job.modules)
        described = place.describe()
        self._dilation = _dilation(described)
        self._patience = max(1.0, float(described.get("patience") or 1.0))

    @property
    def program(self) -> str:
        """The trial program's path at the place, copied there if need be."""
        return self.place.put(self._bundle)

    def go(self) -> Run:
        """Run to the end and return the run."""
        self.observer.begin(self.run, self._all(), 1)
        self._tell()
        with ending(self.store, self.run):
            try:
                with self._held:
                    if self.job.params.get("busy"):
                        self._calibrate()
                    reason = self._blocks()
            except (KeyboardInterrupt, Lost):
                self._judge("interrupted")
                raise
            self._judge(reason)
        return self.store.run(self.run.id)

    def _calibrate(self) -> None:
        """Find the rate that keeps the processors as busy as asked, with the base layout; all trials have it.

        Raises ZtuneError where none does, Lost, and KeyboardInterrupt when the user stopped it.
        """
        layout = self.run.resolved_study.layout
        trial = replace(
            next(t for t in self._all() if t.layout_hash == layout.hash), id=0, number=0, block=0, attempts=[]
        )
        self.observer.say(f"once for all trials: find the rate, with {layout.name}")
        spec = self._spec(trial, self._start(trial), self._place_spec(layout))
        said: list[str] = []

        def tell(step: str, state: str, share: float, text: str) -> None:
            if text.startswith("find the rate") and text not in said:
                said.append(text)
                self.observer.say(text)

        ended = trials.run(self.place, self.program, spec, tell, self.observer.say)
        if ended.asked or ended.status == "stopped":
            raise KeyboardInterrupt
        if ended.status == "lost":
            raise Lost(ended.error or f"{self.place.name} is gone")
        if ended.status != "ok" or ended.result is None:
            why = ended.error or "it failed without a message"
            raise ZtuneError(f"busy={self.job.params['busy']}: {why}")
        found = ended.result["job"]["details"]["calibration"]
        params = {**self.job.params, "rate": found["rate"], "busy": 0}
        self.job = replace(self.job, params=params, calibration=found)
        self.run = self.store.note_run(self.run.id, job=self.job.to_json())
        # The state of the database is kept under its parameters.
        self._starts.clear()
        self.observer.say(held(found))

    def _all(self) -> list[Trial]:
        return self.store.trials(self.run.id)

    def _blocks(self) -> str:
        """Run blocks until one of the limits; return which."""
        least, most = self.options.blocks
        while True:
            waiting = [t for t in self._all() if t.status == "pending"]
            number = max((t.block for t in self._all()), default=0)
            self.observer.round(number, len(waiting), (most - number) * len(waiting))
            for trial in waiting:
                if self._late():
                    return "time"
                self._one(trial)
            everything = self._all()
            if not any(t.ok for t in everything):
                return "failed"
            decision = self._judge("running")
            asked = self._asked(everything, decision)
            new = [layout.hash for layout in self.joining()]
            self._tell()
            if number >= least and asked is not None and not asked and not new and not self.options.aa:
                return "settled"
            if number >= most:
                return "blocks"
            usual = [t for t in everything if not t.condition]
            arms = list(dict.fromkeys([*(t.arm for t in usual), *new]))
            base = next((t.arm for t in everything if t.is_baseline), arms[0])
            wanted = stopping.next_arms(arms, base, asked, usual, self.options, new)
            chosen = [layout for layout in self.layouts if layout.hash in wanted]
            if len(wanted) < 2:
                return "failed"
            _add_block(self.store, self.run, chosen, number + 1, self.options)

    def _asked(self, trials: Sequence[Trial], decision: Decision | None) -> set[str] | None:
        """Return the arms that must run again beside the baseline; None while nothing can be compared."""
        if self.undecided is not None:
            return set(self.undecided(self.run, trials))
        if decision is None:
            return None
        return {decision.leader, *decision.open} if decision.open else set()

    def joining(self) -> list[Layout]:
        """Return the screened layouts that join the next block; none without a screening."""
        if self._following is None:
            return []
        now = self._followed or self._following.judge(self.run, self._all(), None)
        found = [self._following.layouts[name] for name in now.next]
        for layout in found:
            if layout not in self.layouts:
                self.layouts.append(layout)
                self._news.append(f"{layout.name} joins: {self._following.said(layout)}")
        return found

    def _tell(self) -> None:
        """Say which layouts joined since it was said last."""
        for text in self._news:
            self.observer.say(text)
        self._news.clear()

    def _late(self) -> bool:
        limit = self.options.time_limit_s
        return limit is not None and time.monotonic() - self.began > limit

    def _judge(self, reason: str) -> Decision | None:
        """Store where the comparison stands; return the decision, None while there is none."""
        everything = self._all()
        found = stopping.judge(self.run, everything, self.options)
        if found is None:
            return None
        names = {t.arm: t.layout_name + (" (again)" if t.twin else "") for t in everything}
        outcome = verdict.outcome(*found, reason, names)
        if self._following is not None:
            self._followed = self._following.judge(self.run, everything, found[1])
            outcome[KEY] = self._followed.to_json()
        self.run = self.store.note_run(self.run.id, outcome=outcome)
        self.observer.judged(everything, outcome)
        return found[1]

    def _one(self, trial: Trial) -> None:
        """Run one trial and store its end."""
        interrupt.check()
        try:
            start = self._start(trial)
            place = self._place_spec(trial.layout)
        except (InputError, MissingError, LoadError) as lacking:
            # What fails while it is being stopped fails for that, and is no fault of the layout's.
            interrupt.check()
            # Of this layout alone: the next may do without what is missing.
            self._store_failure(trial, str(lacking))
            return
        except ZtuneError as broken:
            interrupt.check()
            self.store.start_trial(trial.id, {})
            self._lose(trial, trials.Ended(error=str(broken)))
            return
        spec = self._spec(trial, start, place)
        self.store.start_trial(trial.id, spec)
        self.observer.trial(trial)
        try:
            with room.RoomWatch("the trial", getattr(self.place, "fills", tuple)):
                tell = functools.partial(self.observer.step, trial)
                ended = trials.run(self.place, self.program, spec, tell, self.observer.say)
        except room.NoRoomError as full:
            ended = trials.Ended(status="failed", error=str(full), error_step="load")
        except KeyboardInterrupt:
            self.store.reset_trial(trial.id, "stopped by the user")
            raise
        if ended.left and ended.status != "lost":
            self.observer.say(f"left behind by trial {trial.number}: {'; '.join(ended.left)}")
        if ended.status == "stopped" or (ended.asked and ended.result is None):
            # Also where the trial calls it a failure: what is cut fails.
            self.store.reset_trial(trial.id, "stopped by the user")
            raise KeyboardInterrupt
        if ended.status == "lost":
            self._lose(trial, ended)
            return
        error = (
            None
            if ended.status == "ok" and ended.result is not None
            else (ended.error or "it failed without a message")
        )
        result = ended.to_store()
        if ended.left:
            result = {**(result or {}), "warnings": [*(result or {}).get("warnings", []), *ended.left]}
        finished = self.store.finish_trial(
            trial.id,
            result=result,
            error=error,
            wall_s=ended.wall_s,
            openzfs=self.run.versions.get("openzfs"),
            series=ended.series.write(self.run.id, trial.number),
        )
        self.observer.finished(finished, ended.steps)
        if ended.asked:
            raise KeyboardInterrupt
        if error is not None and ended.error_step is None:
            self.clean()  # it ended without a word: killed, perhaps, before it could tidy up

    def _store_failure(self, trial: Trial, sentence: str) -> None:
        self.store.start_trial(trial.id, {})
        self.observer.trial(trial)
        self.observer.finished(self.store.finish_trial(trial.id, error=sentence, wall_s=0.0), {})

    def _lose(self, trial: Trial, ended: trials.Ended) -> None:
        """The place went away under a trial: bring it up again, tidy up, and let the trial wait for its
        turn.
        """
        why = ended.error or f"{self.place.name} is gone"
        count = self._lost[trial.id] = self._lost.get(trial.id, 0) + 1
        self.store.reset_trial(trial.id, why)
        self.observer.say(f"trial {trial.number} was cut: {why}")
        self._reconnect(why)
        self.clean()
        again = self.store.trial(self.run.id, trial.number)
        if count >= LOST_TRIALS:
            self._store_failure(again, f"it was cut {count} times: {why}")
        else:
            self._one(again)

    def _reconnect(self, why: str) -> None:
        last: ZtuneError = Lost(why)
        for attempt in range(RECONNECT):
            with contextlib.suppress(ZtuneError):
                self.place.__exit__(None, None, None)
            if attempt:
                time.sleep(_PAUSE_S * 3**attempt)
            try:
                self.place.__enter__()
                self.place.about_host()
                return
            except ZtuneError as error:
                interrupt.check()
                last = error
        raise Lost(f"{last}; `ztune run --resume {self.run.id}` goes on where it was cut")

    def clean(self) -> None:
        """Destroy what dead trials left at the place; say what stayed."""
        for sentence in trials.clean(self.place, self.program, lambda _: None, self._patience):
            self.observer.say(f"clean-up: {sentence}")

    def _spec(self, trial: Trial, start: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        attempt = len(trial.attempts)
        layout = trial.layout
        return {
            "format": specs.FORMAT,
            "version": specs.VERSION,
            "run": self.run.id,
            "trial": f"{self.run.id}-{trial.number:04d}" + (f"-{attempt}" if attempt else ""),
            "seed": self.run.seed + trial.block,
            "state": self.place.state,
            "place": place,
            "layout": {
                **{k: v for k, v in layout.to_json().items() if k != "durability"},
                "tunables": {**self.place.tunables(layout), **layout.tunables},
            },
            "job": {
                "name": self.job.name,
                "params": self._params(trial),
                "database": dict(layout.database),
            },
            "start": start,
            "settle": self.options.settle,
            "probes": dict(self.options.probes),
            "dilation": self._dilation,
            "patience": self._patience,
        }

    def _params(self, trial: Trial) -> dict[str, Any]:
        params = dict(self.job.under(trial.layout, self.run.resolved_study.layout).params)
        return {**params, two_jobs.WHICH: _WHICH[trial.condition]} if self.job.beside else params

    def _place_spec(self, layout: Layout) -> dict[str, Any]:
        spec = self.place.place_spec(layout)
        if self.options.saved is not None and isinstance(self.place, MountPlace):
            return {**spec, **self.place.keeping(layout, self.options.saved)}
        return spec

    def _start(self, trial: Trial) -> dict[str, Any]:
        """Return how the trial gets its database: loaded, or copied from a state that was loaded once."""
        layout = trial.layout
        if self.options.saved is not None and not isinstance(self.place, MountPlace):
            return _on_target(
                self.place, self.options.saved, self.job.under(layout, self.run.resolved_study.layout), layout
            )
        key = repr(layout.job_settings())
        if key not in self._starts:
            try:
                self._starts[key] = self._prepare(trial)
            except LoadError as error:
                # The next layout would wait as long, for the same.
                interrupt.check()
                self._starts[key] = error
        found = self._starts[key]
        if isinstance(found, LoadError):
            raise found
        return found

    def _prepare(self, trial: Trial) -> dict[str, Any]:
        may_join = [] if self._following is None else self._following.layouts.values()
        every = [*self.layouts, *may_join]  # the same in each block, whatever has joined
        if self.place.shared(Path("/")) is None or _loads_where_it_measures(self.job, every):
            return {"kind": "load"}
        said: list[str] = []

        def progress(step: str, share: float) -> None:
            if step not in said:
                said.append(step)
                self.observer.say(f"once for all trials: {step}")
            self.observer.step(trial, "load", "progress", share, step)

        try:
            job, database = (
                self.job.under(trial.layout, self.run.resolved_study.layout),
                dict(trial.layout.database),
            )
            state = prepared.prepare(job.name, job.params, database, progress)
        except (InputError, MissingError):
            raise
        except ZtuneError as error:
            raise LoadError(f"the database can't be loaded on this host: {error}") from None
        self._held.enter_context(prepared.in_use(state))
        there = self.place.shared(state)
        return {"kind": "load"} if there is None else {"kind": "copy", "from": there}


def _loads_where_it_measures(job: RunJob, layouts: Iterable[Layout]) -> bool:
    """Say whether each trial fills its database itself, instead of copying one that was filled once.

    Only a load on the layout's own datasets shows that a database can't live with a split, such as a rename
    from one role's directory to another's. Of ztune's own databases that is known (``roles_together``).
    """
    one = of_workload(job.workload)
    known = one is not None and one.own and one.name not in _THE_USERS
    return not known and any(
        len({dataset.name for role in job.roles if (dataset := layout.dataset_of(role))}) > 1
        for layout in layouts
    )


def _on_target(place: Place, folder: str, job: RunJob, layout: Layout) -> dict[str, Any]:
    """Return the start from a directory of the target that the user named: kept there by the first trial."""
    path = (
        f"{folder.rstrip('/')}/ztune-saved-{prepared.key(job.name, job.params, layout.database, job.version)}"
    )
    code, _, _ = ask(place, ["test", "-d", path])
    return {"kind": "copy", "from": path} if code == 0 else {"kind": "keep", "save": path}
