"""The workers of a fleet: who is there, what each has, and who is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ztune import __version__
from ztune.fleet import worker

if TYPE_CHECKING:
    from distributed import Client

    from ztune.places.engine import Engine

ANSWER_S = 60.0
"""How long a worker or the scheduler may take to answer."""
_LOOK_S = 1.0


@dataclass(eq=False)
class FleetWorker:
    """One worker, as it said. ``slots``: engines at once; ``memory``: bytes for all of them; ``running``: the
    numbers of the attempts that it has."""

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
        """Bytes of memory that one of its engines may take."""
        return self.memory // max(1, self.slots)

    @property
    def idle(self) -> bool:
        """Whether it takes one more replay."""
        return self.usable and len(self.running) < self.slots


@dataclass(eq=False)
class FleetHome:
    """A state directory on the fleet, which several workers may share: what it has."""

    files: set[str] = field(default_factory=set)
    images: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Wanted:
    """What a worker has to have. ``memory``: bytes for one engine; ``jobs``: engines at once at most, 0: as
    many as it has threads."""

    engine: Engine
    memory: int
    jobs: int


class Roster:
    """The workers that ``client``'s scheduler knows, looked at once a second."""

    def __init__(
        self,
        client: Client,
        pool: ThreadPoolExecutor,
        say: Callable[[str], None],
        gone: Callable[[FleetWorker], None],
    ) -> None:
        """``pool`` asks them; ``say`` is told, in a sentence, which is not used and why. ``gone`` is called,
        by another thread, with each that was lost: `forget` it then."""
        self._client, self._pool, self._say, self._gone = client, pool, say, gone
        self.lost = ""
        """Why the scheduler can't be used any more, as the beginning of a sentence."""
        self._wanted: Wanted | None = None
        self._workers: dict[str, FleetWorker] = {}
        self._homes: dict[tuple[Any, ...], FleetHome] = {}
        self._left: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._looked = threading.Event()
        self._watcher: threading.Thread | None = None
        self._last_why = ""

    @property
    def connected(self) -> bool:
        """Whether the scheduler is there. That it is gone for good ``lost`` says, a little later."""
        return str(self._client.status) == "running"

    def everyone(self) -> list[FleetWorker]:
        """Return all workers that are there."""
        with self._lock:
            return list(self._workers.values())

    def usable(self) -> list[FleetWorker]:
        """Return those that may replay."""
        return [one for one in self.everyone() if one.usable]

    @property
    def all_asked(self) -> bool:
        """Whether somebody is there, and each has said what it has."""
        there = self.everyone()
        return self._looked.is_set() and bool(there) and all(one.asked for one in there)

    def home_of(self, one: FleetWorker) -> FleetHome:
        """Return what is known of a worker's state directory."""
        return self._homes[one.home]

    def watch(self, wanted: Wanted) -> None:
        """Begin to look who is there and what each has; once begun, ask for ``wanted`` from now on."""
        self._wanted = wanted
        if self._watcher is None:
            self._client.subscribe_topic("all", self._happened)
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(_LOOK_S + 1)

    def forget(self, one: FleetWorker) -> None:
        """Remove one that is gone, unless another has its address by now."""
        one.usable = False
        with self._lock:
            if self._workers.get(one.address) is one:
                del self._workers[one.address]

    def set_aside(self, one: FleetWorker, why: str) -> None:
        """Use a worker no more, and say why."""
        one.usable = False
        self._last_why = (why.splitlines() or [""])[0]
        host = "" if one.host == one.address else f" on {one.host}"
        self._say(f"worker {one.address}{host} is not used: {self._last_why}")

    def why_none(self) -> str:
        """Return why none can be used, as the end of a sentence."""
        if self._last_why:
            return f": {self._last_why}"
        return "" if self.everyone() else ": there is none; `dask worker` starts one"

    def _happened(self, event: tuple[float, Any]) -> None:
        """Note which workers the scheduler has lost."""
        said = event[1]
        if isinstance(said, dict) and said.get("action") == "remove-worker":
            self._left = self._left | {str(said.get("worker"))}

    def _watch(self) -> None:
        asked: dict[str, FleetWorker] = {}
        failed_since: float | None = None
        while not self._over.is_set():
            try:
                there = self._client.sync(self._client.scheduler.ncores, callback_timeout=ANSWER_S)
                failed_since = None
            except Exception as error:
                if self._over.is_set():
                    return
                failed_since = failed_since or time.monotonic()
                if not self.connected or time.monotonic() - failed_since > ANSWER_S:
                    self.lost = (
                        f"the scheduler of the fleet does not answer any more ({type(error).__name__})"
                    )
                    return
                there = None
            if there is not None:
                left, self._left = self._left, set()
                # One that began again between two looks has the address that it had, and nothing else.
                for address in set(asked) & (left | (set(asked) - set(there))):
                    self._gone(asked.pop(address))
                for address in set(there) - set(asked):
                    asked[address] = one = FleetWorker(address, address)
                    with self._lock:
                        self._workers[address] = one
                    self._pool.submit(self._ask, one)
                self._looked.set()
            self._over.wait(_LOOK_S)

    def _ask(self, one: FleetWorker) -> None:
        """Learn what a worker has, and take it if it suits."""
        assert self._wanted is not None
        try:
            why = self._unfit(one, self._wanted)
        except Exception as error:  # it was lost, or has no ztune that knows these functions
            why = f"it does not answer as a worker with ztune does ({type(error).__name__}: {error})"
        if why:
            self.set_aside(one, why)
        else:
            one.usable = True
        one.asked = True

    def _unfit(self, one: FleetWorker, wanted: Wanted) -> str:
        """Return why a worker can't be used, empty where it can: it takes its share of engines then."""
        engine = wanted.engine
        said = self._client.run(worker.hello, engine.openzfs, workers=[one.address])[one.address]
        one.host = str(said["host"])
        if "error" in said:
            return str(said["error"])
        if said["ztune"] != __version__:
            return f"it has ztune {said['ztune']}, here is {__version__}"
        if said["openzfs"] != engine.openzfs:
            return f"it has OpenZFS {said['openzfs']}, this run has {engine.openzfs}"
        if said["engine"] != engine.version:
            return f"its engine is {said['engine']}, this run's {engine.version}"
        one.home = tuple(said["home"])
        threads, cores = max(1, int(said["threads"])), max(1, int(said["cores"]))
        # Other workers of its host have the rest of its memory.
        one.memory = int(said["memory"]) * min(threads, cores) // cores
        one.slots = min(wanted.jobs or threads, threads, one.memory // wanted.memory)
        with self._lock:
            self._homes.setdefault(one.home, FleetHome())
        if not one.slots:
            return (
                f"it has {one.memory >> 20} MiB of memory for engines, and one takes "
                f"{wanted.memory >> 20} MiB"
            )
        self._client.run(worker.accept, one.slots, workers=[one.address])
        return ""
