"""Termination signals become ``KeyboardInterrupt``, so that one way of cleaning up serves them all.

An error that arises while an interrupt ends things takes its place: a client that is cut does not shut down
in order, and says so. So whoever goes on after errors asks here whether the user wanted to stop (``asked``).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """What is known of the process's signals."""

    depth = 0
    asked = False
    rung = 0
    """Signals on their way that we sent ourselves."""


def _own(number: int) -> bool:
    """Whether this signal is one of ``ring``; it is counted off."""
    own = number == signal.SIGTERM and _State.rung > 0
    _State.rung -= own
    return own


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if not _own(number):
        _State.asked = True
    raise KeyboardInterrupt


def asked() -> bool:
    """Whether the user has asked to stop, within the outermost ``signals_as_interrupt``."""
    return _State.asked


def check() -> None:
    """Raise KeyboardInterrupt if the user has asked to stop: for before something new is begun."""
    if _State.asked:
        raise KeyboardInterrupt


def ring() -> None:
    """Raise KeyboardInterrupt in the main thread, for a reason of our own that a watching thread found.

    The user has not asked for it: ``asked`` stays as it is. Nothing happens where no signal is an interrupt:
    it would end the process on the spot.
    """
    main = threading.main_thread().ident
    if _State.depth and main is not None and callable(signal.getsignal(signal.SIGTERM)):
        _State.rung += 1
        signal.pthread_kill(main, signal.SIGTERM)


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
    _State.depth += 1
    try:
        with _handled(_SIGNALS, _interrupt):
            yield
    finally:
        _State.depth -= 1
        if not _State.depth:
            _State.asked, _State.rung = False, 0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP during a short clean-up; the last of them arrives at its end.

    An impatient second Ctrl-C must not stop the clean-up half-way. By handlers, not by masking: a signal that
    is masked in this thread would be taken by another one, and its handler would run here all the same.
    """
    if not _in_main_thread():
        yield
        return
    held: list[tuple[int, bool]] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append((number, _own(number)))

    with _handled(_SIGNALS, hold):
        yield
    if held:
        # The user's goes before our own, which says less.
        number, own = next((one for one in reversed(held) if not one[1]), held[-1])
        _State.rung += own
        signal.raise_signal(number)
