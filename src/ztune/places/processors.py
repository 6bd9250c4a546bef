"""Each engine on a processor of its own.

An engine's threads do little but wake each other, one at a time, in the order of the trace. Between two
processors each wake-up interrupts an idle one, which takes longer than the work; on one processor it is a
switch. ``bench/one_processor.py`` compares the two.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ztune import paths
from ztune.onhost.host import shared_files

_LOOK_S = 0.1
"""How long the processors are watched before one is chosen, seconds."""


@contextlib.contextmanager
def one_processor() -> Iterator[int | None]:
    """Take the least busy processor that no other engine of this state directory has; None where none is
    left."""
    folder = paths.private(paths.cache() / "processors")
    with contextlib.ExitStack() as held:
        yield _taken(folder, held)


def _taken(folder: Path, held: contextlib.ExitStack) -> int | None:
    import psutil  # here, as it takes 20 ms to load

    # One after the other: two that look at once would find the same one idle.
    with shared_files.locked(folder / "choosing"):
        busy = psutil.cpu_percent(_LOOK_S, percpu=True)
        ours = os.sched_getaffinity(0)
        for number in sorted(ours, key=lambda n: busy[n] if n < len(busy) else 0.0):
            with contextlib.suppress(BlockingIOError):
                held.enter_context(shared_files.locked(folder / str(number), wait=False))
                return number
    return None


def keep_on(pid: int, processor: int) -> None:
    """Have process ``pid``, and the threads that it makes from now on, run on ``processor`` only.

    As a batch process: a thread that is woken then waits until the one that woke it waits, too.
    """
    with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids this: it is only slower
        os.sched_setaffinity(pid, {processor})
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
