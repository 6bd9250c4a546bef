"""What ``ztune run`` shows: a live view on a terminal, lines elsewhere. All on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ztune import output
from ztune.analysis import units
from ztune.analysis.measured import MEASURES, clock, gather
from ztune.analysis.verdict import sentence
from ztune.output import Console, Text
from ztune.places.channel import Place
from ztune.report.measured import ratio_text
from ztune.runs.pace import Pace
from ztune.runs.plan import Options
from ztune.store.records import Run, Trial

_PLAIN_S = 30.0  # seconds between two lines about the same step where stderr is no terminal
_PER_SECOND = 4


class LiveView:
    """An observer of a run. Use as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._pace = Pace()
        self._trial: Trial | None = None
        self._step, self._share, self._text = "", 0.0, ""
        self._began = time.monotonic()
        self._waiting, self._most, self._block = 0, 0, 0
        self._done = self._failed = 0
        self._best = ""
        self._said = 0.0

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self._view,
                refresh_per_second=_PER_SECOND,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    # --- the observer

    def begin(self, run: Run, place: Place, trials: Sequence[Trial]) -> None:
        """Say which run it is, so that a cut run can be named."""
        self._run = run
        self._pace = Pace(trials)
        self._done = sum(t.ok for t in trials)
        self._failed = sum(t.status == "failed" for t in trials)
        layouts = len({t.arm for t in trials})
        zfs = run.versions.get("openzfs")
        what = f"OpenZFS {zfs}, kernel {run.versions.get('kernel', '?')}" if zfs else "no OpenZFS"
        least, most = Options.of(run).blocks
        runs = str(least) if least == most else f"{least} to {most}"
        self.say(
            f"run {run.id}: {run.job['workload']} on {place.name} ({what}), {layouts} layouts, "
            f"{runs} run{'' if runs == '1' else 's'} each"
        )
        if clock(run) == "emulated":
            self.say(
                f"{place.name} runs without hardware virtualisation: "
                "operations and bytes are real, seconds are emulated"
            )

    def block(self, number: int, waiting: int, most: int) -> None:
        """A block begins."""
        with self._lock:
            self._block, self._waiting, self._most = number, waiting, most

    def trial(self, trial: Trial) -> None:
        """A trial begins."""
        with self._lock:
            self._trial, self._step, self._share, self._text = trial, "", 0.0, ""
            self._began = time.monotonic()
            self._waiting = max(0, self._waiting - 1)
            self._said = 0.0
        if self._live is None:
            self._line(f"trial {trial.number}, block {trial.block}: {_name(trial)}")

    def step(self, step: str, state: str, share: float, text: str) -> None:
        """The trial got on."""
        with self._lock:
            new = step != self._step
            self._step, self._share, self._text = step, (1.0 if state == "end" else share), text
            quiet = self._live is not None or state == "end"
            if quiet or (not new and time.monotonic() - self._said < _PLAIN_S):
                return
            self._said = time.monotonic()
        detail = f" {share:.0%}" if state == "progress" and share else ""
        self._line(f"  {step}{detail}{': ' + text if text else ''}{self._left(', {} left')}")

    def finished(self, trial: Trial, steps: dict[str, float]) -> None:
        """A trial ended."""
        with self._lock:
            self._trial = None
            if trial.ok:
                self._done += 1
                self._pace.add({**steps, **(trial.result or {}).get("steps", {})}, trial.wall_s or 0.0)
            else:
                self._failed += 1
        if trial.ok:
            self.say(f"trial {trial.number}, {_name(trial)}: {_result(trial, self._run)}")
        else:
            self.say(f"trial {trial.number}, {_name(trial)} failed: {trial.error}")

    def judged(self, outcome: dict[str, Any], trials: Sequence[Trial]) -> None:
        """A block ended: who leads?"""
        assert self._run is not None
        text = sentence(outcome, Options.of(self._run).resolution)
        with self._lock:
            self._best = _best(outcome, trials, self._run)
        if outcome["reason"] == "running":
            self.say(f"block {self._block}: {text}")

    def say(self, text: str) -> None:
        """Print a sentence above the view."""
        self._line(text)

    # --- drawing

    def _line(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False)
        else:
            output.echo(text, err=True)

    def _left(self, form: str) -> str:
        with self._lock:
            least = self._pace.left_s(self._waiting, self._step if self._trial else "", self._share)
        return "" if least is None else form.format(units.seconds(least))

    def _view(self) -> Group:
        with self._lock:
            trial, step, share, text = self._trial, self._step, self._share, self._text
            done, failed, waiting = self._done, self._failed, self._waiting
            best, most = self._best, self._most
        head = Text()
        if trial is not None:
            head.append("trial ", "dim").append(str(trial.number))
            head.append("  block ", "dim").append(f"{trial.block}  ").append(_name(trial), "bold")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(step or "waiting", style="cyan"), ProgressBar(1.0, share, width=28), Text(text, style="dim")
        )
        state = (
            f"{done} done" + (f", {failed} failed" if failed else "") + f", {waiting} waiting in this block"
        )
        left = self._left("; {} left in it")
        tail = f"; up to {most} trials may follow" if most else ""
        parts: list[Any] = [head, bar, Text(state + left + tail, style="dim")]
        if best:
            parts.append(Text(best))
        return Group(*parts)


def _name(trial: Trial) -> str:
    return trial.layout_name + (" (again)" if trial.twin else "")


def _result(trial: Trial, run: Run | None) -> str:
    """Return what a trial measured, in a few words."""
    result = trial.result or {}
    words = []
    for key, form in (
        ("per_second", "{}/s"),
        ("written", "{} written each"),
        ("ios", "{} disk operations each"),
    ):
        value = MEASURES[key].read(result)
        if value is None:
            continue
        if key == "per_second":
            unit = str((result.get("job") or {}).get("unit") or "operation")
            emulated = " emulated" if run is not None and clock(run) == "emulated" else ""
            words.append(f"{value:,.1f} {units.plural(unit)}/s{emulated}")
        else:
            words.append(form.format(units.show(value, MEASURES[key].unit)))
    return ", ".join(words) or "done"


def _best(outcome: dict[str, Any], trials: Sequence[Trial], run: Run) -> str:
    """Return the best layout so far with its interval against the baseline."""
    cell = next((c for c in gather(trials).cells if c.arm == outcome["leader"]), None)
    if cell is None:
        return ""
    key = outcome["measure"]
    value = cell.value(key)
    text = f"best so far: {cell.name}"
    if value is not None:
        text += f", {outcome['label']} {units.show(value, MEASURES[key].unit)}"
        text += " (emulated)" if MEASURES[key].clock and clock(run) == "emulated" else ""
    ratio = cell.against.get(key)
    if ratio is not None and ratio.known:
        text += f", {ratio_text(ratio)} of the baseline's"
    return text
