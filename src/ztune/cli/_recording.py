"""Recording a workload of ztune's own, with its steps on stderr."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ztune import output
from ztune.databases.rules import NO_ROLE
from ztune.databases.workload import JobWorkload, Workload, running
from ztune.runs import recordings
from ztune.runs.recordings import JobKey
from ztune.runs.space import first_round
from ztune.study import Study
from ztune.trace import headroom
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.roles import RoleRules


def record_workload(workload: Workload, recorder: str, out: Path) -> Trace:
    """Run ``workload`` below ``recorder`` from its beginning to its proof; return the trace, in ``out``.

    Raises TooLargeError where there is no room for it, before anything else.
    """
    # Each time, and before its database is filled: the recordings of a series fill the disk one by one.
    headroom.require(out.parent, headroom.BY_HOME)
    # Here, as recordings that are there already take none of what makes them: NumPy and Arrow.
    from ztune.trace.record import Recording
    from ztune.trace.warming import Warming

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
        try:
            started.verify(result)
        except BaseException:
            shutil.rmtree(out)  # no run will refer to it, and it holds blocks of content
            raise
        step("check that the job was done", 1.0)
    declared = getattr(workload, "roles_declared", False)
    for role in _unused(recording.trace, roles.values()) if declared else ():
        output.warn(
            f"the job did nothing to files of its role {role}, so nothing is known of them and no layout is "
            "chosen for them; see that the database has them in that role's directory"
        )
    return recording.trace


def _unused(trace: Trace, roles: Iterable[str]) -> list[str]:
    """Return which of ``roles`` have no event in ``trace``."""
    files = {int(file) for part in trace.parts("file") for file in {*part["file"].tolist()}} - {-1}
    return sorted({*roles} - {trace.manifest.files[file].role for file in files} - {NO_ROLE})


def record_jobs(
    study: Study, workload: str, parameters: Mapping[str, Any], recorder: str, budget: int
) -> tuple[Trace, dict[JobKey, Trace]]:
    """Record what the first ``budget`` layouts of ``study`` are replayed on, as far as it is not there yet;
    return the base's recording and those of the other jobs. Each is kept as soon as it is made.

    Raises InputError, MissingError before anything is recorded; ZtuneError where a job fails.
    """
    wanted = recordings.jobs(study, workload, parameters, first_round(study, budget))
    missing = [job for job in wanted if not job.there]
    for job in missing:
        job.workload.check()
    there = len(wanted) - len(missing)
    said = f"the layouts take {len(wanted)} recordings of {workload}"
    output.echo(f"{said}: {len(missing)} to make, {there} there already", err=True)
    found: dict[JobKey, Trace] = {}
    for job in wanted:
        if job in missing:
            output.echo(f"recording {1 + missing.index(job)} of {len(missing)}: {job.words}", err=True)
        found[job.key] = job.trace(lambda made, path: record_workload(made, recorder, path))
    base = found.pop(wanted[0].key)
    return base, found


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
