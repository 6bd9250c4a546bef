"""One trial over a channel: its spec goes in, its events come out."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ztune.errors import InputError, ZtuneError
from ztune.places.channel import Channel, Lost, Place, states
from ztune.store import series

# A trial that says nothing for so long is stuck: jobs tell their progress every few seconds.
SILENCE_S = 2 * 3600.0
_LOOK_S = 10.0
_KEPT_LOG = 200  # commands kept of a trial that failed


# Is told the step that the trial is in, its state (begin, progress, end, wait), the share that is done, and a
# text; of a wait it says what for.
Step = Callable[[str, str, float, str], None]
Say = Callable[[str], None]


@dataclass
class Ended:
    """How a trial ended. ``status``: ok, failed, stopped, or lost (the other end went away)."""

    status: str = "lost"
    result: dict[str, Any] | None = None
    error: str | None = None
    error_step: str | None = None
    of_host: bool = False
    """Whether it failed for what its host lacks, such as room on its disk."""
    left: list[str] = field(default_factory=list)  # what it could not destroy
    commands: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    series: series.SeriesRows = field(default_factory=series.SeriesRows)
    steps: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    asked: bool = False
    """Whether the user has asked to stop meanwhile, however the trial ended."""
    silent: str = ""
    """A sentence, where we ended it because it said nothing for too long."""
    worked: list[dict[str, float]] = field(default_factory=list)
    """What the place's disks had worked where the measure window began and ended, in ms by path."""

    @property
    def measured(self) -> bool:
        """Whether it has figures that count: all it did before it destroyed what it made went well."""
        return self.result is not None and (self.status == "ok" or (self.error is None and bool(self.left)))

    def to_store(self) -> dict[str, Any] | None:
        """Return the result to keep: for a failed trial, what is known of it."""
        if self.result is not None:
            warnings = [*self.result.get("warnings", []), *(f"it left behind: {text}" for text in self.left)]
            return {**self.result, "warnings": warnings, **({"left": self.left} if self.left else {})}
        if not (self.commands or self.warnings or self.steps or self.left):
            return None
        return {
            "commands": self.commands[-_KEPT_LOG:],
            "warnings": self.warnings,
            "steps": self.steps,
            "failed_in": self.error_step,
            **({"left": self.left} if self.left else {}),
        }


class Stop:
    """Stops a trial from another thread than the one that runs it: once begun, or before it begins."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    def ask(self) -> None:
        """Have it destroy what it made, and end."""
        with self._lock:
            self.asked.set()
            if self._channel is not None:
                self._channel.send("stop")

    def give_up(self) -> None:
        """End the connection, and with it the waiting; what the trial made is left to `ztune clean`."""
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.close()

    def of(self, channel: Channel | None) -> None:
        """Note where the trial is."""
        with self._lock:
            self._channel = channel
            if channel is not None and self.asked.is_set():
                channel.send("stop")


def run(
    place: Place, program: str, spec: Mapping[str, Any], tell: Step, say: Say, stop: Stop | None = None
) -> Ended:
    """Run one trial and return how it ended; a lost connection is an end like others.

    A KeyboardInterrupt is handed on as "stop"; the trial then destroys what it made, and ends with the status
    "stopped". A second one gives up waiting and is raised.
    """
    ended = Ended()
    began = time.monotonic()
    channel: Channel | None = None
    if stop is not None and stop.asked.is_set():
        # Told to stop while the program was on its way, perhaps by a run that is over.
        return Ended(status="stopped", asked=True)
    try:
        channel = place.open(["python3", program, "run"])
        channel.send(json.dumps(spec, separators=(",", ":")))
        if stop is not None:
            stop.of(channel)
        _listen(place, channel, ended, tell, say)
        _by_the_disks(ended)
        if ended.status == "lost":
            code = channel.wait()
            words = channel.stderr_tail().strip().splitlines()
            ended.error = (
                words[-1] if words else f"the trial program ended without a message (exit code {code})"
            )
            ended.status = "failed"
    except Lost as error:
        ended.error = str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except ZtuneError as error:
        # A channel raises nothing but the loss of its other end, whatever its own name for it is.
        ended.error = str(error)
    finally:
        if stop is not None:
            stop.of(None)
        if channel is not None:
            channel.close()
        ended.wall_s = time.monotonic() - began
    if ended.silent and ended.status != "ok":
        # What it made of that, such as "stopped", is what nobody asked for.
        ended.error = ended.silent
        ended.status = "lost" if ended.status == "lost" else "failed"
    return ended


def _by_the_disks(ended: Ended) -> None:
    """Put how long the disks worked by their own count in place of the kernel's, which is kept beside it.

    The kernel's ``io_ticks`` is the time for which a request was out: it leaves out what a disk with a write
    cache takes to its medium after it has answered, and has what a guest adds to each request.
    """
    measure = (ended.result or {}).get("measure") or {}
    if len(ended.worked) != 2:
        return
    began, done = ended.worked
    for row in measure.get("by_vdev") or ():
        path = row.get("path")
        if path in began and path in done:
            row["kernel_busy_ms"], row["busy_ms"] = row.get("busy_ms"), round(done[path] - began[path], 3)


def _listen(place: Place, channel: Channel, ended: Ended, tell: Step, say: Say) -> None:
    """Read events to the end of the stream."""
    alarm = _Silence(channel, ended, say)
    begun: dict[str, float] = {}
    try:
        while True:
            try:
                for line in channel.lines():
                    alarm.heard()
                    match _event(line, ended, begun, tell, say):
                        case "window":
                            ended.worked.append(place.disks_worked())
                        case "measured":
                            place.measured()
                return
            except KeyboardInterrupt:
                if ended.asked:
                    raise
                ended.asked = True
                say("stopping: the trial destroys what it made; Ctrl-C again leaves that to `ztune clean`")
                channel.send("stop")
    finally:
        alarm.end()


def _event(line: str, ended: Ended, begun: dict[str, float], tell: Step, say: Say) -> str:
    """Note an event, and return which it was; the end of the step that measures is "measured"."""
    try:
        event = json.loads(line)
        kind = str(event["event"])
    except (ValueError, KeyError, TypeError):
        return ""  # half a line, cut by a signal or by the end of the program
    match kind:
        case "step":
            step, state = str(event.get("step", "")), str(event.get("state", ""))
            now = time.monotonic()
            if state == "begin":
                begun[step] = now
            elif state == "end" and step in begun:
                ended.steps[step] = round(now - begun[step], 3)
                if step == "measure":  # all that measures has read what it reads
                    kind = "measured"
            with contextlib.suppress(TypeError, ValueError):
                tell(step, state, float(event.get("share") or 0.0), str(event.get("text") or ""))
        case "log":
            if isinstance(event.get("command"), list):
                ended.commands.append(
                    {k: event[k] for k in ("command", "rc", "seconds", "text") if k in event}
                )
            elif event.get("waits"):
                tell(next(reversed(begun), ""), "wait", 0.0, str(event.get("text", "")))
        case "warning":
            ended.warnings.append(str(event.get("text", "")))
            say(f"warning: {event.get('text', '')}")
        case "error":
            if event.get("step") == "destroy" and (ended.error is not None or ended.result is not None):
                ended.left.append(str(event.get("text", "")))
            elif ended.error is None:
                ended.error, ended.error_step = str(event.get("text", "")), event.get("step")
                ended.of_host = event.get("of") == "host"
        case "series":
            with contextlib.suppress(KeyError, TypeError):
                ended.series.add(str(event["probe"]), event["columns"], event["rows"])
        case "result":
            if isinstance(event.get("result"), dict):
                ended.result = event["result"]
        case "end":
            ended.status = str(event.get("status", "failed"))
    return kind


class _Silence:
    """Closes the channel when nothing was heard for too long."""

    def __init__(self, channel: Channel, ended: Ended, say: Say) -> None:
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(channel, ended, say), daemon=True)
        self._thread.start()

    def heard(self) -> None:
        self._last = time.monotonic()

    def end(self) -> None:
        self._over.set()

    def _watch(self, channel: Channel, ended: Ended, say: Say) -> None:
        while not self._over.wait(_LOOK_S):
            if time.monotonic() - self._last > SILENCE_S:
                told = f"{ended.error}; then it" if ended.error else "it"
                ended.silent = f"{told} said nothing for {SILENCE_S / 3600:.0f} hours, and was ended"
                say(f"the trial said nothing for {SILENCE_S / 3600:.0f} hours; it is stopped")
                channel.close()
                return


@dataclass
class CleanedUp:
    """What a clean-up found that it did not destroy. ``stayed``: a sentence each; ``running``: runs with a
    trial that is alive.
    """

    stayed: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)


def clean(place: Place, program: str, say: Say, patience: float = 1.0, *, waits: Say) -> CleanedUp:
    """Destroy at ``place`` what dead trials left. Raises Lost.

    ``say`` hears which commands ran, ``waits`` which one goes on for long.
    """
    found = CleanedUp()
    for state in states(place):
        here, code = _clean(place, program, state, say, patience, waits)
        found.running |= here.running
        if code == InputError.exit_code and state != place.state:
            # Not even the old directory is root's: whatever somebody put there, no trial left it.
            for sentence in here.stayed:
                say(sentence)
        else:
            found.stayed += here.stayed
    return found


def _clean(
    place: Place, program: str, state: str, say: Say, patience: float, waits: Say
) -> tuple[CleanedUp, int]:
    words = ["python3", program, "clean", "--state", state]
    channel = place.open([*words, *(["--patience", f"{patience:g}"] if patience > 1 else [])])
    found = CleanedUp()
    before = None
    try:
        for line in channel.lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                if event["event"] in {"error", "warning"}:
                    found.stayed.append(str(event["text"]))
                elif event["event"] == "running":
                    found.running.add(str(event["run"]))
                elif event["event"] == "log" and isinstance(event.get("command"), list):
                    if event["command"] != before:  # one that is tried again and again is said once
                        say(" ".join(event["command"]))
                    before = event["command"]
                elif event["event"] == "log" and event.get("waits"):
                    waits(str(event["text"]))
        code = channel.wait()
        if code != 0 and not found.stayed:
            said = channel.stderr_tail().strip().splitlines()
            found.stayed.append(said[-1] if said else f"clean-up failed with exit code {code}")
    finally:
        channel.close()
    return found, code
