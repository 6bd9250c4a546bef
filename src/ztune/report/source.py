"""Where a report gets its evidence: the store's run and trials, and the trace if it is still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ztune.advice.joint_base import WeighedRun
from ztune.advice.model import Recommendation
from ztune.advice.recommend import recommend
from ztune.advice.weights import JobWeight
from ztune.analysis.standing import standing
from ztune.errors import InputError
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Objective
from ztune.study.hardware import check_have, parse_have
from ztune.trace import left_out
from ztune.trace.left_out import LeftOut
from ztune.trace.reader import Trace
from ztune.trace.witness import Witness, of_run

if TYPE_CHECKING:
    from ztune.trace.figures import Summary


@dataclass(frozen=True)
class RunEvidence:
    """A run, its trials, and the trace it replayed (None if that is gone or no longer the same)."""

    run: Run
    trials: list[Trial]
    trace: Trace | None
    trace_missing: str  # why ``trace`` is None, as a sentence
    screened: list[Trial]  # of the screening that a measured run took its layouts from; else empty
    measured_by: str = ""  # of a screening: the last finished run that measured its layouts

    def recommend(self, objective: Objective | None = None) -> Recommendation:
        """Return the recommendation; every command asks here. See ``ztune.advice.recommend.recommend``."""
        trace = self.recording(objective)
        manifest = None if trace is None else trace.manifest
        found = recommend(
            self.run,
            self.trials,
            objective,
            manifest,
            self.screened,
            self.witness(objective),
            self.left_out(objective),
        )
        if not self.measured_by:
            return found
        better = f"Run {self.measured_by} has measured layouts of this screening since: go by that."
        return found.model_copy(update={"warnings": [better, *found.warnings]})

    def weighed(self, weight: JobWeight, objective: Objective | None = None) -> WeighedRun:
        """Return the run as one of several jobs of a database. Raises InputError as ``recommend`` does."""
        return WeighedRun(
            run=self.run,
            trials=self.trials,
            alone=self.recommend(objective),
            weight=weight.value,
            per_day=weight.per_day,
            objective=objective,
            manifest=None if (trace := self.recording(objective)) is None else trace.manifest,
            witness=self.witness(objective),
            measured_by=self.measured_by,
        )

    def witness(self, objective: Objective | None = None) -> Witness | None:
        """Return what the recording of the layout to recommend says of acknowledgments: as the run has kept
        it of its own, else by the trace itself. None without a trace that can be read.
        """
        own = self._chosen(objective)[1] == self.run.trace_sha
        try:
            return of_run(self.run.outcome if own else {}, self.recording(objective))
        except InputError:  # damaged since
            return None

    def left_out(self, objective: Objective | None = None) -> LeftOut | None:
        """Return how much of the recording of the layout to recommend is of files without a role: as the run
        has kept it of its own, else by the trace itself. None where that is little, or not known.
        """
        own = self._chosen(objective)[1] == self.run.trace_sha
        try:
            return left_out.of_run(
                self.run.outcome if own else {}, self.recording(objective), self.run.warnings if own else ()
            )
        except InputError:  # damaged since
            return None

    def recording(self, objective: Objective | None = None) -> Trace | None:
        """Return the trace that the layout to recommend replayed: where layouts have recordings of their own,
        that is not always the run's. None where it is gone or no longer the same."""
        path, sha = self._chosen(objective)
        return self.trace if sha == self.run.trace_sha else _trace(path, sha)[0]

    def _chosen(self, objective: Objective | None) -> tuple[str, str]:
        """Return path and sha of the recording of the layout to recommend; without one, of the run's."""
        if any(trial.trace_sha for trial in self.trials):
            chosen = standing(self.run, self.trials, objective).chosen
            for trial in self.trials:
                if chosen is not None and trial.layout_hash == chosen.hash:
                    return self.run.recording_of(trial)
        return self.run.trace_path, self.run.trace_sha

    def summary(self) -> Summary | None:
        """Return what that trace shows, or None without a trace that can be read."""
        trace = self.recording()
        if trace is None:
            return None
        # Here, as only the HTML report asks, and Polars takes a quarter of a second to load.
        from ztune.trace.summary import summarise

        try:
            return summarise(trace, files=20)
        except InputError:  # damaged since; the report goes without histograms
            return None


def last_finished(store: Store) -> str:
    """Return the id of the last run that is done, else of the last. Raises InputError if there is none."""
    done = [run.id for run in store.runs() if run.status == "done" and store.is_own(run)]
    return done[-1] if done else store.run("last").id


def evidence(run_id: str | None = None, store: Store | None = None, have: Sequence[str] = ()) -> RunEvidence:
    """Return the evidence of a run (default: the last finished). Raises InputError without such a run.

    ``have``: hardware that is there though the run's base layout leaves it unused, as "slog=nvme".
    """
    if store is None:
        with Store.open() as opened:
            return evidence(run_id, opened, have)
    run = store.run(run_id or last_finished(store))
    run = having(run, have)
    trace, why = _trace(run.trace_path, run.trace_sha)
    # A screening with another OpenZFS has its layouts from one, which foretells nothing of it.
    screened = [] if run.source_run is None or not run.measured else store.trials(run.source_run)
    measured = [r.id for r in store.runs_from(run.id) if r.measured and r.status == "done"]
    return RunEvidence(run, store.trials(run.id), trace, why, screened, measured[-1] if measured else "")


def having(run: Run, words: Sequence[str]) -> Run:
    """Return ``run`` as if it had been made with the hardware in ``words`` ("slog=nvme") at hand."""
    if not words:
        return run
    found = parse_have(words, run.resolved_study.layout)
    kept = run.options.get("have") or {}
    return replace(run, options={**run.options, "have": {**kept, **found}})


def check_run_has(found: RunEvidence, words: Sequence[str]) -> None:
    """Raise InputError where no layout of the run takes some of the hardware in ``words``."""
    base = found.run.resolved_study.layout
    layouts = [trial.layout for trial in found.trials]
    for unused in check_have(parse_have(words, base), base, layouts, f"run {found.run.id}"):
        raise InputError(unused.removesuffix("."))


def best(
    run_id: str | None = None, objective: str | None = None, have: Sequence[str] = ()
) -> tuple[RunEvidence, str]:
    """Return the best evidence there is for a run (default: the last finished), and which, as a sentence.

    That is the run which measured the layouts of a screening, unless ``objective`` orders its replays anew;
    else the run itself, and the sentence is "". Raises InputError as ``evidence`` does.
    """
    found = evidence(run_id, have=have)
    check_run_has(found, have)
    if not found.measured_by or objective is not None:
        return found, ""
    better = found.measured_by
    said = f"run {found.run.id} screened these layouts; this goes by run {better}, which measured them"
    return evidence(better, have=have), said


def _trace(path: str, sha: str) -> tuple[Trace | None, str]:
    if not path:
        return None, "The run has no trace: nothing was replayed."
    try:
        return Trace.reopen(path, sha), ""
    except InputError as error:
        return None, f"The trace can't be read any more: {error}."
