"""Events: JSON lines on standard output, and the record of them that goes into the result."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

STEPS = ("prepare", "load", "age", "settle", "measure", "collect", "destroy")
PROGRESS_SECONDS = 0.5
"""Progress of one step is told at most this often."""


class Events:
    """Writes events, one JSON object a line, each flushed.

    A reader that went away stops the trial (``on_lost`` is called once), but never its clean-up: from then on
    events are only kept in memory.
    """

    def __init__(self, out: IO[str] | None = None, on_lost: Callable[[], None] | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._on_lost = on_lost
        self._lock = threading.RLock()
        self._lost = False
        self._last = 0.0
        self.commands: list[dict[str, Any]] = []
        """Every command so far: argv, rc, seconds."""
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def send(self, event: str, **fields: Any) -> None:
        """Write one event."""
        line = json.dumps({"event": event, **fields}, ensure_ascii=False, separators=(",", ":"))
        with self._lock:
            if self._lost:
                return
            try:
                self._out.write(line + "\n")
                self._out.flush()
            except (OSError, ValueError):
                self._lost = True
            lost = self._lost
        if lost and self._on_lost is not None:
            self._on_lost()

    def step(self, step: str, state: str, share: float = 0.0, text: str = "") -> None:
        """Say where the trial is: ``state`` is begin, progress or end; ``share`` 0…1 of this step."""
        now = time.monotonic()
        with self._lock:
            if state == "progress" and now - self._last < PROGRESS_SECONDS:
                return
            self._last = now
        share = 1.0 if state == "end" else min(1.0, max(0.0, share))
        self.send("step", step=step, state=state, share=round(share, 4), t=round(time.time(), 3), text=text)

    def window(self, state: str) -> None:
        """Say that the measure window is ``open`` or ``closed`` now, for whoever counts at the same time."""
        self.send("window", state=state)

    def command(self, argv: Sequence[str], rc: int, seconds: float, text: str = "") -> None:
        """Log a command that was run: its words, exit code, seconds of wall time and last words."""
        record = {"command": list(argv), "rc": rc, "seconds": round(seconds, 3)}
        with self._lock:
            self.commands.append(record)
        self.send("log", text=text, **record)

    def log(self, text: str, *, waits: bool = False) -> None:
        """Write a line for people; ``waits``: it says what the trial waits for, which a view shows."""
        self.send("log", text=text, **({"waits": True} if waits else {}))

    def warning(self, text: str) -> None:
        """Something that the reader of the result must know; told once."""
        with self._lock:
            if text in self.warnings:
                return
            self.warnings.append(text)
        self.send("warning", text=text)

    def error(self, text: str, step: str, *, of_host: bool = False) -> None:
        """Say what failed, in a sentence, and in which step; ``of_host``: the host lacks what it takes."""
        with self._lock:
            self.errors.append(text)
        self.send("error", text=text, step=step, **({"of": "host"} if of_host else {}))

    def series(self, probe: str, columns: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Send rows of a time series."""
        self.send("series", probe=probe, columns=list(columns), rows=[list(row) for row in rows])
