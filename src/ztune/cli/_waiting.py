"""Says what is waited for, once it takes longer than a moment, and which step of many is done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.status import Status

from ztune import output

_MOMENT_S = 2.0


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Within the body: after a moment, ``text`` on stderr; on a terminal until the body ends."""
    console = output.Console(stderr=True)
    shown: list[Status] = []
    lock = threading.Lock()
    over = False

    def show() -> None:
        with lock:
            if over:
                return
            if console.is_terminal:
                shown.append(console.status(f"{text} …"))
                shown[0].start()
            else:
                output.echo(text, err=True)

    timer = threading.Timer(_MOMENT_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
            if shown:
                shown[0].stop()


class StepLine:
    """The line with the step that a command is at: on a terminal one that changes."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        """Whether it is one that changes."""
        self._open = False

    def show(self, text: str) -> None:
        """Show ``text`` in place of the step before; a line of its own where nothing changes."""
        if self.live:
            output.rewrite(text)
        else:
            output.echo(text, err=True)
        self._open = self.live

    def end(self) -> None:
        """Take the line away."""
        if self._open:
            output.rewrite()
            self._open = False
