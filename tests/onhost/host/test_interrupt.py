from __future__ import annotations

import signal
import threading
import time

import pytest

from ztune.onhost.host.interrupt import signals_as_interrupt, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_is_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
        with uninterrupted():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_clean_up_is_finished_first(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals_as_interrupt():
        with uninterrupted(), uninterrupted():
            # From another thread too, where a mask of this one would not help.
            other = threading.Thread(target=signal.pthread_kill, args=(threading.get_ident(), number))
            other.start()
            other.join()
            time.sleep(0.01)
            done.append("cleaned")
        done.append("never")
    assert done == ["cleaned"]


def test_in_other_threads_nothing_happens() -> None:
    seen: list[str] = []

    def work() -> None:
        with signals_as_interrupt(), uninterrupted():
            seen.append("ran")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["ran"]
