"""Each engine on a processor of its own.

An engine's threads do little but wake each other, one at a time, in the order of the trace. Between two
processors each wake-up interrupts an idle one, which takes longer than the work; on one processor it is a
switch. ``bench/one_processor.py`` compares the two.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

import psutil

_LOOK_S = 0.1
"""How long the processors are watched before one is chosen, seconds."""


class Processors:
    """Those that this process may use, handed out one to each engine."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def one(self) -> Iterator[int | None]:
        """Take the least busy one that no other engine of ours has; None where there is none left."""
        with self._lock:
            busy = psutil.cpu_percent(_LOOK_S, percpu=True)
            free = os.sched_getaffinity(0) - self._taken
            chosen = min(free, key=lambda n: busy[n] if n < len(busy) else 0.0, default=None)
            if chosen is not None:
                self._taken.add(chosen)
        try:
            yield chosen
        finally:
            if chosen is not None:
                with self._lock:
                    self._taken.discard(chosen)


def keep_on(pid: int, processor: int) -> None:
    """Have process ``pid``, and the threads that it makes from now on, run on ``processor`` only.

    As a batch process: a thread that is woken then waits until the one that woke it waits, too.
    """
    with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids this: it is only slower
        os.sched_setaffinity(pid, {processor})
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
