"""Termination signals become ``KeyboardInterrupt``, so that one way of cleaning up serves them all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_TERMINATION = (signal.SIGTERM, signal.SIGHUP)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Within the body, ``handler`` takes ``numbers``, save those that were ignored: nohup's choice stands."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, old in before.items():
            if old is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def _in_main_thread() -> bool:
    # Only there can handlers be set, and only there do they run.
    return threading.current_thread() is threading.main_thread()


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Within the body, SIGTERM and SIGHUP raise ``KeyboardInterrupt``, as SIGINT does.

    Without this a terminated ztune would leave its database server and its work directory behind.
    """
    if not _in_main_thread():
        yield
        return
    with _handled(_TERMINATION, _interrupt):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP during a short clean-up; the last of them arrives at its end.

    An impatient second Ctrl-C must not stop the clean-up half-way. By handlers, not by masking: a signal that
    is masked in this thread would be taken by another one, and its handler would run here all the same.
    """
    if not _in_main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    with _handled((signal.SIGINT, *_TERMINATION), hold):
        yield
    if held:
        signal.raise_signal(held[-1])
