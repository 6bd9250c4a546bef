"""Goes through a run: block by block, trial by trial, each stored as soon as it ended.

``start`` begins a run, ``resume`` goes on with one that was cut at any point; both return the run when it is
done.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
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
from ztune.places.rack import Rack
from ztune.runs import at_work, plan, prepared, stopping
from ztune.runs import trial as trials
from ztune.runs.at_work import HostAtWork, Hosts
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
_AGAIN_S = 30.0  # between two looks for a host that did not come back
SLOW = 3.0
LEAST_SLOW_S = 60.0
"""A block that takes so many times the usual, and at least so long, is cut where all others wait for it."""
CLEAN_S = 600.0  # on one of several hosts, before a run goes on without it
STILL_S = 120.0
"""So long is waited for a trial of this run that still runs on a host: one whose connection was cut ends, and
destroys what it made, once its host has noticed."""
ANSWER_S = 60.0
STOP_S = 120.0
"""A trial that was told to stop and has not ended after so long is left: its host hangs."""
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
    if copied and not isinstance(request.place, Rack) and request.place.shared(Path("/")) is not None:
        for layout, job in jobs_of.values():
            prepared.require_room(job.name, job.params, layout.database)
    watcher = observer or Observer()
    if isinstance(request.place, Rack) and request.job.params.get("busy"):
        raise InputError("busy=… finds a rate on one host; on several give rate=…, the same for all")
    with Hosts(request.place) as hosts:
        for host in hosts.up:
            for layout in layouts:
                _check_there(hosts, host, study, layout)
        if prior is not None:
            prior = _possible(prior, study, request.job, hosts, watcher)
            prior = prior.with_others([one for one in layouts if one.hash != study.layout.hash])
            options = replace(options, follow=prior.to_json())
        there = hosts.up[0].place.about_host()
        described = request.place.describe()
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
            target={"name": hosts.name, **described},
            job=request.job.to_json(),
            source_run=request.source_run,
        )
        runner = _Runner(store, run, hosts, request.job, options, layouts, watcher, request.undecided)
        layouts += runner.joining()
        runner.meet()
        runner.deal(layouts)
        return runner.go()


def resume(
    store: Store,
    run: Run,
    place: Place | Rack,
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
    with Hosts(place) as hosts:
        if hosts.rack is None:
            _require_same(run, versions_of(hosts.all[0].place.about_host(), job), hosts.name)
        layouts = list({t.layout_hash: t.layout for t in store.trials(run.id)}.values())
        base = run.resolved_study.layout.hash
        layouts.sort(key=lambda layout: layout.hash != base)
        runner = _Runner(store, run, hosts, job, options, layouts, watcher, undecided)
        runner.meet()
        # First of all: what was left may take the room that all the rest needs.
        for host in hosts.up:
            try:
                hosts.bounded(host, CLEAN_S, functools.partial(runner.clean, host))
            except Lost:
                if hosts.rack is None:
                    raise
                host.doing = "away"
        for host in hosts.up:
            for layout in layouts:
                _check_there(hosts, host, run.resolved_study, layout)
        runner.run = store.resume_run(run.id)
        return runner.go()


def _require_same(run: Run, now: Mapping[str, str], where: str) -> None:
    """Raise InputError where a run was made under other versions than there are now at its place."""
    for part, before in run.versions.items():
        if part != "ztune" and now.get(part, before) != before:
            raise InputError(
                f"run {run.id} was made under {part} {before}, {where} has {now[part]} now: results "
                "are not to be mixed; start a new run without --resume"
            )


def _check_there(hosts: Hosts, host: HostAtWork, study: Study, layout: Layout) -> None:
    """Raise InputError, MissingError if ``layout`` can't be tried on ``host``, which they name."""
    try:
        host.place.check(study, layout)
    except InputError as error:
        raise error if hosts.rack is None else InputError(f"{host.place.name}: {error}") from None


def _possible(
    prior: ScreenedPrior, study: Study, job: RunJob, hosts: Hosts, observer: Observer
) -> ScreenedPrior:
    """Return ``prior`` without layouts that can't run on ``hosts``, and say which; raise what the best of
    them is refused for if none can."""
    refused: dict[str, InputError] = {}

    def possible(layout: Layout) -> bool:
        try:
            _check_settings(job.under(layout, study.layout), layout)
            for host in hosts.up:
                _check_there(hosts, host, study, layout)
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
    found = {
        "ztune": __version__,
        # In user space there is no module, but a library.
        "openzfs": at_work.openzfs(there),
        "ztune-mount": str(there.get("mount", "")),
        "kernel": str(there.get("kernel", "")),
        "database": job.version,
    }
    return {k: v for k, v in found.items() if v}


def _add_block(
    store: Store, run: Run, layouts: Sequence[Layout], number: int, options: TrialOptions, host: str
) -> None:
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
        target = ", ".join(filter(None, (host, condition)))
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
        hosts: Hosts,
        job: RunJob,
        options: TrialOptions,
        layouts: Sequence[Layout],
        observer: Observer,
        undecided: Undecided | None = None,
    ) -> None:
        self.undecided = undecided
        self.store, self.run, self.hosts, self.job = store, run, hosts, job
        self.options, self.layouts, self.observer = options, list(layouts), observer
        prior = ScreenedPrior.kept(options)
        study = run.resolved_study
        self._following = None if prior is None else Following(study, prior, options, run.seed, len(hosts))
        self._followed: Followed | None = None
        self._news: list[str] = []
        self.began = time.monotonic()
        self._lost: dict[int, int] = {}
        self._held = ExitStack()
        self._starts: dict[str, dict[str, Any] | LoadError] = {}
        # Once: all trials of a run are made by the same program, whatever becomes of its sources meanwhile.
        self._bundle = bundle.build(job.modules)
        described = (hosts.rack or hosts.all[0].place).describe()
        self._dilation = _dilation(described)
        self._patience = max(1.0, float(described.get("patience") or 1.0))
        self._arms = list(self.layouts)  # of the blocks that are dealt next
        self._rounds = 1
        """How many blocks each host may have by turns; beyond, only one that would wait too long."""
        self._next_look = 0
        self._waiting: dict[int, str] = {}
        """Blocks that need another host, and why."""
        self._took: list[float] = []

    def go(self) -> Run:
        """Run to the end and return the run."""
        self.observer.begin(self.run, self._all(), len(self.hosts))
        self._tell()
        with ending(self.store, self.run):
            try:
                with self._held:
                    if self.job.params.get("busy"):
                        self._calibrate()
                    try:
                        reason = self._blocks()
                    except BaseException:
                        self._stop_all()
                        raise
            except (KeyboardInterrupt, Lost):
                self._judge("interrupted")
                raise
            finally:
                self._say_what_may_be_left()
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
        place = self.hosts.all[0].place
        spec = self._spec(place, trial, self._start(place, trial), self._place_spec(place, layout))
        said: list[str] = []

        def tell(step: str, state: str, share: float, text: str) -> None:
            if text.startswith("find the rate") and text not in said:
                said.append(text)
                self.observer.say(text)

        ended = trials.run(place, place.put(self._bundle), spec, tell, self.observer.say)
        if ended.asked or ended.status == "stopped":
            raise KeyboardInterrupt
        if ended.status == "lost":
            raise Lost(ended.error or f"{place.name} is gone")
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

    # --- blocks

    def meet(self) -> None:
        """Learn what each host that is up is; note it with the run, and set aside what does not fit."""
        if self.hosts.rack is not None:
            for host in self.hosts.up:
                self._know(host, host.about)

    def _know(self, host: HostAtWork, about: Mapping[str, Any]) -> None:
        """Take ``host`` as it is now. Results under another kernel are another host's; raises InputError for
        another OpenZFS, and for another kernel where there is but this host.
        """
        host.about = dict(about)
        if self.hosts.rack is None:
            _require_same(self.run, versions_of(host.about, self.job), host.place.name)
            return
        version = at_work.openzfs(host.about)
        if version != self.run.versions.get("openzfs", ""):
            has, wanted = version or "none", self.run.versions.get("openzfs") or "none"
            host.doing = "out"
            self._warn(f"{host.place.name} is not used: it has OpenZFS {has}, this run {wanted}")
            return
        target = dict(self.run.target)
        rows = [dict(row) for row in target["hosts"]]
        row = next(row for row in rows if row["name"] == host.place.name)
        kernel = str(host.about.get("kernel", ""))
        was = row.setdefault("kernel", kernel)
        host.label = host.place.name
        if kernel != was:
            host.label += f" (kernel {kernel.replace(',', ' ')})"
            self._warn(
                f"{host.place.name} has kernel {kernel}, its results so far are from {was}: what follows "
                "counts as another host's"
            )
        row.update({key: host.about.get(key) for key in ("cpu", "cpus", "memory")})
        kernels = at_work.kernels([*({"kernel": r["kernel"]} for r in rows if "kernel" in r), host.about])
        self.run = self.store.note_run(
            self.run.id,
            target={**target, "hosts": rows},
            versions={**self.run.versions, "kernel": kernels},
        )

    def deal(self, layouts: Sequence[Layout]) -> None:
        """Give each host that is up its first block of ``layouts``."""
        self._arms = list(layouts)
        for host in self.hosts.idle():
            self._new_block(host)

    def _new_block(self, host: HostAtWork) -> None:
        host.block = 1 + max((t.block for t in self._all()), default=0)
        host.began = time.monotonic()
        _add_block(self.store, self.run, self._arms, host.block, self.options, host.label)
        self._tell_round()

    def _tell_round(self) -> None:
        everything, many = self._all(), len(self.hosts)
        number = max((t.block for t in everything), default=0)
        waiting = sum(t.status == "pending" for t in everything)
        in_one = sum(t.block == number for t in everything)
        more = max(0, self.options.blocks[1] * many - number) * in_one
        self.observer.round(math.ceil(number / many), waiting, more)

    def _take_up(self) -> None:
        """Go on with blocks that are in the store: each host with its own; the rest wait for one."""
        unfinished = {t.block: t.host for t in self._all() if t.status == "pending"}
        for host in self.hosts.idle():
            own = [block for block, label in unfinished.items() if label == host.label]
            if own:
                host.block, host.began = own[0], time.monotonic()
                del unfinished[own[0]]
        for block, label in unfinished.items():
            if self.hosts.rack is not None:
                self._waiting[block] = f"{label} was not there when the run went on"
        done = self._finished()
        many = len(self.hosts)
        self._rounds = max(1, math.ceil(max((t.block for t in self._all()), default=1) / many))
        open_ = any(host.block for host in self.hosts.all) or self._waiting
        self._next_look = (done // many + 1) * many if open_ else done
        self._tell_round()

    def _finished(self) -> int:
        """Return how many blocks have ended."""
        open_ = {t.block for t in self._all() if t.status in ("pending", "running")}
        return len({t.block for t in self._all()} - open_)

    def _blocks(self) -> str:
        """Run blocks until one of the limits; return which."""
        for host in self.hosts.all:
            if host.doing == "away":
                self._warn(f"{host.label} can't be reached; it is used once it is there")
                self.hosts.begin(host, "away", functools.partial(self._await, host))
        self._take_up()
        reason = ""
        while True:
            if not reason and self._finished() >= self._next_look:
                reason = self._look()
            for host in self.hosts.idle():
                if reason == "time":
                    break
                trial = self._next(host, over=bool(reason))
                if trial is not None and self._late():
                    reason = "time"
                elif trial is not None:
                    self._begin(host, trial)
            if told := self.hosts.ended(1.0) if self.hosts.busy or not reason else None:
                self._hear(*told)
            elif not any(host.doing == "trial" for host in self.hosts.all):
                if reason and reason != "time":
                    for block in self._waiting:  # nobody wants them any more
                        self.store.drop_pending(self.run.id, block)
                if reason:
                    return reason
                if not self.hosts.usable:
                    raise Lost(
                        f"no host of {self.hosts.name} is left; `ztune run --resume {self.run.id}` goes on"
                    )
            self._hurry(over=bool(reason))

    def _next(self, host: HostAtWork, *, over: bool) -> Trial | None:
        """Return the next trial for ``host``; None: none for now. ``over``: no block begins any more."""
        everything = self._all()
        pending = [t for t in everything if t.block == host.block and t.status == "pending"]
        if pending:
            return pending[0]
        if host.block:
            host.at = time.monotonic()
            host.took_s = host.at - host.began
            self._took.append(host.took_s)
            host.block = 0
        if over:
            return None
        if self._waiting:
            return self._take_over(host)
        dealt, many = max((t.block for t in everything), default=0), len(self.hosts)
        # Who would wait for the others longer than for a block of its own goes on.
        waits = time.monotonic() - host.at > host.took_s if host.at else True
        if dealt >= self.options.blocks[1] * many or (dealt >= self._rounds * many and not waits):
            return None
        self._new_block(host)
        return self._next(host, over=False)

    def _take_over(self, host: HostAtWork) -> Trial | None:
        """Have ``host`` run a block that another one left: whole, unless it is its own."""
        trials_of = self._all()
        own = [b for b in self._waiting if any(t.block == b and t.host == host.label for t in trials_of)]
        block = (own or list(self._waiting))[0]
        why = self._waiting.pop(block)
        if not own:
            self.store.move_block(self.run.id, block, host.label, why)
            self.observer.say(f"block {block} begins anew on {host.label}: {why}")
        host.block, host.began = block, time.monotonic()
        return self._next(host, over=False)

    def _leave_block(self, host: HostAtWork, why: str) -> None:
        """Have another host run the block of ``host`` that has not ended."""
        if host.block and any(t.block == host.block and t.status == "pending" for t in self._all()):
            self._waiting[host.block] = why
        host.block = 0

    def _look(self) -> str:
        """Ask whether the best is known; return why no further block is dealt, else "" and deal on."""
        least, most = self.options.blocks
        everything = self._all()
        if not any(t.ok for t in everything):
            return "failed"
        many, done = len(self.hosts), self._finished()
        rounds = done // many
        decision = self._judge("running")
        asked = self._asked(everything, decision)
        new = [layout.hash for layout in self.joining()]
        self._tell()
        if rounds >= least and asked is not None and not asked and not new and not self.options.aa:
            return "settled"
        if rounds >= most:
            return "blocks"
        usual = [t for t in everything if not t.condition]
        arms = list(dict.fromkeys([*(t.arm for t in usual), *new]))
        base = next((t.arm for t in everything if t.is_baseline), arms[0])
        wanted = stopping.next_arms(arms, base, asked, usual, self.options, rounds, new)
        if len(wanted) < 2:
            return "failed"
        self._arms = [layout for layout in self.layouts if layout.hash in wanted]
        self._rounds, self._next_look = rounds + 1, (rounds + 1) * many
        return ""

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

    def _begin(self, host: HostAtWork, trial: Trial) -> None:
        """Begin one trial on ``host``, or store why it can't be."""
        interrupt.check()
        place = host.place
        try:
            start = self.hosts.bounded(host, ANSWER_S, functools.partial(self._start, place, trial))
            placed = self._place_spec(place, trial.layout)
        except (InputError, MissingError, LoadError) as lacking:
            # What fails while it is being stopped fails for that, and is no fault of the layout's.
            interrupt.check()
            # Of this layout alone: the next may do without what is missing.
            self._store_failure(trial, str(lacking))
            return
        except ZtuneError as broken:
            interrupt.check()
            self.store.start_trial(trial.id, {})
            self._lose(host, trial, trials.Ended(error=str(broken)))
            return
        spec = self._spec(place, trial, start, placed)
        self.store.start_trial(trial.id, spec)
        self.observer.trial(trial)
        host.trial, host.stop, host.cut = trial, trials.Stop(), 0.0
        self.hosts.begin(host, "trial", functools.partial(self._measure, host, trial, spec))

    def _measure(self, host: HostAtWork, trial: Trial, spec: dict[str, Any]) -> trials.Ended:
        """Run a trial; where there are several hosts in a thread of its own."""
        place, stop = host.place, host.stop
        try:
            with room.RoomWatch("the trial", getattr(place, "fills", tuple)):
                tell = functools.partial(self.observer.step, trial)
                program = place.put(self._bundle)
                return trials.run(place, program, spec, tell, self.observer.say, stop)
        except room.NoRoomError as full:
            return trials.Ended(status="failed", error=str(full), error_step="load")
        except Lost as error:
            return trials.Ended(error=str(error))
        except KeyboardInterrupt:
            self.store.reset_trial(trial.id, "stopped by the user")
            raise

    def _hear(self, host: HostAtWork, said: Any) -> None:
        """Take what the work of a host came to."""
        if host.doing in ("returning", "away"):
            self._back(host, said)
            return
        host.doing = "nothing"
        assert host.trial is not None
        trial, host.trial = host.trial, None
        if isinstance(said, BaseException):
            raise said
        assert isinstance(said, trials.Ended)
        if host.cut and said.result is None:
            self._cut(host, trial)
            return
        self._ended(host, trial, said)

    def _ended(self, host: HostAtWork, trial: Trial, ended: trials.Ended) -> None:
        """Store the end of a trial."""
        if ended.left and ended.status != "lost":
            self.observer.say(f"left behind by trial {trial.number}: {'; '.join(ended.left)}")
        if ended.status == "stopped" or (ended.asked and ended.result is None):
            # Also where the trial calls it a failure: what is cut fails.
            self.store.reset_trial(trial.id, "stopped by the user")
            raise KeyboardInterrupt
        if ended.status == "lost":
            self._lose(host, trial, ended)
            return
        error = (
            None
            if ended.status == "ok" and ended.result is not None
            else (ended.error or "it failed without a message")
        )
        if error is not None and ended.of_host and len(self.hosts.usable) > 1:
            self.store.reset_trial(trial.id, f"{host.label}: {error}")
            host.doing = "out"
            self._warn(f"{host.label} is not used any more: {error}")
            self._leave_block(host, f"{host.label} could not go on with it: {error}")
            return
        self._keep(trial, ended, error)
        if ended.asked:
            raise KeyboardInterrupt
        if error is not None and ended.error_step is None:
            # It ended without a word: killed, perhaps, before it could tidy up.
            self.hosts.begin(host, "returning", functools.partial(self._tidy, host))

    def _keep(self, trial: Trial, ended: trials.Ended, error: str | None) -> None:
        """Store what a trial ended with, and say it."""
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

    def _store_failure(self, trial: Trial, sentence: str) -> None:
        self.store.start_trial(trial.id, {})
        self.observer.trial(trial)
        self.observer.finished(self.store.finish_trial(trial.id, error=sentence, wall_s=0.0), {})

    # --- hosts that are lost, slow or hang

    def _lose(self, host: HostAtWork, trial: Trial, ended: trials.Ended) -> None:
        """The host went away under a trial: bring it up again, tidy up, and let the trial wait for its
        turn.
        """
        why = ended.error or f"{host.place.name} is gone"
        self._lost[trial.id] = self._lost.get(trial.id, 0) + 1
        self.store.reset_trial(trial.id, why)
        self.observer.say(f"trial {trial.number} was cut: {why}")
        host.trial = trial
        self.hosts.begin(host, "returning", functools.partial(self._reconnect, host, why))

    def _reconnect(self, host: HostAtWork, why: str) -> list[str]:
        """Bring a host up again and tidy up there; return what stayed. Raises Lost."""
        last: ZtuneError = Lost(why)
        for attempt in range(RECONNECT):
            with contextlib.suppress(ZtuneError):
                host.place.__exit__(None, None, None)
            if attempt and self.hosts.gone.wait(_PAUSE_S * 3**attempt):
                break
            try:
                return self._up_again(host)
            except ZtuneError as error:
                interrupt.check()
                last = error
        raise Lost(f"{last}; `ztune run --resume {self.run.id}` goes on where it was cut")

    def _up_again(self, host: HostAtWork) -> list[str]:
        host.place.__enter__()
        host.place.about_host()
        return self._clean(host)

    def _await(self, host: HostAtWork) -> list[str]:
        """Wait until a host is there again, as long as the run goes on; return what stayed there."""
        while not self.hosts.gone.wait(_AGAIN_S):
            with contextlib.suppress(ZtuneError):
                host.place.__exit__(None, None, None)
            with contextlib.suppress(ZtuneError):
                return self._up_again(host)
        raise Lost(f"{host.place.name} did not come back")

    def _back(self, host: HostAtWork, said: Any) -> None:
        """A host is back, with ``said`` what stayed there; or it is not, and ``said`` is why."""
        trial, host.trial = host.trial, None
        again = None if trial is None else self.store.trial(self.run.id, trial.number)
        if isinstance(said, Lost) and len(self.hosts.usable) > 1:
            self._leave_block(host, f"{host.label} was lost")
            self._warn(f"{host.label} is left out until it is back: {said}")
            self.hosts.begin(host, "away", functools.partial(self._await, host))
            return
        if isinstance(said, BaseException):
            raise said
        was = host.label
        if host.doing == "away":
            self.observer.say(f"{host.label} is back")
        host.doing = "nothing"
        self._say_left(said)
        self._know(host, host.place.about_host())
        if self.hosts.rack is not None and host.usable:
            try:
                for layout in self.layouts:
                    _check_there(self.hosts, host, self.run.resolved_study, layout)
            except (InputError, MissingError) as error:
                host.doing = "out"
                self._warn(f"{host.label} is not used: {error}")
        if host.label != was or not host.usable:
            self._leave_block(host, f"{was} came back as another")
        if again is not None and again.status == "pending" and self._lost[again.id] >= LOST_TRIALS:
            times, why = self._lost[again.id], again.attempts[-1]["error"]
            self._store_failure(again, f"it was cut {times} times: {why}")

    def _hurry(self, *, over: bool) -> None:
        """Cut the block of a host that all others wait for, far beyond what blocks take."""
        now = time.monotonic()
        for host in self.hosts.all:
            if self.hosts.rack is None:
                continue
            if host.doing == "returning" and now - host.since > CLEAN_S:
                # It answers, and yet what it is asked to do does not end.
                self.hosts.abandon(host)
                host.trial = None
                self._warn(f"{host.label} did not come back within {CLEAN_S:.0f} s: it is left out")
                self._leave_block(host, f"{host.label} was lost")
                continue
            if host.doing != "trial":
                continue
            if host.cut and now - host.cut > STOP_S:
                threading.Thread(target=host.stop.give_up, daemon=True).start()
                self.hosts.abandon(host)
                assert host.trial is not None
                trial, host.trial = host.trial, None
                self._warn(f"{host.label} does not answer: it is left out")
                self._cut(host, trial)
                continue
            others = [one for one in self.hosts.usable if one is not host]
            done = over or max(t.block for t in self._all()) >= self.options.blocks[1] * len(self.hosts)
            if host.cut or not done or not others or any(one.doing != "nothing" for one in others):
                continue
            usual = median(self._took) if self._took else math.inf
            if now - host.began > max(LEAST_SLOW_S, SLOW * usual):
                self._warn(
                    f"{host.label} takes {now - host.began:.0f} s for a block, others {usual:.0f} s: it is "
                    "stopped, and not used any more"
                )
                host.cut = now
                host.stop.ask()

    def _cut(self, host: HostAtWork, trial: Trial) -> None:
        """A slow host's trial was stopped: another host runs its block, if it is still wanted."""
        self.store.reset_trial(trial.id, f"{host.label} was too slow")
        if host.doing != "away":
            host.doing = "out"
        self._leave_block(host, f"{host.label} was too slow")

    def _stop_all(self) -> None:
        """Have every host end its trial and destroy what it made; a second interrupt leaves that to clean."""
        busy = [host for host in self.hosts.all if host.doing == "trial" and host.trial is not None]
        if self.hosts.rack is None or not busy:
            return
        self.observer.say(
            f"stopping: {len(busy)} trials destroy what they made; Ctrl-C again leaves that to `ztune clean`"
        )
        try:
            for host in busy:
                host.stop.ask()
            until = time.monotonic() + STOP_S
            while busy and time.monotonic() < until:
                told = self.hosts.ended(0.5)
                if told is None or told[0] not in busy:
                    continue
                host, said = told
                busy.remove(host)
                host.doing = "away" if isinstance(said, BaseException) or said.status == "lost" else "nothing"
                trial, host.trial = host.trial, None
                if trial is not None:
                    self._keep_or_reset(trial, said)
        except KeyboardInterrupt:
            pass
        for host in busy:
            self.hosts.abandon(host)
            if host.trial is not None:
                self.store.reset_trial(host.trial.id, "stopped by the user")

    def _keep_or_reset(self, trial: Trial, said: Any) -> None:
        if isinstance(said, trials.Ended) and said.status == "ok" and said.result is not None:
            self._keep(trial, said, None)
        else:
            self.store.reset_trial(trial.id, "stopped by the user")

    def _say_what_may_be_left(self) -> None:
        """Name the hosts that are gone with what a trial made there."""
        if gone := [host for host in self.hosts.all if host.doing in ("away", "returning")]:
            which = at_work.names(gone)
            self._warn(
                f"{which} can't be reached: `ztune clean --run {self.run.id} --yes` destroys what is left "
                "there of a trial that was cut, once it can be"
            )

    def _warn(self, text: str) -> None:
        """Say what became of a host, and keep it with the run."""
        self.observer.say(text)
        self.run = self.store.note_run(self.run.id, warnings=[*self.run.warnings, text])

    def clean(self, host: HostAtWork) -> None:
        """Destroy what dead trials left on ``host``; say what stayed."""
        self._say_left(self._clean(host))

    def _clean(self, host: HostAtWork) -> list[str]:
        """Destroy what dead trials left on ``host`` and return what stayed. Raises Lost, also where a trial
        of this run does not end.
        """
        program = host.place.put(self._bundle)
        until = time.monotonic() + STILL_S
        while True:
            found = trials.clean(host.place, program, lambda _: None, self._patience)
            if self.run.id not in found.running:
                return found.stayed
            interrupt.check()
            if time.monotonic() > until or self.hosts.gone.wait(_PAUSE_S):
                raise Lost(f"a trial of this run still runs on {host.place.name}")

    def _tidy(self, host: HostAtWork) -> list[str]:
        """Destroy what a trial left that ended without a word; return what stayed. Raises Lost."""
        try:
            return self._clean(host)
        except ZtuneError as error:
            if self.hosts.rack is None:
                raise
            return self._reconnect(host, str(error))

    def _say_left(self, left: Iterable[str]) -> None:
        for sentence in left:
            self.observer.say(f"clean-up: {sentence}")

    def _spec(
        self, place: Place, trial: Trial, start: dict[str, Any], placed: dict[str, Any]
    ) -> dict[str, Any]:
        attempt = len(trial.attempts)
        layout = trial.layout
        return {
            "format": specs.FORMAT,
            "version": specs.VERSION,
            "run": self.run.id,
            "trial": f"{self.run.id}-{trial.number:04d}" + (f"-{attempt}" if attempt else ""),
            "seed": self.run.seed + trial.block,
            "state": place.state,
            "place": placed,
            "layout": {
                **{k: v for k, v in layout.to_json().items() if k != "durability"},
                "tunables": {**place.tunables(layout), **layout.tunables},
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

    def _place_spec(self, place: Place, layout: Layout) -> dict[str, Any]:
        spec = place.place_spec(layout)
        if self.options.saved is not None and isinstance(place, MountPlace):
            return {**spec, **place.keeping(layout, self.options.saved)}
        return spec

    def _start(self, place: Place, trial: Trial) -> dict[str, Any]:
        """Return how the trial gets its database: loaded, or copied from a state that was loaded once."""
        layout = trial.layout
        if self.options.saved is not None and not isinstance(place, MountPlace):
            return _on_target(
                place, self.options.saved, self.job.under(layout, self.run.resolved_study.layout), layout
            )
        key = repr(layout.job_settings())
        if key not in self._starts:
            try:
                self._starts[key] = self._prepare(place, trial)
            except LoadError as error:
                # The next layout would wait as long, for the same.
                interrupt.check()
                self._starts[key] = error
        found = self._starts[key]
        if isinstance(found, LoadError):
            raise found
        return found

    def _prepare(self, place: Place, trial: Trial) -> dict[str, Any]:
        may_join = [] if self._following is None else self._following.layouts.values()
        every = [*self.layouts, *may_join]  # the same in each block, whatever has joined
        if place.shared(Path("/")) is None or _loads_where_it_measures(self.job, every):
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
        there = place.shared(state)
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
