"""Goes through a run: block by block, trial by trial, each stored as soon as it ended.

``start`` begins a run, ``resume`` goes on with one that was cut at any point; both return the run when it is
done. What each part does: ``refusals`` what a run is refused for, ``dealing`` which host runs which block,
``starts`` how a trial gets its database, ``failover`` hosts that are lost or slow, ``judging`` when the
answer is known.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import interrupt, room
from ztune.onhost.jobs import registry as jobs
from ztune.places import named
from ztune.places.channel import Lost, Place
from ztune.places.mount import MountPlace
from ztune.places.rack import Rack
from ztune.runs import failover, plan, prepared, refusals
from ztune.runs import trial as trials
from ztune.runs.at_work import HostAtWork, Hosts
from ztune.runs.dealing import Dealing
from ztune.runs.ending import ending
from ztune.runs.failover import Failover
from ztune.runs.follow import ScreenedPrior
from ztune.runs.judging import Judging, Undecided
from ztune.runs.observer import Observer
from ztune.runs.open_run import OpenRun, dilation
from ztune.runs.options import TrialOptions
from ztune.runs.plan import RunJob, held
from ztune.runs.starts import LoadError, Starts, loads_where_it_measures
from ztune.runs.trial_specs import place_spec, spec_of
from ztune.store import environment
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study

ANSWER_S = 60.0
"""A host has so long to say what a trial starts from."""
ALIKE = 5
"""Layouts that fail alike, the baseline among them, before any trial has a result: the others would, too."""


@dataclass(frozen=True)
class Request:
    """What to run where. ``layouts``: the baseline first.

    ``undecided``: the question to answer instead of which layout is the best. ``prior``: a screening, whose
    layouts join those of ``layouts``.
    """

    study: Study
    layouts: Sequence[Layout]
    job: RunJob
    place: Place | Rack
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
    refusals.check_options(options, [*request.layouts, *may_join])
    layouts = [study.layout] if options.aa else plan.renamed(study, request.layouts)
    options = replace(options, settle=options.settle or _caches(request.job.params))
    jobs_of = {repr(one.job_settings()): (one, request.job.under(one, study.layout)) for one in layouts}
    for layout in layouts:
        _, job = jobs_of[repr(layout.job_settings())]
        refusals.check_roles(job, layout, study)
        refusals.check_settings(job, layout)
    if options.saved is not None and isinstance(request.place, MountPlace):
        request.place.check_keeping(Path(options.saved), cold=options.settle == "cold")
    copied = options.saved is None and not loads_where_it_measures(request.job, [*layouts, *may_join])
    if copied and not isinstance(request.place, Rack) and request.place.shared(Path("/")) is not None:
        for layout, job in jobs_of.values():
            prepared.require_room(job.name, job.params, layout.database)
    watcher = observer or Observer()
    if isinstance(request.place, Rack) and request.job.params.get("busy"):
        raise InputError("busy=… finds a rate on one host; on several give rate=…, the same for all")
    with ExitStack() as up:
        with watcher.waits(f"waiting for {request.place.name}"):
            hosts = up.enter_context(Hosts(request.place))
            for host in hosts.up:
                for layout in layouts:
                    refusals.check_there(hosts, host, study, layout, request.job)
            there = hosts.up[0].place.about_host()
        if prior is not None:
            prior = refusals.possible(prior, study, request.job, hosts, watcher)
            prior = prior.with_others([one for one in layouts if one.hash != study.layout.hash])
            options = replace(options, follow=prior.to_json())
        described = request.place.describe()
        warnings = list(described.pop("warnings", ()))
        # A load that can't be slowed down is refused now, not by each trial after its database was made.
        for _, job in jobs_of.values():
            jobs.get(job.name)(job.params, dilation=dilation(described))
        run = store.create_run(
            kind="run",
            study=study,
            environment={**environment.collect(), "target": there},
            versions=refusals.versions_of(there, request.job),
            seed=study.seed if request.seed is None else request.seed,
            name=request.name,
            command=list(request.command),
            options=options.to_json(),
            target={"name": hosts.name, **described},
            warnings=warnings,
            job=request.job.to_json(),
            source_run=request.source_run,
        )
        going = OpenRun(store, run, hosts, request.job, options, layouts, watcher)
        runner = _Runner(going, request.undecided)
        layouts += runner.judging.joining()
        runner.failover.meet()
        runner.dealing.first(layouts)
        return runner.go()


def resume(
    store: Store,
    run: Run,
    place: Place | Rack | None = None,
    observer: Observer | None = None,
    undecided: Undecided | None = None,
) -> Run:
    """Go on with ``run``: what finished stays; what failed or was cut is tried again, after a clean-up.

    ``place``: None for where it ran. ``undecided``: as in ``Request``; a run is resumed for another
    question as well.

    Raises InputError for a replay, where another process works on it, or where the target's OpenZFS is
    another than the run's.
    """
    if not run.measured:
        raise InputError(f"run {run.id} is a replay; `ztune screen --resume {run.id}` goes on with it")
    if store.is_live(run):
        raise InputError(store.busy(run))
    place = named.again(run) if place is None else place
    job, options = RunJob.of(run), TrialOptions.of(run)
    watcher = observer or Observer()
    with ExitStack() as up:
        with watcher.waits(f"waiting for {place.name}"):
            hosts = up.enter_context(Hosts(place))
            if hosts.rack is None:
                there = hosts.all[0].place.about_host()
                refusals.require_same(run, refusals.versions_of(there, job), hosts.name)
        layouts = list({t.layout_hash: t.layout for t in store.trials(run.id)}.values())
        base = run.resolved_study.layout.hash
        layouts.sort(key=lambda layout: layout.hash != base)
        runner = _Runner(OpenRun(store, run, hosts, job, options, layouts, watcher), undecided)
        runner.failover.meet()
        # First of all: what was left may take the room that all the rest needs.
        with watcher.waits(f"removing what trials left on {hosts.name}"):
            for host in hosts.up:
                try:
                    hosts.bounded(host, failover.CLEAN_S, functools.partial(runner.failover.clean, host))
                except Lost:
                    if hosts.rack is None:
                        raise
                    host.doing = "away"
            for host in hosts.up:
                for layout in layouts:
                    refusals.check_there(hosts, host, run.resolved_study, layout, job)
        runner.going.run = store.resume_run(run.id)
        return runner.go()


def _caches(params: Mapping[str, Any]) -> str:
    """Return how the caches are when a job begins: a load that goes on for a time is that of a database in
    use, whose ARC a warm-up of seconds on slow disks would not fill; what runs once finds its files uncached.
    """
    return "warm" if "seconds" in params else "cold"


def _shape(error: str | None) -> str:
    """Return a sentence without what differs from trial to trial: numbers, and sizes."""
    return re.sub(r"\d[\d.,]*", "", error or "")


class _Runner:
    """A run that is going on."""

    def __init__(self, going: OpenRun, undecided: Undecided | None = None) -> None:
        self.going = going
        self.judging = Judging(self.going, undecided)
        self.dealing = Dealing(self.going)
        self.failover = Failover(self.going, self.dealing)
        self._starts = Starts(self.going, self.judging.may_join)
        self._began = time.monotonic()

    def go(self) -> Run:
        """Run to the end and return the run."""
        going = self.going
        going.observer.begin(going.run, going.trials(), len(going.hosts))
        self.judging.tell()
        with ending(going.store, going.run):
            try:
                with self._starts.held:
                    if going.job.params.get("busy"):
                        self._calibrate()
                    try:
                        reason = self._blocks()
                    except BaseException as cut:
                        self._stop_all()
                        self._reset_cut(cut)
                        raise
            except (KeyboardInterrupt, Lost):
                self.judging.judge("interrupted")
                raise
            finally:
                self.failover.say_what_may_be_left()
            self.judging.judge(reason)
        return going.store.run(going.run.id)

    def _calibrate(self) -> None:
        """Find the rate that keeps the processors as busy as asked, with the base layout; all trials have it.

        Raises ZtuneError where none does, Lost, and KeyboardInterrupt when the user stopped it.
        """
        going = self.going
        layout = going.run.resolved_study.layout
        base = next(t for t in going.trials() if t.layout_hash == layout.hash)
        trial = replace(base, id=0, number=0, block=0, attempts=[])
        going.say(f"once for all trials: find the rate, with {layout.name}")
        place = going.hosts.all[0].place
        spec = spec_of(going, place, trial, self._starts.of(place, trial), place_spec(going, place, layout))
        said: list[str] = []

        def tell(step: str, state: str, share: float, text: str) -> None:
            if text.startswith("find the rate") and text not in said:
                said.append(text)
                going.say(text)

        ended = trials.run(place, place.put(going.bundle), spec, tell, going.say)
        if ended.asked or ended.status == "stopped":
            raise KeyboardInterrupt
        if ended.status == "lost":
            raise Lost(ended.error or f"{place.name} is gone")
        if not ended.measured:
            why = ended.error or "it failed without a message"
            raise ZtuneError(f"busy={going.job.params['busy']}: {why}")
        assert ended.result is not None
        if ended.left:
            going.warn(f"finding the rate left something behind: {'; '.join(ended.left)}")
            self.failover.clean(going.hosts.all[0])
        found = ended.result["job"]["details"]["calibration"]
        params = {**going.job.params, "rate": found["rate"], "busy": 0}
        going.job = replace(going.job, params=params, calibration=found)
        going.note(job=going.job.to_json())
        # The state of the database is kept under its parameters.
        self._starts.forget()
        going.say(held(found))

    def _blocks(self) -> str:
        """Run blocks until one of the limits; return which."""
        hosts = self.going.hosts
        for host in hosts.all:
            if host.doing == "away":
                self.going.warn(f"{host.label} can't be reached; it is used once it is there")
                self.failover.look_for(host)
        self.dealing.take_up()
        reason = ""
        while True:
            if not reason:
                reason = self.dealing.look(self.judging)
            for host in hosts.idle():
                if reason == "time":
                    break
                trial = self.dealing.next(host, over=bool(reason))
                if trial is not None and self._late():
                    reason = "time"
                elif trial is not None:
                    self._begin(host, trial)
            if told := hosts.ended(1.0) if hosts.busy or not reason else None:
                self._hear(*told)
            elif not any(host.doing == "trial" for host in hosts.all):
                if reason and reason != "time":
                    self.dealing.drop_waiting()
                if reason:
                    return reason
                if not hosts.usable:
                    again = f"`ztune run --resume {self.going.run.id}` goes on"
                    raise Lost(f"no host of {hosts.name} is left; {again}")
            self.failover.hurry(over=bool(reason))

    def _late(self) -> bool:
        limit = self.going.options.time_limit_s
        return limit is not None and time.monotonic() - self._began > limit

    # --- one trial

    def _begin(self, host: HostAtWork, trial: Trial) -> None:
        """Begin one trial on ``host``, or store why it can't be."""
        interrupt.check()
        going, place = self.going, host.place
        try:
            start = going.hosts.bounded(host, ANSWER_S, functools.partial(self._starts.of, place, trial))
            placed = place_spec(going, place, trial.layout)
        except (InputError, MissingError, LoadError) as lacking:
            # What fails while it is being stopped fails for that, and is no fault of the layout's.
            interrupt.check()
            # Of this layout alone: the next may do without what is missing.
            going.store_failure(trial, str(lacking))
            return
        except ZtuneError as broken:
            interrupt.check()
            going.store.start_trial(trial.id, {})
            self.failover.lose(host, trial, trials.Ended(error=str(broken)))
            return
        spec = spec_of(going, place, trial, start, placed)
        going.store.start_trial(trial.id, spec)
        going.observer.trial(trial)
        host.trial, host.stop, host.cut = trial, trials.Stop(), 0.0
        going.hosts.begin(host, "trial", functools.partial(self._measure, host, trial, spec))

    def _measure(self, host: HostAtWork, trial: Trial, spec: dict[str, Any]) -> trials.Ended:
        """Run a trial; where there are several hosts in a thread of its own."""
        going, place, stop = self.going, host.place, host.stop
        try:
            with room.RoomWatch("the trial", getattr(place, "fills", tuple)):
                tell = functools.partial(going.observer.step, trial)
                program = place.put(going.bundle)
                return trials.run(place, program, spec, tell, going.say, stop)
        except room.NoRoomError as full:
            return trials.Ended(status="failed", error=str(full), error_step="load")
        except Lost as error:
            return trials.Ended(error=str(error))

    def _hear(self, host: HostAtWork, said: Any) -> None:
        """Take what the work of a host came to."""
        if host.doing in ("returning", "away"):
            self.failover.back(host, said)
            return
        host.doing = "nothing"
        assert host.trial is not None
        trial, host.trial = host.trial, None
        if isinstance(said, BaseException):
            raise said
        assert isinstance(said, trials.Ended)
        self._say_left(trial, said)
        if host.cut and said.result is None:
            self.failover.was_cut(host, trial)
            return
        self._ended(host, trial, said)

    def _say_left(self, trial: Trial, ended: trials.Ended) -> None:
        """Say what a trial could not destroy."""
        if ended.left and ended.status != "lost":
            what = "; ".join(ended.left)
            shows = f"`ztune clean --run {self.going.run.id}` shows what is still there"
            self.going.warn(f"left behind by trial {trial.number}: {what}; {shows}")

    def _ended(self, host: HostAtWork, trial: Trial, ended: trials.Ended) -> None:
        """Store the end of a trial."""
        going = self.going
        if ended.status == "stopped" or (ended.asked and ended.result is None):
            # Also where the trial calls it a failure: what is cut fails.
            raise KeyboardInterrupt
        if ended.status == "lost":
            self.failover.lose(host, trial, ended)
            return
        error = None
        if not ended.measured:
            error = ended.error or "it failed without a message"
        if error is not None and ended.of_host and len(going.hosts.usable) > 1:
            self.failover.lacks(host, trial, error)
            return
        self._keep(trial, ended, error)
        if ended.asked:
            raise KeyboardInterrupt
        if (error is not None or ended.left) and ended.error_step is None:
            # It left something, or ended without a word: killed, perhaps, before it could tidy up.
            self.failover.tidy(host)
        if error is not None:
            self._check_alike(error)

    def _check_alike(self, error: str) -> None:
        """Raise ZtuneError where trials fail for what is not their layout's, and more would follow."""
        found = self.going.trials()
        failed = [t for t in found if t.status == "failed" and _shape(t.error) == _shape(error)]
        alike = {t.layout_hash for t in failed}
        if len(alike) < ALIKE or not any(t.is_baseline for t in failed) or any(t.ok for t in found):
            return
        if not any(t.status == "pending" for t in found):
            return
        raise ZtuneError(
            f"{len(alike)} layouts failed alike, and none has a result, so the others are not tried: "
            f"{error}; `ztune run --resume {self.going.run.id}` goes on once that is mended"
        )

    def _keep(self, trial: Trial, ended: trials.Ended, error: str | None) -> None:
        """Store what a trial ended with, and say it."""
        going = self.going
        try:
            kept = ended.series.write(going.run.id, trial.number)
        except InputError as unwritten:
            # They stand beside what was measured, which is not lost for them.
            kept = []
            going.warn(f"the series of trial {trial.number} are not kept: {unwritten}")
        finished = going.store.finish_trial(
            trial.id,
            result=ended.to_store(),
            error=error,
            wall_s=ended.wall_s,
            openzfs=going.run.versions.get("openzfs"),
            series=kept,
        )
        going.observer.finished(finished, ended.steps)

    # --- the end of all

    def _stop_all(self) -> None:
        """Have every host end its trial and destroy what it made; a second interrupt leaves that to clean."""
        going = self.going
        busy = [host for host in going.hosts.all if host.doing == "trial" and host.trial is not None]
        if going.hosts.rack is None or not busy:
            return
        going.say(
            f"stopping: {len(busy)} trials destroy what they made; Ctrl-C again leaves that to `ztune clean`"
        )
        try:
            for host in busy:
                host.stop.ask()
            until = time.monotonic() + failover.STOP_S
            while busy and time.monotonic() < until:
                told = going.hosts.ended(0.5)
                if told is None or told[0] not in busy:
                    continue
                host, said = told
                busy.remove(host)
                host.doing = "away" if isinstance(said, BaseException) or said.status == "lost" else "nothing"
                trial, host.trial = host.trial, None
                if trial is not None and isinstance(said, trials.Ended):
                    self._say_left(trial, said)
                    if said.measured:
                        self._keep(trial, said, None)
        except KeyboardInterrupt:
            pass
        for host in busy:
            going.hosts.abandon(host)

    def _reset_cut(self, cut: BaseException) -> None:
        """Make pending what is stored as running once all have stopped: what was cut, and what ended or was
        about to begin as ``cut`` came."""
        why = "stopped by the user" if isinstance(cut, KeyboardInterrupt) else f"the run ended: {cut}"
        for trial in self.going.trials():
            if trial.status == "running":
                self.going.store.reset_trial(trial.id, why)
