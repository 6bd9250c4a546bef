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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ztune import __version__
from ztune.errors import InputError, MissingError, reason
from ztune.fleet import kept, worker
from ztune.onhost.host.room import NoRoomError
from ztune.places import loaded
from ztune.places.channel import Lost
from ztune.places.engine import Engine
from ztune.places.engine_run import Outcome, Progress, memory_bytes
from ztune.places.executor import Ended, HostProgress, PlannedReplay
from ztune.places.replay import Replay

if TYPE_CHECKING:
    from distributed import Client, Future

MOST_CUTS = 3
"""A layout that was cut so often, by workers that were lost, has failed: it may be what ends them."""
_LOOK_S = 1.0
_ANSWER_S = 60.0
"""How long a worker or the scheduler may take to answer."""
_ALONE_S = 60.0
"""How long workers are waited for when none is left: a cluster's manager starts others."""
_SLOW = 3.0
"""A layout that takes so many times the median is begun a second time where a worker is idle."""
_LEAST_SLOW_S = 30.0
_END_S = 10.0
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)


@dataclass(eq=False)
class _Worker:
    """One worker, as it said. ``slots``: engines at once; ``memory``: bytes for all of them."""

    address: str
    host: str
    home: tuple[Any, ...] = ()
    memory: int = 0
    slots: int = 0
    asked: bool = False
    usable: bool = False
    running: set[int] = field(default_factory=set)

    @property
    def room(self) -> int:
        return self.memory // max(1, self.slots)

    @property
    def idle(self) -> bool:
        return self.usable and len(self.running) < self.slots


@dataclass(eq=False)
class _Home:
    """A state directory on the fleet, which several workers may share: what it has."""

    files: set[str] = field(default_factory=set)
    images: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False)
class _Attempt:
    """One try of a replay: ``number`` counts them all."""

    number: int
    worker: _Worker
    began: float
    future: Future | None = None


@dataclass(eq=False)
class _Running:
    """A replay that has no outcome yet. ``avoid``: hosts that could not do it."""

    planned: PlannedReplay
    tell: Progress
    attempts: dict[str, _Attempt] = field(default_factory=dict)
    cuts: int = 0
    avoid: set[str] = field(default_factory=set)


class FleetExecutor:
    """Replays on the workers that ``client`` is connected to."""

    def __init__(self, client: Client, say: Callable[[str], None], again: str = "") -> None:
        """``say`` is told, in a sentence, which worker is not used and why. ``again``: what goes on with a
        run that was cut, as the rest of a sentence."""
        self._client, self._say, self._again_with = client, say, again
        self._token = secrets.token_hex(4)
        self._workers: dict[str, _Worker] = {}
        self._homes: dict[tuple[Any, ...], _Home] = {}
        self._running: dict[int, _Running] = {}
        self._waiting: list[_Running] = []  # those that were cut
        self._placed: dict[int, _Worker] = {}
        self._took: list[float] = []
        self._done: dict[str, int] = {}
        self._events: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(16, "fleet")
        self._over = threading.Event()
        self._lost = ""
        self._left: set[str] = set()
        self._none_since: float | None = None
        self._attempts = 0
        self._engine: Engine | None = None
        self._spec: Mapping[str, Any] = {}
        self._jobs = 0
        self._digests: dict[tuple[Any, ...], str] = {}
        self._lock = threading.Lock()
        self._looked = threading.Event()
        self._watcher: threading.Thread | None = None
        self._last_why = ""

    # --- the protocol

    @property
    def at_once(self) -> int:
        """How many engines run at once on all workers."""
        return max(1, sum(w.slots for w in list(self._workers.values()) if w.usable))

    @property
    def room(self) -> int:
        """Bytes of memory that one engine may take where most is."""
        return max((w.room for w in list(self._workers.values()) if w.usable), default=0)

    def hosts(self) -> list[HostProgress]:
        """Return what each host does."""
        found: dict[str, list[int]] = {}
        for one in list(self._workers.values()):
            if one.usable:
                of = found.setdefault(one.host, [0, 0])
                of[0] += one.slots
                of[1] += len(one.running)
        return [
            HostProgress(host, slots, running, self._done.get(host, 0))
            for host, (slots, running) in sorted(found.items())
        ]

    def open(self, replay: Replay, spec: Mapping[str, Any], jobs: int) -> None:
        """Ask all workers what they have. Raises MissingError where none of them can be used."""
        self._engine, self._spec, self._jobs = replay.engine, spec, jobs
        self._client.subscribe_topic(worker.TOPIC, self._heard)
        self._client.subscribe_topic("all", self._happened)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        deadline = time.monotonic() + _ALONE_S
        while not self._looked.wait(0.1) or not self._all_asked():
            self._check_lost()
            if time.monotonic() > deadline:
                break
        if not any(w.usable for w in self._workers.values()):
            raise MissingError(f"no worker of the fleet can be used{self._why()}")

    def choose(self, waiting: Sequence[PlannedReplay]) -> PlannedReplay | None:
        """Return what goes best to an idle worker: what begins from an image that is there, else what waits
        for none that is being made."""
        self._begin_again()
        idle = [w for w in self._workers.values() if w.idle]
        if self._waiting or not idle or not waiting or not self._connected:
            return None
        idle.sort(key=lambda w: len(w.running) / w.slots)
        under_way = {one.planned.work.key for one in self._running.values()}
        second = third = None
        for planned in waiting:
            need = memory_bytes(planned.spec)
            fit = [w for w in idle if w.room >= need]
            if not fit:
                if not any(w.room >= need for w in self._workers.values() if w.usable):
                    return planned  # begin() says so
                continue
            key = planned.work.key
            for one in fit:
                if key in self._homes[one.home].images:
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
        for one in self._workers.values():
            one.running.clear()
        events, self._events = self._events, queue.SimpleQueue()
        while not events.empty():
            event = events.get()
            if event[0] == "gone":  # of what runs no more nothing is to be said, of workers still
                self._events.put(event)
        if not busy or self._lost:
            return
        with contextlib.suppress(Exception):  # who is gone has stopped
            self._client.cancel(futures)
            self._run(worker.end, self._token)
            deadline = time.monotonic() + _END_S
            while any(self._run(worker.busy, self._token).values()) and time.monotonic() < deadline:
                time.sleep(0.1)

    def close(self) -> None:
        """Let go of the fleet. Its workers stay."""
        self._over.set()
        self.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._watcher is not None:
            self._watcher.join(_LOOK_S + 1)

    # --- workers

    @property
    def _connected(self) -> bool:
        """Whether the scheduler is there. That it is gone for good the watcher says, a little later."""
        return str(self._client.status) == "running"

    def _run(self, function: Callable[..., Any], *args: Any, workers: list[str] | None = None) -> Any:
        return self._client.run(function, *args, workers=workers, on_error="ignore")

    def _watch(self) -> None:
        """Look who is there, as long as this lives."""
        asked: dict[str, _Worker] = {}
        failed_since: float | None = None
        while not self._over.is_set():
            try:
                there = self._client.sync(self._client.scheduler.ncores, callback_timeout=_ANSWER_S)
                failed_since = None
            except Exception as error:
                if self._over.is_set():
                    return
                failed_since = failed_since or time.monotonic()
                if self._client.status not in ("running",) or time.monotonic() - failed_since > _ANSWER_S:
                    self._lost = (
                        f"the scheduler of the fleet does not answer any more ({type(error).__name__})"
                        f"{self._again_with}"
                    )
                    return
                there = None
            if there is not None:
                left, self._left = self._left, set()
                # One that began again between two looks has the address that it had, and nothing else.
                for address in set(asked) & (left | (set(asked) - set(there))):
                    self._events.put(("gone", address, asked.pop(address)))
                for address in set(there) - set(asked):
                    asked[address] = one = _Worker(address, address)
                    with self._lock:
                        self._workers[address] = one
                    self._pool.submit(self._ask, one)
                self._looked.set()
            self._over.wait(_LOOK_S)

    def _all_asked(self) -> bool:
        with self._lock:
            return bool(self._workers) and all(w.asked for w in self._workers.values())

    def _ask(self, one: _Worker) -> None:
        """Learn what a worker has, and take it if it suits."""
        assert self._engine is not None
        wanted = self._engine
        try:
            said = self._client.run(worker.hello, wanted.openzfs, workers=[one.address])[one.address]
            one.host = str(said["host"])
            if "error" in said:
                why = said["error"]
            elif said["ztune"] != __version__:
                why = f"it has ztune {said['ztune']}, here is {__version__}"
            elif said["openzfs"] != wanted.openzfs:
                why = f"it has OpenZFS {said['openzfs']}, this run has {wanted.openzfs}"
            elif said["engine"] != wanted.version:
                why = f"its engine is {said['engine']}, this run's {wanted.version}"
            else:
                why = ""
                one.home = tuple(said["home"])
                threads, cores = max(1, int(said["threads"])), max(1, int(said["cores"]))
                # Other workers of its host have the rest of its memory.
                one.memory = int(said["memory"]) * min(threads, cores) // cores
                need = memory_bytes(self._spec)
                one.slots = min(self._jobs or threads, threads, one.memory // need)
                with self._lock:
                    self._homes.setdefault(one.home, _Home())
                if one.slots:
                    self._client.run(worker.accept, one.slots, workers=[one.address])
                else:
                    why = (
                        f"it has {one.memory >> 20} MiB of memory for engines, and one takes {need >> 20} MiB"
                    )
        except Exception as error:  # it was lost, or has no ztune that knows these functions
            why = f"it does not answer as a worker with ztune does ({type(error).__name__}: {error})"
        if why:
            self._set_aside(one, why)
        else:
            one.usable = True
        one.asked = True

    def _set_aside(self, one: _Worker, why: str) -> None:
        one.usable = False
        self._last_why = (why.splitlines() or [""])[0]
        host = "" if one.host == one.address else f" on {one.host}"
        self._say(f"worker {one.address}{host} is not used: {self._last_why}")

    def _why(self) -> str:
        if self._last_why:
            return f": {self._last_why}"
        return "" if self._workers else ": there is none; `dask worker` starts one"

    # --- replays

    def _place(self, planned: PlannedReplay, one: _Worker) -> PlannedReplay:
        self._placed[planned.number] = one
        return planned

    def _send(self, one: _Running, place: _Worker) -> None:
        self._attempts += 1
        key = f"ztune-{self._token}-{one.planned.number}-{self._attempts}"
        attempt = one.attempts[key] = _Attempt(self._attempts, place, time.monotonic())
        place.running.add(attempt.number)
        self._pool.submit(self._deliver, one, key, attempt)

    def _deliver(self, one: _Running, key: str, attempt: _Attempt) -> None:
        """Bring the files to the worker that are not there, then the replay."""
        place = attempt.worker
        try:
            files = self._files(one.planned)
            home = self._homes[place.home]
            if place.home != tuple(worker.home_here()):
                with home.lock:
                    self._bring({sha: path for sha, path in files.values() if sha not in home.files}, place)
                    home.files |= {sha for sha, _ in files.values()}
            order = order_of(one.planned, files, (place.slots, place.memory))
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

    def _files(self, planned: PlannedReplay) -> dict[str, tuple[str, Path]]:
        """Return what a replay reads: its name → digest and path here."""
        work = planned.work
        paths_ = {"ops": work.ops, **{f"content/{name}": path for name, path in work.content.items()}}
        return {name: (self._digest(path), path) for name, path in paths_.items()}

    def _digest(self, path: Path) -> str:
        key = tuple(loaded.identity(path))
        with self._lock:
            found = self._digests.get(key)
        if found is None:
            found = kept.digest(path)
            with self._lock:
                self._digests[key] = found
        return found

    def _bring(self, files: Mapping[str, Path], place: _Worker) -> None:
        """Send ``files``, by their digests, to a worker that does not have them."""
        if not files:
            return

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            return self._client.run(function, *args, workers=[place.address])[place.address]

        for sha in ask(kept.missing, list(files)):
            path = files[sha]
            size = path.stat().st_size
            with path.open("rb") as file:
                for offset in range(0, size, kept.PART):
                    ask(kept.put, sha, offset, file.read(kept.PART), size)
            ask(kept.finish, sha)

    def _happened(self, event: tuple[float, Any]) -> None:
        """Note which workers the scheduler has lost."""
        said = event[1]
        if isinstance(said, dict) and said.get("action") == "remove-worker":
            self._left = self._left | {str(said.get("worker"))}

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
            gone: _Worker = what
            with self._lock:
                if self._workers.get(name) is gone:  # else another has its address
                    del self._workers[name]
            if gone.usable:
                gone.usable = False
                for cut in list(self._running.values()):
                    for key in [k for k, a in cut.attempts.items() if a.worker is gone]:
                        found = self._cut(cut, key, f"worker {name} on {gone.host} was lost")
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
            if not self._connected:  # with the scheduler all is cancelled, through no fault of the layout's
                self._give_up(one, key)
                self._waiting.append(one)
                return None
            found = self._cut(one, key, f"worker {place.address} on {place.host} was lost")
            return None if found is None else self._end(one, found)
        said = json.loads(what)
        if "missing" in said:
            self._homes[place.home].files -= set(said["missing"])
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        if "unfit" not in said and _is_other(said.get("result"), self._engine):
            said = {"unfit": "its engine was replaced by another"}
        if "unfit" in said:
            self._set_aside(place, str(said["unfit"]))
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        outcome = Outcome(said["result"], said["error"], float(said["wall_s"]), bool(said["of_place"]))
        others = {w.host for w in self._workers.values() if w.usable} - {place.host} - one.avoid
        if outcome.of_place and others:
            one.avoid.add(place.host)
            self._give_up(one, key)
            self._waiting.append(one)
            return None
        if outcome.result is not None:
            outcome.result["ran_on"] = place.host
            self._homes[place.home].images.add(one.planned.work.key)
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
        if not self._connected:
            return
        for one in list(self._waiting):
            need = memory_bytes(one.planned.spec)
            fit = [w for w in self._workers.values() if w.usable and w.room >= need]
            if all(w.host in one.avoid for w in fit):
                one.avoid.clear()  # the others are gone: here it may do by now
            if not fit and any(w.usable for w in self._workers.values()):
                self._waiting.remove(one)
                words = f"no worker is left that has the {need >> 20} MiB of memory that its engine takes"
                self._events.put(("failed", str(one.planned.number), Outcome(None, words, 0.0)))
                continue
            place = self._idle_for(one)
            if place is not None:
                self._waiting.remove(one)
                self._send(one, place)

    def _idle_for(self, one: _Running) -> _Worker | None:
        need = memory_bytes(one.planned.spec)
        busy = {a.worker.host for a in one.attempts.values()}
        fit = [w for w in self._workers.values() if w.idle and w.room >= need and w.host not in one.avoid]
        # A second attempt on the same host would be as slow.
        return next((w for w in fit if w.host not in busy), None)

    def _begin_twice(self) -> None:
        """Begin what takes much longer than usual on another host too, where a worker is idle."""
        if not self._connected or len(self._took) < 3 or len(self._running) >= self.at_once:
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
        if self._lost:
            raise Lost(self._lost)
        if any(w.usable for w in list(self._workers.values())) or not self._running:
            self._none_since = None
            return
        self._none_since = self._none_since or time.monotonic()
        left = [w for w in list(self._workers.values()) if not w.asked]
        aside = bool(self._workers) and not left
        if aside or time.monotonic() - self._none_since > _ALONE_S:
            raise Lost(f"no worker of the fleet can be used any more{self._why()}{self._again_with}")


def order_of(planned: PlannedReplay, files: Mapping[str, tuple[str, Path]], room: tuple[int, int]) -> str:
    """Return what a worker is told of a replay, as JSON: no path of it but those that are the same there."""
    work = planned.work
    engine = planned.replay.engine
    read = {name.removeprefix("content/"): sha for name, (sha, _) in files.items() if name != "ops"}
    if work.spec.get("load") == "touched":
        read["the operations"] = files["ops"][0]
    return json.dumps(
        {
            "engine": engine.version,
            "openzfs": engine.openzfs,
            "spec": work.spec,
            "key": loaded.key_of(work.load, read, engine),
            "contents": work.contents,
            "filler": work.filler,
            "threads": work.threads,
            "timeout_s": work.timeout_s,
            "room": room,
            "files": {name: (sha, str(path.resolve())) for name, (sha, path) in files.items()},
            "home": worker.home_here(),
        }
    )


def _answer(future: Future) -> Any:
    """Return what a task answered, or the exception in place of it."""
    try:
        return future.result(timeout=_ANSWER_S)
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
