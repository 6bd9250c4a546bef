"""The hosts of a run, and what each of them does: one trial at a time, and nothing else meanwhile.

One place works in the thread of the run, where signals arrive. Of several hosts each has a thread for what it
does, so that none waits for another; the run's own thread hears how it ended, and alone writes to the store.
Between ztune and the hosts is ssh and nothing else: what a trial takes is sent to it, and a Dask worker on
each host would have to be installed there, reached and secured to do no more than start that program.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ztune.errors import InputError
from ztune.places import bundle
from ztune.places.channel import Lost, Place
from ztune.places.rack import Rack
from ztune.runs.trial import Stop
from ztune.store.records import Trial

JOIN_S = 180.0
"""A host has so many seconds to answer before a run begins without it; ssh gives up connecting after 20."""
_LEAVE_S = 15.0

T = TypeVar("T")
Doing = Literal["nothing", "trial", "returning", "away", "out"]


@dataclass(eq=False)
class HostAtWork:
    """A host of a run. ``label``: what its trials are stored under. ``doing``: nothing; a trial; it comes
    back from a lost connection (returning), which lasts (away); or it is not used any more (out).

    ``block``: which it runs, 0 for none; ``began``: when; ``took_s``: its last one, which ended ``at``.
    """

    place: Place
    label: str
    doing: Doing = "nothing"
    about: dict[str, Any] = field(default_factory=dict)
    block: int = 0
    began: float = 0.0
    took_s: float = 0.0
    at: float = 0.0
    trial: Trial | None = None
    stop: Stop = field(default_factory=Stop)
    cut: float = 0.0
    """When its trial was told to stop for being slow."""
    turn: int = 0
    since: float = 0.0
    """When it began what it does."""

    @property
    def usable(self) -> bool:
        """Whether blocks may be given to it, now or soon."""
        return self.doing in ("nothing", "trial", "returning")


Told = tuple[HostAtWork, Any]
"""A host, and what its work returned; an exception where it raised one."""


class Hosts:
    """All hosts of a run. Use as a context manager: it brings them up, and down at the end."""

    def __init__(self, places: Place | Rack) -> None:
        several = places.places if isinstance(places, Rack) else (places,)
        self.rack = places if isinstance(places, Rack) else None
        self.name = places.name
        self.all = [HostAtWork(place, place.name) for place in several]
        self._ended: queue.SimpleQueue[tuple[HostAtWork, int, Any]] = queue.SimpleQueue()
        self._here: tuple[HostAtWork, Callable[[], Any]] | None = None
        self.gone = threading.Event()
        """The run is over: who waits for a host waits no more."""

    def __len__(self) -> int:
        return len(self.all)

    @property
    def up(self) -> list[HostAtWork]:
        """Those that can be asked."""
        return [host for host in self.all if host.doing in ("nothing", "trial")]

    @property
    def usable(self) -> list[HostAtWork]:
        """Those that blocks may be given to, now or soon."""
        return [host for host in self.all if host.usable]

    @property
    def busy(self) -> list[HostAtWork]:
        """Those with a trial, or on their way back to one."""
        return [host for host in self.all if host.doing in ("trial", "returning")]

    def idle(self) -> list[HostAtWork]:
        """Return those that have nothing to do."""
        return [host for host in self.all if host.doing == "nothing"]

    def __enter__(self) -> Hosts:
        """Bring them up. Of several, one that can't be reached is ``away``.

        Raises what a single place raises; of several Lost only where all of them are away.
        """
        if self.rack is None:
            self.all[0].place.__enter__()
            return self
        try:
            lost = self._join()
            self._check_apart()
        except BaseException:
            self.__exit__()
            raise
        if not self.up:
            self.__exit__()
            raise lost[0]
        return self

    def _join(self) -> list[BaseException]:
        def join(host: HostAtWork) -> None:
            host.place.__enter__()
            host.about = host.place.about_host()

        bundle.build()  # once, and not by all of them at a time
        lost: list[BaseException] = []
        waiting = [(host, _Asked(join, host)) for host in self.all]
        until = time.monotonic() + JOIN_S
        for host, asked in waiting:
            try:
                asked.answer(max(0.0, until - time.monotonic()), host.place.name)
            except Lost as error:
                host.doing = "away"
                lost.append(error)
        return lost

    def _check_apart(self) -> None:
        """Raise InputError where two names are one host: their trials would disturb each other."""
        seen: dict[tuple[str, str], str] = {}
        for host in self.up:
            machine = (str(host.about.get("boot_id", "")), str(host.about.get("host", "")))
            if all(machine) and machine in seen:
                raise InputError(
                    f"{seen[machine]} and {host.place.name} in {self.name} are one machine, {machine[1]}; "
                    "leave one of them out"
                )
            seen[machine] = host.place.name

    def __exit__(self, *_: object) -> None:
        """Bring them down, side by side; one that hangs is left."""
        self.gone.set()

        def leave(host: HostAtWork) -> None:
            host.place.__exit__(None, None, None)

        if self.rack is None:
            try:
                leave(self.all[0])
            except Lost:
                return
            return
        for one in [_Asked(leave, host) for host in self.all]:
            one.thread.join(_LEAVE_S)

    # --- work

    def bounded(self, host: HostAtWork, seconds: float, do: Callable[[], T]) -> T:
        """Return what ``do`` returns; of several hosts within ``seconds``, else raise Lost."""
        if self.rack is None:
            return do()
        found: list[T] = []
        asked = _Asked(lambda _: found.append(do()), host)
        asked.answer(seconds, host.place.name)
        return found[0]

    def begin(self, host: HostAtWork, doing: Doing, work: Callable[[], Any]) -> None:
        """Have ``host`` do ``work``, whose end ``ended`` tells."""
        host.doing = doing
        host.since = time.monotonic()
        host.turn += 1
        if self.rack is None:
            self._here = host, work
            return
        turn = host.turn

        def run() -> None:
            try:
                self._ended.put((host, turn, work()))
            except BaseException as error:  # handed to the run's thread
                self._ended.put((host, turn, error))

        threading.Thread(target=run, daemon=True, name=f"trial on {host.label}").start()

    def ended(self, timeout_s: float) -> Told | None:
        """Return the next work that ended; None where none does within ``timeout_s``.

        Of a single place the work is done here. Raises what that raises.
        """
        if self.rack is None:
            if self._here is None:
                return None
            (host, work), self._here = self._here, None
            return host, work()
        try:
            host, turn, value = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return (host, value) if turn == host.turn else None

    def abandon(self, host: HostAtWork) -> None:
        """Hear no more of what ``host`` does."""
        host.turn += 1
        host.doing = "away"


class _Asked:
    """Something done in a thread, whose answer is waited for so long and no longer."""

    def __init__(self, do: Callable[[HostAtWork], object], host: HostAtWork) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                do(host)
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def answer(self, timeout_s: float, who: str) -> None:
        """Wait. Raises what was raised there, and Lost where that takes too long."""
        self.thread.join(timeout_s)
        if self.thread.is_alive():
            raise Lost(f"{who} did not answer in time")
        if self._error is not None:
            raise self._error


def kernels(abouts: Iterable[dict[str, Any]]) -> str:
    """Return the kernels of several hosts, for a record."""
    return " and ".join(dict.fromkeys(str(about.get("kernel", "")) for about in abouts))


def openzfs(about: dict[str, Any]) -> str:
    """Return the version of OpenZFS that a host has; empty without it."""
    zfs = about.get("openzfs") or {}
    return str(zfs.get("kernel") or zfs.get("library", ""))


def names(hosts: Sequence[HostAtWork]) -> str:
    """Return hosts by name, for a sentence."""
    return ", ".join(host.place.name for host in hosts)
