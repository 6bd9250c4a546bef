"""Where replays run: on the cores of this machine, or on those of a fleet (``ztune.fleet``), by one protocol.

A screening hands an executor its layouts one by one and gets each result back; it knows nothing of where
they run. Which of them goes next is the executor's to say, since it knows which loaded pools are where.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from ztune.places import loaded
from ztune.places.engine_run import EngineRoom, EngineWork, Outcome, Progress, run_engine
from ztune.places.replay import Replay, suggested_jobs


@dataclass(frozen=True, eq=False)
class PlannedReplay:
    """A layout's replay, not begun: ``number`` is its trial's."""

    number: int
    replay: Replay
    spec: Mapping[str, Any]

    @cached_property
    def work(self) -> EngineWork:
        """What its engine is to do."""
        return self.replay.work(self.spec)


@dataclass(frozen=True)
class HostProgress:
    """What a host of a fleet does: ``slots`` engines at most, ``running`` of them now, ``done`` so far."""

    host: str
    slots: int
    running: int
    done: int


Ended = tuple[PlannedReplay, Outcome | BaseException]
"""A replay, and how it ended; an exception is to be raised: it concerns all replays."""


class Executor(Protocol):
    """Runs replays. All methods are called from one thread; progress is told from any."""

    @property
    def at_once(self) -> int:
        """How many engines run at once."""

    @property
    def room(self) -> int:
        """Bytes of memory that one engine may take."""

    def open(self, replay: Replay, spec: Mapping[str, Any], jobs: int) -> None:
        """Get ready for replays such as ``spec``, with ``jobs`` engines a machine; 0: as many as fit.

        Raises MissingError where nothing can run, InputError.
        """

    def choose(self, waiting: Sequence[PlannedReplay]) -> PlannedReplay | None:
        """Return which of ``waiting`` to begin next; None: none for now."""

    def begin(self, planned: PlannedReplay, tell: Progress) -> None:
        """Begin what ``choose`` returned."""

    def ended(self, timeout_s: float) -> Ended | None:
        """Wait for one to end; None where none does within ``timeout_s``."""

    def hosts(self) -> list[HostProgress]:
        """Return what each host does; nothing where there is but this one."""

    def stop(self) -> None:
        """Stop what runs, and wait until it has ended."""


@dataclass(frozen=True)
class _AtWork:
    """A replay whose engine runs, and what that may take: of one job, where it runs by itself."""

    planned: PlannedReplay
    tell: Progress
    room: EngineRoom
    thread: threading.Thread


class LocalExecutor:
    """The cores of this machine.

    What a replay takes is known when it is done, so each begins with an equal share of memory and disk. One
    that needs more than its share is done again by itself, with all, when no other runs; so is one whose
    engine was killed, once: it may be that something else took the memory.
    """

    def __init__(self) -> None:
        self.at_once = 1
        self.room = 0
        self._stop = threading.Event()
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._running: dict[int, _AtWork] = {}
        self._need_more: deque[tuple[PlannedReplay, Progress]] = deque()
        self._again: set[int] = set()

    def open(self, replay: Replay, spec: Mapping[str, Any], jobs: int) -> None:
        """Take ``jobs`` cores, or as many as memory allows."""
        self.at_once = jobs or suggested_jobs(spec, replay.memory)
        self.room = replay.memory // self.at_once

    def choose(self, waiting: Sequence[PlannedReplay]) -> PlannedReplay | None:
        """Return the first that does not wait for an image that another one is making, else the first."""
        by_itself = any(one.room.jobs == 1 for one in self._running.values())
        if by_itself or len(self._running) >= self.at_once:
            return None
        under_way = {one.planned.work.key for one in self._running.values()}
        for planned in waiting:
            if planned.work.key not in under_way or loaded.is_there(planned.work.key):
                return planned
        return waiting[0]

    def begin(self, planned: PlannedReplay, tell: Progress) -> None:
        """Begin it in a thread of its own."""
        self._start(planned, tell, planned.replay.room)

    def ended(self, timeout_s: float) -> Ended | None:
        """Wait for a thread."""
        if self._need_more and not self._running:
            planned, tell = self._need_more.popleft()
            self._start(planned, tell, replace(planned.replay.room, jobs=1))
        try:
            planned, outcome = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        done = self._running.pop(planned.number)
        done.thread.join()
        if isinstance(outcome, Outcome) and not self._stop.is_set():
            more = outcome.of_place and done.room.jobs > 1
            if planned.number not in self._again and (more or outcome.killed):
                self._again.add(planned.number)
                self._need_more.append((planned, done.tell))
                return None
            if outcome.killed:
                return planned, replace(outcome, error=f"{outcome.error}; it was so twice")
        return planned, outcome

    def _start(self, planned: PlannedReplay, tell: Progress, room: EngineRoom) -> None:
        def work() -> None:
            try:
                engine = planned.replay.engine
                self._ended.put((planned, run_engine(planned.work, engine, room, tell, self._stop)))
            except BaseException as error:  # handed to the main thread, which raises it
                self._ended.put((planned, error))

        thread = threading.Thread(target=work, daemon=True)
        self._running[planned.number] = _AtWork(planned, tell, room, thread)
        thread.start()

    def hosts(self) -> list[HostProgress]:
        """Return nothing: all of it is here."""
        return []

    def stop(self) -> None:
        """Stop the engines, and wait for their threads."""
        self._stop.set()
        for one in self._running.values():
            if one.thread.ident is not None:  # it was begun before the interruption came
                one.thread.join()
        self._running.clear()
        self._need_more.clear()
        self._ended = queue.SimpleQueue()
        self._stop.clear()
