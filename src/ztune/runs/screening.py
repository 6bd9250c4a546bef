"""Screening: many layouts, one trace, all cores; every result stored as soon as it is there.

Used by ``ztune screen`` and ``ztune tune``. ``start`` begins a run, ``resume`` goes on with one that was cut;
both return the run when it is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ztune import __version__
from ztune.advice.standing import standing
from ztune.errors import InputError
from ztune.places.engine import Engine
from ztune.places.replay import Replay, suggested_jobs, sweep
from ztune.places.screening import Outcome, ScreeningPlace
from ztune.runs.refine import MAX_ROUNDS, next_round, returns
from ztune.runs.space import first_round
from ztune.store import environment
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study
from ztune.trace.reader import Trace
from ztune.units import parse_size

DEFAULT_BUDGET = 32


@dataclass(frozen=True)
class Options:
    """How to screen. ``jobs`` 0: one per core as far as memory goes. ``budget``: layouts in all."""

    jobs: int = 0
    budget: int = DEFAULT_BUDGET
    timeout_s: float | None = None
    seed: int | None = None


class Observer(Protocol):
    """Is told what happens, from the calling thread, except ``progress``, which any thread may call."""

    def begin(self, run: Run, jobs: int) -> None:
        """A run began or goes on."""
        ...

    def total(self, done: int, total: int) -> None:
        """How many layouts are done, and how many there are so far."""
        ...

    def progress(self, trial: Trial, phase: str, share: float) -> None:
        """A trial got on."""
        ...

    def finished(self, trial: Trial, best: Trial | None) -> None:
        """A trial ended; ``best`` is the best layout so far."""
        ...


class Silent:
    """An observer that shows nothing."""

    def begin(self, run: Run, jobs: int) -> None:
        """Do nothing."""

    def total(self, done: int, total: int) -> None:
        """Do nothing."""

    def progress(self, trial: Trial, phase: str, share: float) -> None:
        """Do nothing."""

    def finished(self, trial: Trial, best: Trial | None) -> None:
        """Do nothing."""


def versions(engine: Engine) -> dict[str, str]:
    """Return what a run's results depend on."""
    return {"ztune": __version__, "engine": engine.version, "openzfs": engine.openzfs}


def start(
    store: Store,
    trace: Trace,
    study: Study,
    engine: Engine,
    options: Options,
    *,
    kind: str = "screen",
    name: str | None = None,
    command: Sequence[str] = (),
    observer: Observer | None = None,
) -> Run:
    """Screen ``trace`` against the layouts of ``study`` and return the finished run.

    Everything that can be wrong with the input is found before the run is stored. Raises InputError,
    MissingError; KeyboardInterrupt after the run was marked interrupted.
    """
    if options.budget < 1:
        raise InputError(f"the budget is {options.budget}; at least 1 layout has to be tried")
    sweep()
    target = Replay(trace, engine, timeout_s=options.timeout_s)
    layouts = first_round(study)[: options.budget]
    for layout in layouts:
        target.check(study, layout)
    seed = study.seed if options.seed is None else options.seed
    target.jobs = options.jobs or suggested_jobs(target.spec(study, study.layout, seed), target.memory)
    warnings = [*(w.message for w in trace.manifest.warnings), *target.inputs.warnings]
    if trace.manifest.dropped:
        warnings.append(f"{trace.manifest.dropped} events were lost while recording: the trace is incomplete")
    run = store.create_run(
        kind=kind,
        study=study,
        trace_path=trace.path.resolve(),
        trace_sha=trace.sha,
        environment=environment.collect(),
        versions=versions(engine),
        seed=seed,
        name=name,
        command=list(command),
        options=asdict(options),
        warnings=warnings,
    )
    return _screen(store, run, study, target, options.budget, observer or Silent())


def resume(
    store: Store,
    run: Run,
    trace: Trace,
    engine: Engine,
    options: Options,
    *,
    observer: Observer | None = None,
) -> Run:
    """Go on with ``run``: what finished stays, what failed or was cut is tried again.

    ``options.seed`` must be None or the run's own. Raises InputError where the trace or a version is another
    than the run's, since results would not be comparable.
    """
    if trace.sha != run.trace_sha:
        raise InputError(
            f"run {run.id} was made from another trace than {trace.path}; resume it with {run.trace_path}"
        )
    now = versions(engine)
    for part, label in (("engine", "the engine"), ("openzfs", "OpenZFS")):
        if run.versions.get(part) != now[part]:
            raise InputError(
                f"run {run.id} was made with version {run.versions.get(part)} of {label}, here is "
                f"{now[part]}: "
                f"their results are not to be mixed; start a new run without --resume"
            )
    if options.seed is not None and options.seed != run.seed:
        raise InputError(
            f"run {run.id} has seed {run.seed}, not {options.seed}; start a new run for another seed"
        )
    sweep()
    study = run.resolved_study
    target = Replay(trace, engine, timeout_s=options.timeout_s)
    target.jobs = options.jobs or suggested_jobs(target.spec(study, study.layout, run.seed), target.memory)
    run = store.resume_run(run.id)
    return _screen(store, run, study, target, options.budget, observer or Silent())


def allowed_order(study: Study, trials: Sequence[Trial]) -> list[Trial]:
    """Return the finished trials that the objective allows, best first."""
    by_hash = {t.layout_hash: t for t in trials}
    return [by_hash[entry.candidate.hash] for entry in standing(trials, study.objective).ranking.ranked]


def _screen(store: Store, run: Run, study: Study, target: Replay, budget: int, observer: Observer) -> Run:
    observer.begin(run, target.jobs)
    try:
        for layout in first_round(study)[:budget]:
            store.add_trial(run.id, layout, is_baseline=layout.hash == study.layout.hash)
        _run_pending(store, run, study, target, observer)
        for _ in range(MAX_ROUNDS):
            trials = store.trials(run.id)
            ranked = [t.layout for t in allowed_order(study, trials)]
            tried = {t.layout_hash for t in trials}
            if not _round(
                store, run, study, target, observer, next_round(study, ranked, tried, budget - len(trials))
            ):
                break
        # On top of the budget, a handful: what each property of the layout to recommend does alone. It can
        # show that another layout is better, which then needs its own pairs.
        for _ in range(MAX_ROUNDS):
            trials = store.trials(run.id)
            chosen = standing(trials, study.objective).chosen
            tried = {t.layout_hash for t in trials}
            if chosen is None or not _round(
                store, run, study, target, observer, returns(study, chosen.layout, tried)
            ):
                break
    except KeyboardInterrupt:
        store.finish_run(run.id, "interrupted")
        raise
    except BaseException:
        store.finish_run(run.id, "failed")
        raise
    ok = any(t.ok for t in store.trials(run.id))
    store.finish_run(run.id, "done" if ok else "failed")
    return store.run(run.id)


def _round(
    store: Store, run: Run, study: Study, target: Replay, observer: Observer, layouts: Sequence[Layout]
) -> bool:
    """Run ``layouts`` as the next round; False if there is none that the target can run."""
    possible = [layout for layout in layouts if _possible(target, study, layout)]
    if not possible:
        return False
    number = 1 + max(t.round for t in store.trials(run.id))
    for layout in possible:
        store.add_trial(run.id, layout, round_=number)
    _run_pending(store, run, study, target, observer)
    return True


def _possible(target: ScreeningPlace, study: Study, layout: Layout) -> bool:
    try:
        target.check(study, layout)
    except InputError:
        return False
    return True


def _run_pending(store: Store, run: Run, study: Study, target: Replay, observer: Observer) -> None:
    """Run the run's pending trials, ``target.jobs`` at a time; the store is used from this thread alone."""
    pending = [t for t in store.trials(run.id) if t.status == "pending"]
    total = len(store.trials(run.id))
    done = total - len(pending)
    observer.total(done, total)
    stop = threading.Event()
    ended: queue.SimpleQueue[tuple[Trial, Outcome | BaseException]] = queue.SimpleQueue()
    running: dict[int, threading.Thread] = {}

    def work(trial: Trial, spec: dict[str, Any]) -> None:
        try:
            ended.put((trial, target.run(spec, lambda p, s: observer.progress(trial, p, s), stop)))
        except BaseException as error:  # handed to the main thread, which raises it
            ended.put((trial, error))

    # The longest first, so that no core is left with a long one at the end; the baseline before all.
    waiting = sorted(pending, key=lambda t: (not t.is_baseline, -expected_cost(t.layout)))
    try:
        while waiting or running:
            while waiting and len(running) < target.jobs:
                trial = waiting.pop(0)
                spec = target.spec(study, trial.layout, run.seed)
                store.start_trial(trial.id, spec)
                thread = threading.Thread(target=work, args=(trial, spec), daemon=True)
                running[trial.id] = thread
                thread.start()
            trial, outcome = _next(ended)
            running.pop(trial.id).join()
            if isinstance(outcome, BaseException):
                raise outcome
            _check_versions(run, outcome)
            finished = store.finish_trial(
                trial.id, result=outcome.result, error=outcome.error, wall_s=outcome.wall_s
            )
            done += 1
            ranked = allowed_order(study, store.trials(run.id))
            observer.finished(finished, ranked[0] if ranked else None)
            observer.total(done, total)
    finally:
        stop.set()
        for thread in running.values():
            if thread.ident is not None:  # it was begun before the interruption came
                thread.join()
        # By the store: an interruption may come between its notes and ours.
        for trial in store.trials(run.id):
            if trial.status == "running":
                store.reset_trial(trial.id)


def expected_cost(layout: Layout) -> int:
    """Return a number that grows with how long a replay takes: large records are read and written whole."""
    return max(parse_size(d.properties["recordsize"]) for d in layout.datasets)


def _next(
    ended: queue.SimpleQueue[tuple[Trial, Outcome | BaseException]],
) -> tuple[Trial, Outcome | BaseException]:
    """Wait for the next trial to end; in short waits, so that Ctrl-C is seen at once."""
    while True:
        try:
            return ended.get(timeout=0.2)
        except queue.Empty:
            continue


def _check_versions(run: Run, outcome: Outcome) -> None:
    """Refuse a result of another engine than the run's: it was replaced while the run went on."""
    engine = (outcome.result or {}).get("engine")
    if outcome.result is None:
        return
    found = (
        {k: str(engine.get(v)) for k, v in (("engine", "version"), ("openzfs", "openzfs"))}
        if isinstance(engine, dict)
        else {}
    )
    for key, value in found.items():
        if value != run.versions[key]:
            raise InputError(
                f"the engine changed during run {run.id} ({key} {run.versions[key]} → {value}): "
                f"its results are not to be mixed; start a new run"
            )
