"""What is shown of a run while it goes on: a live view on a terminal, lines elsewhere. All on stderr."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from ztune import output
from ztune.analysis import sampled, units
from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED, operations, table
from ztune.analysis.results import collect
from ztune.analysis.verdict import sentence
from ztune.cli._waiting import waiting
from ztune.output import Console, Text
from ztune.places.executor import HostProgress
from ztune.runs.observer import Observer
from ztune.runs.options import TrialOptions
from ztune.runs.pace import TimeLeft
from ztune.runs.screening import allowed_order
from ztune.store.records import Run, Trial
from ztune.units import listed, plural

_STEP_S = 30.0  # seconds between two lines about the same step where stderr is no terminal
_REPLAYS_S = 15.0  # and between two lines about replays, of which many end in that time
_MOST_S = (
    300.0  # to where that doubles with each line as long as nothing ends: some stop a job that is silent
)
_A_WHILE_S = 10.0  # that a round of replays takes yet: less says nothing of the rounds that follow
_PER_SECOND = 4
_SHOWN = 8  # trials that run side by side, a line each


@dataclass
class _Running:
    """Where a trial is."""

    trial: Trial
    step: str = ""
    share: float = 0.0
    text: str = ""
    began: float = field(default_factory=time.monotonic)
    """When its step did."""


class LiveView(Observer):
    """Shows a run, of replays or of real databases. Use as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._run: Run | None = None
        self._pace = TimeLeft()
        self._at_once = 1
        self._running: dict[int, _Running] = {}
        self._number, self._waiting, self._more = 0, 0, 0
        self._done = self._failed = 0
        self._best = ""
        self._waits = ""
        """What is waited for, before there is a run."""
        self._said = 0.0
        self._wait, self._of = 0.0, ""
        """Seconds from the last line to the next, and what that was of."""
        self._done_on: Counter[str] = Counter()
        self.hosts: Callable[[], Sequence[HostProgress]] = list
        """What the hosts of a fleet do; nothing where all is done here."""

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

    @contextmanager
    def waits(self, what: str) -> Iterator[None]:
        """Say what is waited for once it takes longer than a moment; on a terminal at once."""
        if self._live is None:
            with waiting(what):
                yield
            return
        self._waits = what
        try:
            yield
        finally:
            self._waits = ""

    def begin(self, run: Run, trials: Sequence[Trial], at_once: int) -> None:
        """Say which run it is, so that a cut run can be named."""
        self._run, self._at_once = run, at_once
        self._pace = TimeLeft(trials)
        self._done = sum(t.ok for t in trials)
        self._failed = sum(t.status == "failed" for t in trials)
        self._done_on = Counter(t.host for t in trials if t.ok)
        for line in _begun(run, trials, at_once):
            self.say(line)

    def round(self, number: int, waiting: int, more: int) -> None:
        """A round begins; what failed in a run that was cut waits again."""
        with self._lock:
            self._number, self._waiting, self._more = number, waiting, more

    def trial(self, trial: Trial) -> None:
        """A trial begins."""
        with self._lock:
            self._running[trial.id] = _Running(trial)
            self._waiting = max(0, self._waiting - 1)
            if self._measured:
                self._said = 0.0
        if self._live is None and self._measured:
            self.say(f"trial {trial.number}, block {trial.block}{self._on(trial)}: {_name(trial)}")

    def step(self, trial: Trial, step: str, state: str, share: float, text: str) -> None:
        """The trial got on."""
        with self._lock:
            # Loading once for all trials comes before the first of them begins.
            at = self._running.setdefault(trial.id, _Running(trial))
            waits = state == "wait"
            new = step != at.step or waits
            if step != at.step:
                at.began = time.monotonic()
            if not waits:
                at.share = 1.0 if state == "end" else share
            at.step, at.text = step, text
            of = f"{trial.id} {step}" if self._measured else f"{self._done + self._failed} replays"
            if of != self._of:
                self._of, self._wait = of, _STEP_S if self._measured else _REPLAYS_S
            soon = time.monotonic() - self._said < self._wait and not (new and self._measured)
            if self._live is not None or state == "end" or soon:
                return
            self._said, self._wait = time.monotonic(), min(2 * self._wait, _MOST_S)
        if self._measured:
            detail = f" {share:.0%}" if state == "progress" and share else ""
            number = f"trial {trial.number}, " if self._several else ""
            said = ": ".join(filter(None, [step + detail, text]))
            self.say(f"  {number}{said}{self._left(', {} left')}")
        else:
            self._tell_progress()

    def finished(self, trial: Trial, steps: Mapping[str, float]) -> None:
        """A trial ended."""
        with self._lock:
            self._running.pop(trial.id, None)
            if trial.ok:
                self._done += 1
                self._done_on[trial.host] += 1
                self._pace.add({**steps, **(trial.result or {}).get("steps", {})}, trial.wall_s or 0.0)
            else:
                self._failed += 1
        if not trial.ok:
            self.say(f"trial {trial.number}{self._on(trial)}, {_name(trial)} failed: {trial.error}")
        elif self._measured:
            self.say(f"trial {trial.number}{self._on(trial)}, {_name(trial)}: {_result(trial, self._run)}")

    def judged(self, trials: Sequence[Trial], outcome: Mapping[str, Any] | None) -> None:
        """Who leads?"""
        assert self._run is not None
        if outcome is None:
            best = _best_replay(self._run, trials)
        else:
            best = _best_measured(outcome, trials, self._run)
        with self._lock:
            self._best = best
        if outcome is not None and outcome["reason"] == "running":
            text = sentence(dict(outcome), TrialOptions.of(self._run).resolution)
            self.say(f"block {self._number}: {text}")

    def say(self, text: str) -> None:
        """Print a sentence above the view."""
        if self._live is not None:
            self._live.console.print(text, highlight=False)
        else:
            output.echo(text, err=True)

    # --- drawing

    @property
    def _measured(self) -> bool:
        return self._run is not None and self._run.measured

    @property
    def _several(self) -> bool:
        return self._run is not None and bool(self._run.target.get("hosts"))

    def _on(self, trial: Trial) -> str:
        """Return where a trial is, to follow its block; "" where there is but one place."""
        return f" on {trial.host}" if self._several else ""

    def _tell_progress(self) -> None:
        with self._lock:
            total = self._done + self._failed + len(self._running) + self._waiting
            aging = [f"{at.share:.0%}" for at in self._running.values() if at.step == "age"]
            aged = f"aging pools, {listed(aging)} done" if aging else ""
            follow = f", up to {self._more} may follow" if self._more else ""
            # Not of layouts: some are replayed again, with other memory and processors.
            words = [f"{self._done + self._failed} of {total} replays done{follow}", aged, self._best]
        self.say("; ".join(filter(None, [*words, self._left_of_all(), *self._by_host()])))

    def _by_host(self) -> list[str]:
        """Return what each host does, the first of many."""
        hosts = self.hosts()
        if self._several:
            assert self._run is not None
            names = [str(host["name"]) for host in self._run.target["hosts"]]
            names = list(dict.fromkeys([*names, *self._done_on]))
            return ["done: " + ", ".join(f"{name} {self._done_on[name]}" for name in names)]
        said = [f"{h.host}: {h.running} of {h.slots} engines busy, {h.done} done" for h in hosts[:_SHOWN]]
        rest = hosts[_SHOWN:]
        if rest:
            slots, busy, done = (sum(getattr(h, of) for h in rest) for of in ("slots", "running", "done"))
            said.append(f"{len(rest)} more hosts: {busy} of {slots} engines busy, {done} done")
        return said

    def _left_of_all(self) -> str:
        """Return how long it takes yet: with all that may follow, or this round where it is a while; "" where
        it is not: how many rounds there are is not known, and a moment says nothing of them."""
        with self._lock:
            more, round_s = self._more, self._left_s()
            whole = self._left_s(more)
        if more:
            return "" if whole is None else f"up to {units.seconds(whole)} left"
        if round_s is None or round_s < _A_WHILE_S:
            return ""
        return f"{units.seconds(round_s)} left in this round"

    def _left_s(self, more: int = 0) -> float | None:
        """Return the seconds that what runs and waits takes yet, and ``more`` besides; None: not known."""
        now = time.monotonic()
        running = [(at.step, at.share, now - at.began) for at in self._running.values()]
        return self._pace.left_s(self._waiting + more, running, self._at_once)

    def _left(self, form: str) -> str:
        """Return how long what runs and waits takes yet; "" where it is not known."""
        with self._lock:
            least = self._left_s()
        return "" if least is None else form.format(units.seconds(least))

    def _view(self) -> Group:
        if self._run is None:
            return Group(Text(f"{self._waits} …" if self._waits else "", style="dim"))
        with self._lock:
            running = [_Running(at.trial, at.step, at.share, at.text) for at in self._running.values()]
            done, failed, waiting = self._done, self._failed, self._waiting
            best, more = self._best, self._more
        rows = Table.grid(padding=(0, 1))
        for at in running[:_SHOWN]:
            block = f"block {at.trial.block}{self._on(at.trial)}" if self._measured else ""
            rows.add_row(
                Text(f"trial {at.trial.number}", style="dim"),
                Text(block, style="dim"),
                Text(_name(at.trial), style="bold"),
                Text(at.step or "waiting", style="cyan"),
                ProgressBar(1.0, at.share, width=20),
                Text(at.text, style="dim"),
            )
        state = f"{done} done" + (f", {failed} failed" if failed else "")
        state += f", {waiting} waiting in this {'block' if self._measured else 'round'}"
        if self._measured:
            tail = self._left("; {} left in it")
        else:
            tail = "".join(f"; {left}" for left in [self._left_of_all()] if left)
        tail += f"; up to {more} trials may follow" if more else ""
        parts: list[RenderableType] = [rows, Text(state + tail, style="dim")]
        parts += [Text(line, style="dim") for line in self._by_host()]
        if best:
            parts.append(Text(best))
        return Group(*parts)


def _begun(run: Run, trials: Sequence[Trial], at_once: int) -> list[str]:
    """Return the sentences that a run begins with."""
    zfs = run.versions.get("openzfs")
    if not run.measured:
        name = Path(run.trace_path or "").name.removesuffix(".trace")
        said = [f"run {run.id}: {name} through OpenZFS {zfs}, {at_once} at a time"]
        return [*said, *filter(None, [sampled.sentence(run, [])])]
    where = run.where
    layouts = len({t.arm for t in trials})
    what = f"OpenZFS {zfs}, kernel {run.versions.get('kernel', '?')}" if zfs else "no OpenZFS"
    least, most = TrialOptions.of(run).blocks
    times = str(least) if least == most else f"{least} to {most}"
    prior = TrialOptions.of(run).follow
    many = f"{layouts} layouts"
    if prior:
        most = min(prior["most"], len(prior["layouts"]))
        many = f"at most {most} of {len(prior['layouts'])} screened layouts beside the baseline"
    much = f"{many}, {times} run{'' if times == '1' else 's'} each"
    much += " on every host" if run.target.get("hosts") else ""
    said = [f"run {run.id}: {run.job['workload']} on {where} ({what}), {much}"]
    if basis(run) == "emulated":
        said.append(
            f"{where} runs without hardware virtualisation: "
            "operations and bytes are real, seconds are emulated"
        )
    return said


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
        value = MEASURED[key].read(result)
        if value is None:
            continue
        if key == "per_second":
            unit = str((result.get("job") or {}).get("unit") or "operation")
            emulated = " emulated" if run is not None and basis(run) == "emulated" else ""
            words.append(f"{value:,.1f} {plural(unit)}/s{emulated}")
        else:
            words.append(form.format(units.show(value, MEASURED[key].unit)))
    return ", ".join(words) or "done"


def _best_measured(outcome: Mapping[str, Any], trials: Sequence[Trial], run: Run) -> str:
    """Return the best layout so far with its interval against the baseline."""
    leader = next((c for c in collect(trials, basis(run)).layouts if c.arm == outcome["leader"]), None)
    if leader is None:
        return ""
    key = outcome["measure"]
    text = f"best so far: {leader.name}"
    if key in leader.estimates:
        text += f", {outcome['label']} {leader.text(key)}"
        text += " (emulated)" if MEASURED[key].clock and basis(run) == "emulated" else ""
    ratio = leader.against.get(key)
    if ratio is not None and ratio.known:
        text += f", {ratio.text} of the baseline's"
    return text


def _best_replay(run: Run, trials: Sequence[Trial]) -> str:
    """Return the best layout so far with its modelled seconds."""
    ranked = allowed_order(run, trials)
    if not ranked:
        return ""
    best, result = ranked[0], ranked[0].result or {}
    each = bool(best.trace_sha and operations(result))
    seconds = table("modelled", each)["modelled_s"].read(result) or 0.0
    return f"best so far: {best.layout_name}, {units.seconds(seconds)} modelled{' per op' * each}"
