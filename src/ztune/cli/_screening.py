"""What ``ztune screen`` shows: progress while it runs, the table at the end."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ztune import output
from ztune.output import Console
from ztune.report import source, terminal
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import Layout
from ztune.trace.reader import Trace

_LOAD_SHARE = 0.3  # of a trial's time that loading the pools takes, for the bar alone
_PLAIN_S = 15.0  # seconds between two plain lines where stderr is no terminal


class Shown:
    """Progress of a screening on stderr: a bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self, trace: Trace, store: Store) -> None:
        self._trace = trace
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._lock = threading.Lock()
        self._shares: dict[int, float] = {}
        self._done = 0
        self._total = 0
        self._said = 0.0
        self._best = ""

    def __enter__(self) -> Shown:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("screening"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[best]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("screening", total=None, best="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, run: Run, jobs: int) -> None:
        """Say which run it is, so that a cut run can be named."""
        openzfs = run.versions["openzfs"]
        self._line(f"run {run.id}: {self._trace.name} through OpenZFS {openzfs}, {jobs} at a time")

    def total(self, done: int, total: int) -> None:
        """Show how far it is."""
        with self._lock:
            self._done, self._total = done, total
            self._show()

    def progress(self, trial: Trial, phase: str, share: float) -> None:
        """Show how far the running trials are."""
        with self._lock:
            self._shares[trial.id] = (
                share * _LOAD_SHARE if phase == "load" else _LOAD_SHARE + share * (1 - _LOAD_SHARE)
            )
            self._show()

    def finished(self, trial: Trial, best: Trial | None) -> None:
        """Show the best layout so far; name a layout that failed."""
        with self._lock:
            self._shares.pop(trial.id, None)
            if best is not None:
                seconds = best.measure.get("model", {}).get("modelled_s", 0.0)
                self._best = f"best: {best.layout_name} ({seconds:.1f} s modelled)"
        if not trial.ok:
            self._line(f"layout {trial.number} ({trial.layout_name}) failed: {trial.error}")

    def _show(self) -> None:
        if self._bar is not None:
            at = self._done + sum(self._shares.values())
            self._bar.update(
                self._task, completed=round(min(at, self._total), 2), total=self._total, best=self._best
            )
        elif self._total and time.monotonic() - self._said > _PLAIN_S:
            self._said = time.monotonic()
            output.echo(f"{self._done} of {self._total} layouts done; {self._best}".rstrip("; "), err=True)

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            output.echo(text, err=True)


def changes(base: Layout, layout: Layout) -> dict[str, str]:
    """Return the factors in which ``layout`` differs from ``base``, with the layout's values."""
    ours, theirs = base.settings(), layout.settings()
    return {k: theirs.get(k, "default") for k in sorted({*ours, *theirs}) if ours.get(k) != theirs.get(k)}


def print_ranking(run: Run, store: Store, top: int | None) -> None:
    """Print the layouts in order, best first: the first ``top`` of them, or all."""
    trials = store.trials(run.id)
    if not any(t.ok for t in trials):
        output.echo(f"run {run.id}: no layout has a result", err=True)
        return
    console = Console(highlight=False)
    console.print(f"Run {run.id}: {run.name}. Times are modelled from the disks' profile, not measured.")
    console.print(terminal.ranking(source.evidence(run.id, store).recommend(), top))
