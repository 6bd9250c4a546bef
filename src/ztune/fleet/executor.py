"""Runs replays on the workers of a Dask cluster.

Each worker is asked what it has before it is used. Which layout goes to which worker is decided here, by
which loaded pools are where and what memory a worker has; Dask carries it there, and says who is gone. What a
worker that is gone had begun is begun elsewhere; of one layout the first result counts, and no other.
"""

from __future__ import annotations

import contextlib
import errno
import json
import queue
import secrets
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ztune.errors import InputError, MissingError, reason
from ztune.fleet import worker
from ztune.fleet.delivery import Delivery
from ztune.fleet.roster import ANSWER_S, FleetWorker, Roster, Wanted
from ztune.onhost.host.room import NoRoomError
from ztune.places.channel import Lost
from ztune.places.engine import Engine
from ztune.places.engine_run import Outcome, Progress, memory_bytes
from ztune.places.executor import Ended, HostProgress, PlannedReplay
from ztune.places.replay import Replay

if TYPE_CHECKING:
    from distributed import Client, Future

MOST_CUTS = 3
"""A layout that was cut so often, by workers that were lost, has failed: it may be what ends them."""
_ALONE_S = 60.0
"""How long workers are waited for when none is left: a cluster's manager starts others."""
_SLOW = 3.0
"""A layout that takes so many times the median is begun a second time where a worker is idle."""
_LEAST_SLOW_S = 30.0
_END_S = 10.0
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)


@dataclass(eq=False)
class _Attempt:
    """One try of a replay: ``number`` counts them all."""

    number: int
    worker: FleetWorker
    began: float
    future: Future | None = None


@dataclass(eq=False)
class _Running:
    """A replay that has no outcome yet. ``avoid``: hosts that could not do it; ``again``: whether it has been
    begun again where there is no other, since its engine was killed."""

    planned: PlannedReplay
    tell: Progress
    attempts: dict[str, _Attempt] = field(default_factory=dict)
    cuts: int = 0
    avoid: set[str] = field(default_factory=set)
    again: bool = False


class FleetExecutor:
    """Replays on the workers that ``client`` is connected to."""

    def __init__(self, client: Client, say: Callable[[str], None], again: str = "") -> None:
        """``say`` is told, in a sentence, which worker is not used and why. ``again``: what goes on with a
        run that was cut, as the rest of a sentence."""
        self._client, self._again_with = client, again
        self._token = secrets.token_hex(4)
        self._running: dict[int, _Running] = {}
        self._waiting: list[_Running] = []  # those that were cut
        self._placed: dict[int, FleetWorker] = {}
        self._took: list[float] = []
        self._done: dict[str, int] = {}
        self._events: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(16, "fleet")
        self._roster = Roster(client, self._pool, say, lambda one: self._events.put(("gone", "", one)))
        self._delivery = Delivery(client)
        self._none_since: float | None = None
        self._attempts = 0
        self._engine: Engine | None = None

    # --- the protocol

    @property
    def at_once(self) -> int:
        """How many engines run at once on all workers."""
        return max(1, sum(w.slots for w in self._roster.usable()))

    @property
    def room(self) -> int:
        """Bytes of memory that one engine may take where most is."""
        return max((w.room for w in self._roster.usable()), default=0)

    def hosts(self) -> list[HostProgress]:
        """Return what each host does."""
        found: dict[str, list[int]] = {}
        for one in self._roster.usable():
            of = found.setdefault(one.host, [0, 0])
            of[0] += one.slots
            of[1] += len(one.running)
        return [
            HostProgress(host, slots, running, self._done.get(host, 0))
            for host, (slots, running) in sorted(found.items())
        ]

    def open(self, replay: Replay, spec: Mapping[str, Any], jobs: int) -> None:
        """Ask all workers what they have. Raises MissingError where none of them can be used."""
        self._engine = replay.engine
        self._client.subscribe_topic(worker.TOPIC, self._heard)
        self._roster.watch(Wanted(replay.engine, memory_bytes(spec), jobs))
        deadline = time.monotonic() + _ALONE_S
        while not self._roster.all_asked and time.monotonic() < deadline:
            self._check_lost()
            time.sleep(0.1)
        if not self._roster.usable():
            raise MissingError(f"no worker of the fleet can be used{self._roster.why_none()}")

    def choose(self, waiting: Sequence[PlannedReplay]) -> PlannedReplay | None:
        """Return what goes best to an idle worker: what begins from an image that is there, else what waits
        for none that is being made."""
        self._begin_again()
        usable = self._roster.usable()
        idle = [w for w in usable if w.idle]
        if self._waiting or not idle or not waiting or not self._roster.connected:
            return None
        idle.sort(key=lambda w: len(w.running) / w.slots)
        under_way = {one.planned.work.key for one in self._running.values()}
        second = third = None
        for planned in waiting:
            need = memory_bytes(planned.spec)
            fit = [w for w in idle if w.room >= need]
            if not fit:
                if not any(w.room >= need for w in usable):
                    return planned  # begin() says so
                continue
            key = planned.work.key
            for one in fit:
                if key in self._roster.home_of(one).images:
                    return self._place(planned, one)
            if second is None and key not in under_way:
                second = planned, fit[0]
            third = third or (planned, fit[0])
        best = second or third
        return None if best is None else self._place(*best)

    def begin(self, planned: PlannedReplay, tell: Progress) -> None:
        """Send it to its worker."""
        one = _Running(planned, tell)
        self._running[planned.number] = one
        place = self._placed.pop(planned.number, None)
        if place is None:
            need = memory_bytes(planned.spec) >> 20
            error = InputError(
                f"an engine with an ARC of {planned.spec['arc_max'] >> 20} MiB takes about {need} MiB, "
                f"and no worker has that for it (most: {self.room >> 20} MiB); "
                "use fewer --jobs or a smaller --arc"
            )
            self._events.put(("raise", str(planned.number), error))
            return
        self._send(one, place)

    def ended(self, timeout_s: float) -> Ended | None:
        """Wait for a result; what was cut meanwhile is begun again."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._check_lost()
            self._begin_again()
            self._begin_twice()
            try:
                kind, name, what = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            found = self._take(kind, name, what)
            if found is not None:
                return found

    def stop(self) -> None:
        """Cancel what runs, and wait until the engines on the workers have ended."""
        futures = [a.future for one in self._running.values() for a in one.attempts.values() if a.future]
        busy = bool(self._running)
        self._running.clear()
        self._waiting.clear()
        for one in self._roster.everyone():
            one.running.clear()
        events, self._events = self._events, queue.SimpleQueue()
        while not events.empty():
            event = events.get()
            if event[0] == "gone":  # of what runs no more nothing is to be said, of workers still
                self._events.put(event)
        if not busy or self._roster.lost:
            return
        with contextlib.suppress(Exception):  # who is gone has stopped
            self._client.cancel(futures)
            self._run(worker.end, self._token)
            deadline = time.monotonic() + _END_S
            while any(self._run(worker.busy, self._token).values()) and time.monotonic() < deadline:
                time.sleep(0.1)

    def close(self) -> None:
        """Let go of the fleet. Its workers stay."""
        self.stop()
        self._roster.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._client.run(function, *args, on_error="ignore")

    # --- replays

    def _place(self, planned: PlannedReplay, one: FleetWorker) -> PlannedReplay:
        self._placed[planned.number] = one
        return planned

    def _send(self, one: _Running, place: FleetWorker) -> None:
        self._attempts += 1
        key = f"ztune-{self._token}-{one.planned.number}-{self._attempts}"
        attempt = one.attempts[key] = _Attempt(self._attempts, place, time.monotonic())
        place.running.add(attempt.number)
        self._pool.submit(self._deliver, one, key, attempt)

    def _deliver(self, one: _Running, key: str, attempt: _Attempt) -> None:
        """Bring the files to the worker that are not there, then the replay."""
        place = attempt.worker
        try:
            order = self._delivery.order(one.planned, place, self._roster.home_of(place))
            future = self._client.submit(
                worker.replay, order, key=key, workers=[place.address], pure=False,
                resources={worker.ENGINES: 1}, retries=0,
            )  # fmt: skip
            attempt.future = future
            if key not in one.attempts or self._running.get(one.planned.number) is not one:
                self._client.cancel([future])  # it was stopped meanwhile
            future.add_done_callback(lambda done: self._events.put(("done", key, _answer(done))))
        except Exception as error:
            # A connection that broke has no number of the system's for what went wrong with a file.
            of_disk = isinstance(error, NoRoomError) or getattr(error, "errno", None) in _OF_DISK
            self._events.put(("done", key, json.dumps({"unfit": reason(error)}) if of_disk else error))

    def _heard(self, event: tuple[float, Any]) -> None:
        """Hand on how far a replay is."""
        said = event[1]
        key = str(said.get("key", ""))
        parts = key.split("-")
        if len(parts) != 4 or parts[1] != self._token:
            return
        one = self._running.get(int(parts[2]))
        attempt = one.attempts.get(key) if one is not None else None
        if one is not None and attempt is not None:
            one.tell(str(said["phase"]), min(1.0, max(0.0, float(said["share"]))))

    def _take(self, kind: str, name: str, what: Any) -> Ended | None:
        """Return what an event ends, if it does."""
        if kind == "raise":
            return self._running.pop(int(name)).planned, what
        if kind == "gone":
            gone: FleetWorker = what
            self._roster.forget(gone)
            for cut in list(self._running.values()):
                for key in [k for k, a in cut.attempts.items() if a.worker is gone]:
                    found = self._cut(cut, key, f"worker {gone.address} on {gone.host} was lost")
                    if found is not None:
                        self._events.put(("failed", str(cut.planned.number), found))
            return None
        if kind == "failed":
            failed = self._running.pop(int(name), None)
            return None if failed is None else (failed.planned, what)
        one = self._running.get(int(name.split("-")[2]))
        attempt = one.attempts.get(name) if one is not None else None
        if one is None or attempt is None:
            return None  # another attempt was faster, or this one was given up
        return self._answered(one, name, attempt, what)

    def _answered(self, one: _Running, key: str, attempt: _Attempt, what: Any) -> Ended | None:
        place = attempt.worker
        if isinstance(what, BaseException):
            if (
                not self._roster.connected
            ):  # with the scheduler all is cancelled, through no fault of the layout's
                self._give_up(one, key)
                self._waiting.append(one)
                return None
            found = self._cut(one, key, f"worker {place.address} on {place.host} was lost")
            return None if found is None else self._end(one, found)
        said = json.loads(what)
        if "missing" in said:
            self._roster.home_of(place).files -= set(said["missing"])
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        if "unfit" not in said and _is_other(said.get("result"), self._engine):
            said = {"unfit": "its engine was replaced by another"}
        if "unfit" in said:
            self._roster.set_aside(place, str(said["unfit"]))
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        outcome = Outcome(
            said["result"],
            said["error"],
            float(said["wall_s"]),
            bool(said["of_place"]),
            bool(said.get("killed")),
        )
        others = {w.host for w in self._roster.usable()} - {place.host} - one.avoid
        if outcome.of_place and others:
            one.avoid.add(place.host)
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        if outcome.killed and not one.avoid and not one.again:
            one.again = True
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        if outcome.result is not None:
            outcome.result["ran_on"] = place.host
            self._roster.home_of(place).images.add(one.planned.work.key)
            self._took.append(time.monotonic() - attempt.began)
            del self._took[:-101]
            self._done[place.host] = self._done.get(place.host, 0) + 1
        return self._end(one, outcome)

    def _end(self, one: _Running, outcome: Outcome) -> Ended:
        for key in list(one.attempts):
            self._give_up(one, key)
        del self._running[one.planned.number]
        return one.planned, outcome

    def _give_up(self, one: _Running, key: str) -> None:
        """Forget an attempt; its engine, where one runs, is stopped."""
        attempt = one.attempts.pop(key)
        attempt.worker.running.discard(attempt.number)
        if attempt.future is not None and not attempt.future.done():
            self._pool.submit(self._client.cancel, [attempt.future])

    def _cut(self, one: _Running, key: str, why: str) -> Outcome | None:
        """Begin a replay anew whose worker was lost; return its outcome where that was too often."""
        self._give_up(one, key)
        if one.attempts or one in self._waiting:
            return None
        one.cuts += 1
        if one.cuts >= MOST_CUTS:
            return Outcome(None, f"it was cut {one.cuts} times; the last time {why}", 0.0)
        self._waiting.append(one)
        return None

    def _begin_again(self) -> None:
        """Begin what was cut where a worker is idle."""
        if not self._roster.connected:
            return
        for one in list(self._waiting):
            need = memory_bytes(one.planned.spec)
            usable = self._roster.usable()
            fit = [w for w in usable if w.room >= need]
            if all(w.host in one.avoid for w in fit):
                one.avoid.clear()  # the others are gone: here it may do by now
            if usable and not fit:
                self._waiting.remove(one)
                words = f"no worker is left that has the {need >> 20} MiB of memory that its engine takes"
                self._events.put(("failed", str(one.planned.number), Outcome(None, words, 0.0)))
                continue
            place = self._idle_for(one)
            if place is not None:
                self._waiting.remove(one)
                self._send(one, place)

    def _idle_for(self, one: _Running) -> FleetWorker | None:
        need = memory_bytes(one.planned.spec)
        busy = {a.worker.host for a in one.attempts.values()}
        fit = [w for w in self._roster.usable() if w.idle and w.room >= need and w.host not in one.avoid]
        # A second attempt on the same host would be as slow.
        return next((w for w in fit if w.host not in busy), None)

    def _begin_twice(self) -> None:
        """Begin what takes much longer than usual on another host too, where a worker is idle."""
        if not self._roster.connected or len(self._took) < 3 or len(self._running) >= self.at_once:
            return
        least = max(_LEAST_SLOW_S, _SLOW * statistics.median(self._took))
        now = time.monotonic()
        for one in self._running.values():
            if len(one.attempts) == 1 and now - next(iter(one.attempts.values())).began > least:
                place = self._idle_for(one)
                if place is not None:
                    self._send(one, place)

    def _check_lost(self) -> None:
        """Raise Lost where the scheduler is gone, or no worker has been there for long."""
        if self._roster.lost:
            raise Lost(f"{self._roster.lost}{self._again_with}")
        if self._roster.usable() or not self._running:
            self._none_since = None
            return
        self._none_since = self._none_since or time.monotonic()
        if self._roster.all_asked or time.monotonic() - self._none_since > _ALONE_S:
            raise Lost(
                f"no worker of the fleet can be used any more{self._roster.why_none()}{self._again_with}"
            )


def _answer(future: Future) -> Any:
    """Return what a task answered, or the exception in place of it."""
    try:
        return future.result(timeout=ANSWER_S)
    except BaseException as error:  # it was cancelled, its worker lost
        return error


def _is_other(result: Any, engine: Engine | None) -> bool:
    """Whether a result is of another engine than the one that is asked for."""
    if result is None or engine is None:
        return False
    said = result.get("engine")
    if not isinstance(said, dict):
        return False
    return (str(said.get("version")), str(said.get("openzfs"))) != (engine.version, engine.openzfs)
