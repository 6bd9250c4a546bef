"""What the programs share that do what they are told, line by line: ``ztune.onhost.jobs.conversation`` tells.

Such a program runs as the database's user, under the recorder, and can be killed without harm. It imports
nothing of ztune but this module, which ``conversation.text_of`` puts into its text.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence


def say(**what: object) -> None:
    """Answer one line: ``progress``, ``done`` or ``error``."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def serve(program: object, plain: tuple[type[Exception], ...] = ()) -> None:
    """Do what standard input says until it ends: each line is the name of a method of ``program``, a tab, and
    a JSON object of its arguments; what it returns is the answer.

    ``plain``: errors that speak for themselves, without their kind.
    """
    for line in sys.stdin:
        word, _, arguments = line.partition("\t")
        try:
            found = getattr(program, word)(**json.loads(arguments))
        except plain as error:
            say(error=str(error))
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")
        else:
            say(done=found)


class Values:
    """Values like an application's records: phrases, which repeat, between bytes of their own, which don't.

    Both are drawn from a hash of seed, key and version, so nothing repeats but the phrases: any record that
    holds some thousands of bytes shows them to a compressor, and a larger one has nothing more to show.
    """

    def __init__(self, size: int, fresh: float, phrases: list[str], seed: int) -> None:
        """Note what they are to be.

        Args:
            size: bytes of a value.
            fresh: share of them that no compressor can shrink.
            phrases: 256 of them.
            seed: another seed gives other values.
        """
        self.size, self.seed = size, seed
        # The first far more often, as names and words are.
        self.phrases = [phrases[n * n >> 8].encode() + b" " for n in range(256)]
        mean = sum(map(len, self.phrases)) / len(self.phrases)
        self.fresh = min(size, round(mean * fresh / (1 - fresh))) if fresh < 1 else size
        # Enough of the shortest phrases too; what is too much is cut.
        self.fields = math.ceil(size / (min(map(len, self.phrases)) + self.fresh))

    def of(self, key: int, version: int) -> bytes:
        """Return the value that the ``version``-th writing of ``key`` has."""
        phrases, fresh, each = self.phrases, self.fresh, self.fresh + 1
        drawn = hashlib.shake_128(b"%d %d %d" % (self.seed, key, version)).digest(each * self.fields)
        parts = [drawn[at : at + fresh] + phrases[drawn[at + fresh]] for at in range(0, len(drawn), each)]
        return b"".join(parts)[: self.size]


class Load:
    """What is asked of a load as a whole: how long it goes on, how fast, and with how many workers."""

    def __init__(
        self, workers: int, seed: int, *, seconds: float = 0.0, rate: float = 0.0, operations: int = 0
    ) -> None:
        """Begin it.

        Args:
            workers: threads that do operations side by side.
            seed: decides what each of them draws.
            seconds: how long it goes on; 0: until ``operations`` are done.
            rate: operations that become due per second, in all; 0: the next when the last is done.
            operations: how many; 0: as many as go into ``seconds``.
        """
        self.workers, self.seed, self.seconds, self.rate = workers, seed, seconds, rate
        self.operations = operations
        self.began = time.monotonic()

    def share(self, workers: Iterable[Worker]) -> float:
        """Return how much of it is done, from 0 to 1."""
        if self.seconds:
            return min(1.0, (time.monotonic() - self.began) / self.seconds)
        return min(1.0, sum(worker.done for worker in workers) / self.operations)


class Worker:
    """One thread of a load: operations one after the other, each when it is due, and how long they took."""

    def __init__(self, load: Load, number: int, *, kinds: Sequence[str], at_once: int = 1) -> None:
        """Note its part.

        Args:
            load: the whole.
            number: which worker it is, from 0.
            kinds: what it tells operations apart by; ``times`` has each one's, in µs.
            at_once: operations that become due together.
        """
        self.random = random.Random(load.seed * 1_000_003 + number)
        self.until = load.began + load.seconds if load.seconds else math.inf
        part = (load.operations + load.workers - 1 - number) // load.workers
        self.left = math.inf if load.seconds else part
        # The workers' operations become due in turn.
        self.interval = load.workers * at_once / load.rate if load.rate else 0.0
        self.due = load.began + (number * at_once / load.rate if load.rate else 0.0)
        self.last = load.began
        self.done = 0
        self.times = {kind: array("Q") for kind in kinds}
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._try)

    def _try(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.error = error

    def work(self) -> None:
        """Do an operation for each of ``starts``, with what a subclass opens for them."""
        raise NotImplementedError

    def starts(self) -> Iterator[float]:
        """Yield when each operation begins, as soon as it may."""
        while self.left > 0:
            start = time.monotonic()
            if self.interval:
                # A late one counts from when it was due, so waiting for a slow one before is included.
                if self.due > self.until:
                    return
                time.sleep(max(0.0, self.due - start))
                start = self.due
                self.due += self.interval
            if time.monotonic() >= self.until:
                return
            yield start
            self.left -= 1
            self.done += 1

    def note(self, kind: str, start: float, end: float | None = None) -> float:
        """Note that an operation of ``kind`` went from ``start`` to ``end``, or until now; return the end."""
        self.last = time.monotonic() if end is None else end
        self.times[kind].append(max(0, round((self.last - start) * 1e6)))
        return self.last


def run_all(load: Load, workers: Sequence[Worker], tick: Callable[[float], float] | None = None) -> float:
    """Run all workers to their ends and say how far they are; return the seconds until the last operation.

    ``tick``: called with the seconds gone by now and then; returns after how many to be called again, at the
    most. Raises what a worker did.
    """
    for worker in workers:
        worker.thread.start()
    for worker in workers:
        while worker.thread.is_alive():
            worker.thread.join(0.5 if tick is None else tick(time.monotonic() - load.began))
            say(progress=load.share(workers))
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    return max(worker.last for worker in workers) - load.began


def times_of(workers: Sequence[Worker]) -> dict[str, list[int]]:
    """Return the sorted times of each kind of operation, in µs."""
    return {kind: sorted(us for worker in workers for us in worker.times[kind]) for kind in workers[0].times}
