"""Termination signals become ``KeyboardInterrupt``, so that one way of cleaning up serves them all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Within the body, SIGTERM and SIGHUP raise ``KeyboardInterrupt``, as SIGINT does.

    Without this a terminated ztune would leave its database server and its work directory behind.
    Handlers can be set in the main thread only; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            # nohup's choice stands: a signal that was ignored stays ignored.
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP during a short clean-up; they arrive at its end.

    An impatient second Ctrl-C must not stop the clean-up half-way.
    """
    held = {signal.SIGINT, *_SIGNALS}
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
