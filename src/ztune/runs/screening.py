"""Screening: many layouts, one trace, all cores; every result stored as soon as it is there.

Used by ``ztune screen`` and ``ztune tune``. ``start`` begins a run, ``resume`` goes on with one that was cut;
both return the run when it is done. ``_Screening._rounds`` is the whole way: what is asked, what the model
proposes, and what is tried of the best after that.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ztune import __version__
from ztune.analysis.aged import BEST
from ztune.analysis.elsewhere import AMONG
from ztune.analysis.metrics import replayed
from ztune.analysis.standing import standing
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES, version_key
from ztune.places.engine import Engine
from ztune.places.engine_run import Outcome, Progress, sweep
from ztune.places.executor import Executor, PlannedReplay
from ztune.runs import feasible
from ztune.runs.ending import ending
from ztune.runs.follow import ScreenedPrior
from ztune.runs.from_trace import without_direct
from ztune.runs.observer import Observer
from ztune.runs.options import ScreenOptions
from ztune.runs.recordings import JobKey, found, key_of, of_run
from ztune.runs.refine import MAX_ROUNDS, back_to_default
from ztune.runs.replays import RunReplays
from ztune.runs.search import KEY, LayoutSearch, Stopped, ending_of, opening, stopped
from ztune.runs.space import AGE, changed, differences, first_round, meaning, unique
from ztune.search.propose import STARTS
from ztune.store import environment
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout, Study
from ztune.study.layout import with_settings
from ztune.trace import left_out, witness
from ztune.trace.reader import Trace
from ztune.units import parse_size

AT_ONCE = "at_once"
"""Where a run's ``outcome`` keeps how many layouts its search proposes before it looks at results."""
_MOST_AT_ONCE = 8
_LOOK_AHEAD = 8
"""Trials that are looked at for one that need not wait."""
_LOOK_S = 0.2
"""How long the end of a trial is waited for at a time, so that Ctrl-C is seen at once."""


def versions(engine: Engine) -> dict[str, str]:
    """Return what a run's results depend on."""
    return {"ztune": __version__, "engine": engine.version, "openzfs": engine.openzfs}


def start(
    store: Store,
    trace: Trace,
    study: Study,
    engine: Engine,
    options: ScreenOptions,
    *,
    kind: str = "screen",
    name: str | None = None,
    command: Sequence[str] = (),
    observer: Observer | None = None,
    like: Run | None = None,
    others: Mapping[JobKey, Trace] | None = None,
    executor: Executor | None = None,
) -> Run:
    """Screen ``trace`` against the layouts of ``study`` and return the finished run.

    ``like``: a run of another OpenZFS, whose layouts are tried, and no others. ``others``: the recordings of
    layouts whose job is not the base's, which ``trace`` is of; None: those that are kept (``recordings``).
    ``executor``: where layouts are replayed; None: on this machine.

    Everything that can be wrong with the input is found before the run is stored. Raises InputError,
    MissingError; KeyboardInterrupt after the run was marked interrupted.
    """
    if options.budget < 1:
        raise InputError(f"the budget is {options.budget}; at least 1 layout has to be tried")
    replayed(study.objective.minimise)
    if like is None and version_key(engine.openzfs) < version_key(PROPERTIES["direct"].since):
        study = without_direct(study)
    sweep()
    if others is None:
        others = found(study, trace, options.budget)
    seed = study.seed if options.seed is None else options.seed
    replays = RunReplays(study, trace, others, engine, options, seed, executor)
    for layout in [*opening(study, options.budget), *first_round(study, options.budget)]:
        replays.check(layout)
    warnings = [*study.notes, *feasible.check(study, options.budget), *replays.warnings]
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
        options=replace(options, sample=replays.rate.of, region=replays.rate.region).to_json(),
        warnings=warnings,
        source_run=None if like is None else like.id,
        outcome={**witness.kept(trace), **left_out.kept(trace), AT_ONCE: _at_once(replays)}
        | replays.rows_by_index(),
    )
    return _Screening(store, run, replays, options, observer or Observer()).go()


def resume(
    store: Store,
    run: Run,
    trace: Trace,
    engine: Engine,
    options: ScreenOptions,
    *,
    observer: Observer | None = None,
    executor: Executor | None = None,
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
    others = of_run(store, run)
    if set(map(key_of, first_round(study, options.budget))) - {key_of(study.layout), *others}:
        # It was cut before the first of their trials, or there is more budget now.
        others = {**found(study, trace, options.budget), **others}
    replays = RunReplays(study, trace, others, engine, _as_begun(run, options), run.seed, executor)
    run = store.resume_run(run.id)
    return _Screening(store, run, replays, options, observer or Observer()).go()


def _as_begun(run: Run, options: ScreenOptions) -> ScreenOptions:
    """Return ``options`` with the sample that the results of ``run`` are of; those of an older ztune are of
    all."""
    begun = ScreenOptions.of(run)
    return replace(options, sample=begun.sample or 1, load=begun.load)


def on_top(
    store: Store,
    run: Run,
    trace: Trace,
    layout: Layout,
    recording: Trace,
    engine: Engine,
    options: ScreenOptions,
    *,
    observer: Observer | None = None,
) -> Run:
    """Try ``layout`` too, whose job is not that of ``trace``, the base's, on its ``recording``; where it is
    then the one to recommend, also what each of its properties does alone. Return ``run``, done again.

    Raises as ``start`` does.
    """
    study = run.resolved_study
    others = {**of_run(store, run), key_of(layout): recording}
    replays = RunReplays(study, trace, others, engine, _as_begun(run, options), run.seed)
    replays.check(layout)
    screening = _Screening(store, store.resume_run(run.id), replays, options, observer or Observer())
    return screening.on_top(layout)


def chosen(store: Store, run: Run) -> Layout | None:
    """Return the layout that a screening recommends now, on the base's own disks and memory."""
    return _chosen(run, store.trials(run.id))


def _chosen(run: Run, trials: Sequence[Trial]) -> Layout | None:
    found = standing(run, trials).chosen
    return None if found is None else found.layout


def allowed_order(run: Run, trials: Sequence[Trial]) -> list[Trial]:
    """Return the finished trials that the objective allows, best first."""
    by_hash = {t.layout_hash: t for t in trials if not t.condition}
    return [by_hash[place.result.hash] for place in standing(run, trials).ranked]


def prior_of(run: Run, trials: Sequence[Trial], most: int) -> ScreenedPrior:
    """Return what a screening says of its layouts, for trials of ``most`` of them.

    Raises InputError where there is none beside the baseline.
    """
    return ScreenedPrior.of(run, trials, allowed_order(run, trials), _chosen(run, trials), most)


def _at_once(replays: RunReplays) -> int:
    """Return as many as there are engines, so that none is idle; of many a model learns less each."""
    return min(replays.executor.at_once, _MOST_AT_ONCE)


class _Screening:
    """A screening that is going on. The store is used from the calling thread alone."""

    def __init__(
        self, store: Store, run: Run, replays: RunReplays, options: ScreenOptions, observer: Observer
    ) -> None:
        self.store, self.run, self.replays = store, run, replays
        self.budget, self.only, self.have = options.budget, options.only, options.have
        self.ages, self.elsewhere = options.ages, options.elsewhere
        self.observer = observer
        self.study = run.resolved_study
        self._judge_again = 0.0
        self._most = 0  # layouts that are searched; what follows a search says itself how much it is

    def go(self) -> Run:
        """Run to the end and return the run."""
        self.observer.begin(self.run, self._all(), self.replays.executor.at_once)
        with ending(self.store, self.run):
            self._rounds()
        return self.store.run(self.run.id)

    def on_top(self, layout: Layout) -> Run:
        """Try ``layout`` too, and the pairs that prove it where it is the one to recommend."""
        self.observer.begin(self.run, self._all(), self.replays.executor.at_once)
        with ending(self.store, self.run):
            self._run_pending()  # what failed before
            self._new([layout], 1)
            chosen = self._chosen()
            if chosen is not None and chosen.hash == layout.hash:
                self._new(back_to_default(self.study.layout, chosen), self.budget)
        return self.store.run(self.run.id)

    def _all(self) -> list[Trial]:
        return self.store.trials(self.run.id)

    def _usual(self) -> list[Trial]:
        return [t for t in self._all() if not t.condition]

    def _rounds(self) -> None:
        study = self.study
        if self.run.source_run is not None:
            for trial in self.store.trials(self.run.source_run):
                if trial.condition:
                    continue
                self._add(trial.layout, trial.round, trial.is_baseline)
            self._run_pending()
            return
        asked = first_round(study, self.budget) if self.only else opening(study, self.budget)
        there = {t.layout_hash for t in self._usual()}
        new = [layout for layout in asked if layout.hash not in there]
        search = LayoutSearch(study, self._possible, self.have)
        if not self.only:
            named = sum(search.cell(layout) is None for layout in asked)
            self._most = min(self.budget, search.cells + named)
        for layout in new[: max(0, self.budget - len(there))]:  # an older ztune may have begun with others
            self._add(layout, 1, layout.hash == study.layout.hash)
        self._run_pending()
        if self.only:
            self._aged()
            self._neighbours()
            self._other_parts()
            return
        self._search(search)
        self._most = 0
        self._pairs(search)
        if self.budget >= STARTS:
            self._beside(search)
        self._aged()
        self._neighbours()
        self._other_parts()
        if self.elsewhere and self.budget >= STARTS:
            self._elsewhere()

    def _search(self, search: LayoutSearch) -> None:
        """Try what the model proposes until it says that enough is known, or the budget ends."""
        before = stopped(self.run.outcome)
        if before is not None and before.budget >= self.budget:
            return  # the run was cut in what follows
        at_once = int(self.run.outcome.get(AT_ONCE) or _at_once(self.replays))
        while True:
            trials = self._usual()
            room = self.budget - len(trials)
            proposal = search.propose(self.run, trials, max(1, min(at_once, room)))
            why = ending_of(trials, proposal, room)
            if why is not None:
                break
            self._round([search.layout(cell) for cell in proposal.cells])
        end = Stopped(
            why, len(trials), self.budget, search.cells, self.run.objective.within, proposal.chance,
            proposal.unvaried,
        )  # fmt: skip
        outcome = {**self.store.run(self.run.id).outcome, KEY: end.to_json()}
        self.run = self.store.note_run(self.run.id, outcome=outcome)

    def _pairs(self, search: LayoutSearch) -> None:
        """On top of the budget, no more than it again: what each property of the layout to recommend does
        alone, after properties that seem to do nothing went back together.

        It can show that another layout is better, which then needs its own pairs.
        """
        end = stopped(self.run.outcome)
        assert end is not None  # the search stored it
        searched = self._usual()[: end.tried]
        chosen = self._chosen(searched)
        if chosen is not None:
            self._new([search.plainer(self.run, searched, chosen)], 1)
        for _ in range(MAX_ROUNDS):
            chosen = self._chosen()
            room = end.tried + self.budget - len(self._usual())
            if chosen is None or not self._new(back_to_default(self.study.layout, chosen), room):
                break

    def _new(self, layouts: Sequence[Layout], room: int) -> bool:
        """Run those of ``layouts`` that were not tried, ``room`` at most; False if there is none."""
        base, tried = self.study.layout, {meaning(t.layout) for t in self._usual()}
        new = [layout for layout in unique(layouts) if meaning(layout) not in tried]
        return self._round([changed(base, differences(base, layout)) for layout in new[: max(0, room)]])

    def _beside(self, search: LayoutSearch) -> None:
        """Try what would have to be bought, and what is less durable than allowed, on top of what was found:
        each value once."""
        chosen = self._chosen()
        if chosen is not None:
            self._new(search.on_top(chosen), len(search.beside))

    def _aged(self) -> None:
        """Try the base and the best once more on pools of each age that was asked for, on top of all."""
        few = self._few()
        values = dict.fromkeys((*self.ages, *map(str, self.study.axes.get(AGE, ()))))
        layouts = [with_settings(layout, {AGE: value}) for value in values for layout in few]
        self._new(layouts, len(layouts))

    def _neighbours(self) -> None:
        """Replay the base and the best beside the neighbour, and it without them, on top of all."""
        conditions = self.replays.conditions
        self._once_more((layout, condition) for layout in self._few() for condition in conditions)

    def _other_parts(self) -> None:
        """Replay other samples with the base and the layout to recommend."""
        few = [layout for layout in self._few() if layout.age is None][:2]
        self._once_more((layout, condition) for layout in few for condition in self.replays.parts)

    def _elsewhere(self) -> None:
        """Replay the base, the layout to recommend and the next best with half and twice the ARC."""
        few = [layout for layout in self._few() if layout.age is None][:AMONG]
        self._once_more(
            (layout, condition) for layout in few for condition in self.replays.sizes_of_arc(layout)
        )

    def _once_more(self, wanted: Iterable[tuple[Layout, str]]) -> None:
        """Replay layouts that were tried under conditions of their own; what is there already stays."""
        number = 1 + max(t.round for t in self._all())
        for layout, condition in wanted:
            recording = self.replays.recording(layout)
            target = f"replay, {condition}"
            self.store.add_trial(self.run.id, layout, target=target, round_=number, recording=recording)
        self._run_pending()

    def _few(self) -> list[Layout]:
        """Return the base and the best, the one to recommend among them."""
        now = standing(self.run, self._all())
        best = [
            self.study.layout,
            *([now.chosen.layout] if now.chosen else []),
            *(p.result.layout for p in now.ranked),
        ]
        return list(itertools.islice(unique(best), BEST + 1))

    def _chosen(self, trials: Sequence[Trial] | None = None) -> Layout | None:
        """Return the layout to recommend of ``trials``, default all."""
        return _chosen(self.run, self._all() if trials is None else trials)

    def _add(self, layout: Layout, number: int, baseline: bool = False) -> None:
        self.store.add_trial(
            self.run.id, layout, is_baseline=baseline, round_=number, recording=self.replays.recording(layout)
        )

    def _round(self, layouts: Sequence[Layout]) -> bool:
        """Run ``layouts`` as the next round; False if there is none that can be replayed."""
        possible = [layout for layout in layouts if self._possible(layout)]
        if not possible:
            return False
        number = 1 + max(t.round for t in self._all())
        for layout in possible:
            self._add(layout, number)
        self._run_pending()
        return True

    def _possible(self, layout: Layout) -> bool:
        try:
            self.replays.check(layout)
        except InputError:
            return False
        return True

    def _planned(self, trial: Trial) -> PlannedReplay:
        return PlannedReplay(trial.id, self.replays.of_trial(trial), self.replays.spec(trial, self.run.seed))

    def _run_pending(self) -> None:
        """Run the run's pending trials, as many at a time as the executor takes."""
        everything = self._all()
        pending = [t for t in everything if t.status == "pending"]
        more = max(0, self._most - len(everything))
        self.observer.round(max(t.round for t in everything), len(pending), more)
        executor = self.replays.executor
        # The longest first, so that no core is left with a long one at the end; the baseline before all.
        waiting = deque(sorted(pending, key=lambda t: (not t.is_baseline, -expected_cost(t.layout))))
        by_id = {t.id: t for t in pending}
        planned: list[PlannedReplay] = []
        running = 0
        try:
            while waiting or planned or running:
                while waiting or planned:
                    while waiting and len(planned) < _LOOK_AHEAD:
                        planned.append(self._planned(waiting.popleft()))
                    chosen = executor.choose(planned)
                    if chosen is None:
                        break
                    planned.remove(chosen)
                    trial = by_id[chosen.number]
                    self.store.start_trial(trial.id, dict(chosen.spec))
                    self.observer.trial(trial)
                    running += 1
                    executor.begin(chosen, self._teller(trial))
                ended = executor.ended(_LOOK_S)
                if ended is None:
                    continue
                running -= 1
                replayed, outcome = ended
                if isinstance(outcome, InputError) and any(t.ok for t in self._all()):
                    outcome = Outcome(None, str(outcome), 0.0)  # there is no room for this one
                if isinstance(outcome, BaseException):
                    raise outcome
                self._finish(by_id[replayed.number], replayed.replay.read(outcome))
        finally:
            try:
                executor.stop()
            finally:  # it takes a while, in which there may be a second interruption
                # By the store: an interruption may come between its notes and ours.
                for trial in self._all():
                    if trial.status == "running":
                        self.store.reset_trial(trial.id)

    def _teller(self, trial: Trial) -> Progress:
        def tell(phase: str, share: float) -> None:
            self.observer.step(trial, phase, "progress", share, "")

        return tell

    def _finish(self, trial: Trial, outcome: Outcome) -> None:
        _check_versions(self.run, outcome)
        result = outcome.result and {**outcome.result, **self.replays.work(trial.layout)}
        finished = self.store.finish_trial(
            trial.id, result=result, error=outcome.error, wall_s=outcome.wall_s
        )
        self.observer.finished(finished, {})
        # Of thousands of layouts, to read all of them takes long: no more than a tenth of the time.
        began = time.monotonic()
        if began >= self._judge_again:
            self.observer.judged(self._all(), None)
            now = time.monotonic()
            self._judge_again = now + 9 * (now - began)


def expected_cost(layout: Layout) -> int:
    """Return a number that grows with how long a replay takes: large records are read and written whole."""
    return max(parse_size(d.properties["recordsize"]) for d in layout.datasets)


def _check_versions(run: Run, outcome: Outcome) -> None:
    """Refuse a result of another engine than the run's: it was replaced while the run went on."""
    engine = (outcome.result or {}).get("engine")
    if not isinstance(engine, dict):
        return
    for key, name in (("engine", "version"), ("openzfs", "openzfs")):
        value = str(engine.get(name))
        if value != run.versions[key]:
            raise InputError(
                f"the engine changed during run {run.id} ({key} {run.versions[key]} → {value}): "
                f"its results are not to be mixed; start a new run"
            )
