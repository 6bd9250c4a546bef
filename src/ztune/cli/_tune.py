"""The steps of ``ztune tune``: run the workload, record, screen, measure if asked, recommend, write files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ztune import files, output, paths
from ztune.advice.commands import script
from ztune.advice.model import Recommendation
from ztune.cli._live import LiveView
from ztune.cli._options import (
    arc_option,
    argument,
    budget_option,
    jobs_option,
    option,
    params_option,
    profile_option,
    seed_option,
)
from ztune.cli.screen import ranking_json
from ztune.databases import memory, registry
from ztune.databases.rules import NO_ROLE
from ztune.databases.workload import JobWorkload, Workload, running
from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places.channel import Place
from ztune.report import html, source
from ztune.report import measured as reports
from ztune.runs import runner, screening
from ztune.runs.asked import study_for
from ztune.runs.options import DEFAULT_BUDGET, ScreenOptions, TrialOptions
from ztune.runs.plan import best_of, workload_job
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, profiles, ready
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.record import Recording
from ztune.trace.recorders import choose
from ztune.trace.roles import RoleRules
from ztune.trace.warming import Warming


@dataclass(frozen=True)
class TuneOptions:
    """What the user asked ``ztune tune`` for, beside trials."""

    workload: str = argument()
    params: dict[str, str] = params_option
    out: Path | None = option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where report.html, apply.sh and run.json go. Default: ztune-WORKLOAD here.",
    )
    study: str | None = option(
        "--study",
        metavar="FILE|NAME",
        help="The layouts to try: a TOML file or a ready study. Default: the workload's own.",
    )
    profile: str | None = profile_option
    arc: str | None = arc_option
    budget: int | None = budget_option
    jobs: int | None = jobs_option
    seed: int | None = seed_option
    recorder: Literal["auto", "ebpf", "strace"] = option(
        "--recorder", default="auto", help="How to record; auto takes eBPF where it is allowed."
    )

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.out or Path(f"ztune-{self.workload}")


@dataclass(frozen=True)
class Trying:
    """Where the best layouts are measured, which is not yet up; how many of them, and how."""

    place: Place
    top: int
    options: TrialOptions


@dataclass(frozen=True)
class Tuned:
    """What came of it. ``failed``: how many layouts and trials failed; each was named when it did.

    ``decides``: the run that ``recommendation`` is of: the measured one where there is one with a result.
    """

    run_id: str
    trace: Path
    recommendation: Recommendation
    failed: int
    decides: source.RunEvidence
    measured: source.RunEvidence | None = None


def tune(asked: TuneOptions, trying: Trying | None) -> Tuned:
    """Do the whole loop, with trials if they are asked for. Files appear in ``asked.folder`` only at the end,
    all of them.

    Raises InputError, MissingError, ZtuneError; KeyboardInterrupt after everything was cleaned up.
    """
    workload = registry.make(asked.workload, {**_memory(asked), **_study_parameters(asked), **asked.params})
    _check_early(asked, trying, workload)
    engine = engines.check()
    made_out = not asked.folder.exists()
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {asked.folder}: {error.strerror}") from None
    done = False
    try:
        # Kept with the results: a run whose trace is gone could not be repeated.
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        trace = record_workload(workload, asked.recorder, paths.traces() / f"{asked.workload}-{stamp}.trace")
        study = study_for(trace, asked.study, asked.profile, asked.arc)
        options = ScreenOptions(jobs=asked.jobs or 0, budget=asked.budget or DEFAULT_BUDGET, seed=asked.seed)
        with Store.open() as store:
            with LiveView() as live:
                run = screening.start(
                    store, trace, study, engine, options,
                    kind="tune", command=["ztune", *sys.argv[1:]], observer=live,
                )  # fmt: skip
            measured = None
            if trying is not None:
                # The screening's files are there whatever comes of the trials.
                _write(asked, run.id, trace.path, store, None)
                done = True
                measured = _measure(trying, asked.seed, workload, run, store)
            outcome = _write(asked, run.id, trace.path, store, measured)
        done = True
        return outcome
    finally:
        if made_out and not done:
            shutil.rmtree(asked.folder, ignore_errors=True)


def _named_study(asked: TuneOptions) -> Study | None:
    """Return the ready study or the file that is asked for, or else the workload's own; none: it has none."""
    name = asked.study or asked.workload
    return ready.find(name) if asked.study or name in ready.files() else None


def _study_parameters(asked: TuneOptions) -> dict[str, Any]:
    """Return the workload's parameters that its study asks for, if it is one for this workload."""
    study = _named_study(asked)
    return {} if study is None or study.workload not in (None, asked.workload) else dict(study.parameters)


def _memory(asked: TuneOptions) -> dict[str, Any]:
    """Return the ARC of the layouts that will be tried, if the workload has a size that is relative to it."""
    fields = registry.get(asked.workload).Parameters.model_fields
    if not memory.is_relative(fields, {**_study_parameters(asked), **asked.params}):
        return {}
    if asked.arc is not None:
        return {"arc": asked.arc}
    study = _named_study(asked)
    return {} if study is None else {"arc": study.layout.arc}


def _check_together(workload: Workload, study: Study) -> None:
    """Refuse a study that parts what the database keeps together.

    Raises InputError.
    """
    for role, why in getattr(workload, "roles_together", {}).items():
        beside, own = study.layout.dataset_of("data"), study.layout.dataset_of(role)
        if beside is not None and own is not None and beside.name != own.name:
            raise InputError(
                f'study "{study.name}" gives {role} the dataset {own.name} and data {beside.name}: {why}'
            )


def _check_early(asked: TuneOptions, trying: Trying | None, workload: Workload) -> None:
    """Find what is wrong before a database is filled: a wrong flag must not cost a minute."""
    workload.check()
    choose(asked.recorder)
    if asked.study is not None:
        _check_together(workload, ready.find(asked.study))
    if asked.profile is not None:
        profiles.find(asked.profile)
    if trying is not None:
        with trying.place as place:
            place.about_host()


def record_workload(workload: Workload, recorder: str, out: Path) -> Trace:
    """Run ``workload`` below ``recorder`` from its beginning to its proof; return the trace, in ``out``."""
    warming = Warming(recorder)
    with _steps() as step, running(workload, progress=step, starting=warming) as started:
        roles = {str(path): role for role, path in started.role_paths().items()}
        if isinstance(started, JobWorkload):
            roles |= {str(path): NO_ROLE for path in started.unrecorded_paths()}
        rules = RoleRules.below(roles)
        recording = Recording(
            out,
            pids=started.pids(),
            recorder=recorder,
            rules=rules,
            # A role may be a file that is not there yet, in the directory of another.
            paths=[path for path in started.role_paths().values() if path.exists()],
            # The rows are our own, so real blocks of them may be kept: they compress as the data did.
            keep_samples=True,
            page_size=started.page_sizes(),
            warmth=warming.seen,
            say=lambda text: step(text, 0.0),
        )
        with recording:
            result = started.run(step)
            recording.workload = WorkloadInfo(**started.info(result))
        step("check that the job was done", 0.0)
        started.verify(result)
        step("check that the job was done", 1.0)
    return recording.trace


def _measure(trying: Trying, seed: int | None, workload: Workload, screened: Run, store: Store) -> Run:
    """Run the best few layouts of the screening and the baseline on real file systems."""
    job = workload_job(workload)
    if not trying.place.name.startswith("ssh://"):
        job = replace(job, version=workload.check())
    trials = store.trials(screened.id)
    study = screened.resolved_study
    request = runner.Request(
        study=study,
        layouts=best_of(screened, screening.allowed_order(screened, trials), trials, trying.top),
        job=job,
        place=trying.place,
        options=trying.options,
        seed=seed,
        command=["ztune", *sys.argv[1:]],
        source_run=screened.id,
    )
    with LiveView() as live:
        return runner.start(store, request, live)


def _write(asked: TuneOptions, run_id: str, trace: Path, store: Store, measured: Run | None) -> Tuned:
    """Write the files of the run that decides: the measured one, if any of its trials has a result.

    The report of the other stands beside it: what screening predicted, or what of the trials failed.
    """
    screened = source.evidence(run_id, store)
    found = screened if measured is None else source.evidence(measured.id, store)
    decides = found if any(t.ok for t in found.trials) else screened
    recommendation = decides.recommend()
    files.write(asked.folder / "report.html", html.of(decides))
    whole = ranking_json(screened.run, screened.trials)
    whole["recommendation"] = recommendation.model_dump(mode="json")
    if measured is not None:
        name, other = ("screened", screened) if decides is found else ("measured", found)
        files.write(asked.folder / f"{name}.html", html.of(other))
        whole["measured"] = reports.to_json(found.run, found.trials, found.screened)
    files.write(asked.folder / "apply.sh", script(recommendation), executable=True)
    files.write(asked.folder / "run.json", output.json_text(whole) + "\n")
    trials = screened.trials if measured is None else [*screened.trials, *found.trials]
    failed = sum(t.status == "failed" for t in trials)
    return Tuned(run_id, trace, recommendation, failed, decides, None if measured is None else found)


class _Steps:
    """Shows the steps of the workload on stderr: a bar on a terminal, a line per step elsewhere."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._name = ""
        self._task: TaskID | None = None

    def __call__(self, name: str, done: float) -> None:
        """Note that step ``name`` is done to the share ``done`` (0…1)."""
        if name != self._name:
            self._finish()
            self._name = name
            if self._bar is None:
                output.echo(name, err=True)
            else:
                self._task = self._bar.add_task(name, total=1.0)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def _finish(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=1.0)


@contextmanager
def _steps() -> Iterator[_Steps]:
    console = output.Console(stderr=True)
    if not console.is_terminal:
        yield _Steps(None)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        steps = _Steps(bar)
        yield steps
        steps("done", 1.0)
