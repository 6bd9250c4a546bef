"""What a job is: the running part of a workload, beside the database, with the standard library alone.

A job does the same thing under a recorder on this machine and in a trial on another one. Its life, in a
trial::

    job = registry.get("postgres-oltp")(params, database)
    job.check()
    job.prepare(workdir, places)       # places: role -> an empty directory on the layout's dataset
    job.load(progress)                 # or: the core copies a saved state into places, then job.adopt(places)
    job.stop()                         # the core settles here: export and import, caches dropped
    job.start(progress)
    result = job.run(progress)         # the timed part
    result = job.verify(result)
    job.stop()
    job.cleanup()

``cleanup`` may come after any step, and twice. No step writes outside the work directory and the places.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.process import Account, patience_of
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs import role_directories

ProgressFn = Callable[[str, float], None]
"""Called with the name of the step and how much of it is done (0…1)."""


def no_progress(_step: str, _done: float) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, slots=True)
class Check:
    """One test that the job was really done."""

    name: str
    expected: int | str
    got: int | str

    @property
    def ok(self) -> bool:
        """Whether what was found is what was expected."""
        return self.expected == self.got


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """What a run of a workload did, as the workload's own client saw it.

    Under a recorder these are facts about the recorded run, not a measurement of any ZFS layout; in a trial
    they are the measurement.
    """

    seconds: float
    """Wall time of the job."""
    operations: int
    """What the job counts: transactions, entries, documents."""
    unit: str
    """The name of one operation, such as ``transaction``."""
    latency_ms: dict[str, float]
    """mean, p50, p90, p95, p99, p999, max, in milliseconds; empty where the job has no such thing."""
    checks: tuple[Check, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    offered_per_second: float | None = None
    """Operations that became due per second of wall time: 0 where the next begins when the last is done,
    ``None`` where the job does not know."""
    commits: int | None = None
    """How many of the operations wait for the log; ``None``: all."""
    log: dict[str, float] = field(default_factory=dict)
    """What the database itself counted of its log while the job ran: ``writes`` and ``syncs``, the seconds
    ``write_s`` and ``sync_s`` that they took, and ``waits`` for room in its buffer. What this version does
    not count, or was told not to time, is absent."""

    @property
    def per_second(self) -> float:
        """Operations per second of wall time."""
        return self.operations / self.seconds if self.seconds else 0.0

    def require_ok(self, workload: str) -> Self:
        """Return self; raise ``ZtuneError`` with the first check that does not hold."""
        for check in self.checks:
            if not check.ok:
                raise ZtuneError(
                    f"{workload}: the job was not done: {check.name} should be {check.expected} "
                    f"but is {check.got}"
                )
        return self

    def undilated(self, dilation: float) -> Self:
        """Return the result with its times divided by ``dilation``; ``details`` are the job's to mend."""
        if dilation == 1:
            return self
        return replace(
            self,
            seconds=self.seconds / dilation,
            latency_ms={name: ms / dilation for name, ms in self.latency_ms.items()},
            offered_per_second=None
            if self.offered_per_second is None
            else self.offered_per_second * dilation,
            log={name: n / dilation if name.endswith("_s") else n for name, n in self.log.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        data = asdict(self)
        data["checks"] = [{**asdict(check), "ok": check.ok} for check in self.checks]
        data["per_second"] = self.per_second
        return data


class Job(Protocol):
    """The running part of a workload."""

    name: ClassVar[str]
    """As users type it, such as ``postgres-oltp``."""

    def __init__(
        self,
        params: Mapping[str, Any],
        database: Mapping[str, str] | None = None,
        *,
        patience: float | None = None,
        dilation: float = 1.0,
    ) -> None:
        """Take the settings; nothing is started or written.

        Args:
            params: validated and resolved parameters of the workload, as JSON values: every one of them.
            database: settings of the database itself, in its own words, that the layout asks for.
            patience: how many times slower than usual this machine may be: it multiplies every time limit,
                and no time that is measured. Under emulation 20 to 100. ``None``: ``$ZTUNE_PATIENCE``, else
                1.
            dilation: how many times slower than in reality everything is to go, because the disks do:
                durations in ``params`` and ``database`` are multiplied by it, rates divided, and the times of
                the result divided, so that they read as if the disks were the real ones.
        """
        ...

    def check(self) -> str:
        """Return the version of what would run, such as ``PostgreSQL 15.18``.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
            InputError: a setting in ``database`` is unknown here or not the layout's to set.
        """
        ...

    def roles(self) -> tuple[str, ...]:
        """Return the roles whose directories ``prepare`` needs, such as ``("data", "wal")``."""
        ...

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path] | None = None) -> None:
        """Make directories below ``workdir``; note the place of each role.

        Args:
            workdir: for sockets, logs, scripts: what is no part of the database.
            places: role → an existing empty directory, which may be handed over to the database's user.
                ``None``: directories below ``workdir``. Nothing is written into them before ``load``.

        Raises:
            InputError: a place is missing, not empty, or can't be reached by the database's user.
        """
        ...

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Bring the database to its starting state. Not measured. The server may run at the end, or not."""
        ...

    def adopt(self, places: Mapping[str, Path]) -> None:
        """Instead of ``load``: take over files that were copied into ``places`` (the contents of each role's
        directory, as they were after ``load`` and ``stop``), and mend absolute links, owners and modes.

        Raises:
            ZtuneError: what lies there is no state of this job with these parameters.
        """
        ...

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server and warm it. Not measured."""
        ...

    def pids(self) -> list[int]:
        """Return the processes that do the job's I/O; their threads and descendants, present and future,
        belong to them. They live until ``stop``, so what they did can be read after ``run``. Empty when
        nothing runs.
        """
        ...

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Do the job and return what happened: the only step that is timed.

        Raises:
            ZtuneError: the server died or the client failed.
        """
        ...

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with checks that the job was really done; after the measurement, before ``stop``.

        Raises:
            ZtuneError: a check does not hold.
        """
        ...

    def stop(self) -> None:
        """Shut down in order, so that the files are consistent. Does nothing when nothing runs.

        Raises:
            ZtuneError: it did not stop in order within its time. It is gone all the same: it was killed.
        """
        ...

    def cleanup(self) -> None:
        """End every process of the job at once, and remove the work directory (unless it is to be kept).

        Files in ``places`` are left alone: their datasets are destroyed whole.
        """
        ...

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role; where one lies below another, the deeper one counts."""
        ...

    def page_sizes(self) -> dict[str, int]:
        """Return the database's page size per role, in bytes, for roles where it has one."""
        ...

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return name, resolved parameters, result and version, as JSON values."""
        ...


class Running(Protocol):
    """What a job has started: a client, a launcher, a server."""

    def pids(self) -> list[int]:
        """Return the processes that do its I/O; none when it has ended."""
        ...

    def stop(self) -> None:
        """End it in order; raises ZtuneError if that fails, and it is gone all the same."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class LoadedFacts(Protocol):
    """A dataclass of JSON values: what is known of what was loaded."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_Running = TypeVar("_Running", bound=Running)
_Facts = TypeVar("_Facts", bound=LoadedFacts)


class JobBase:
    """What most jobs share. A job may do without it.

    A subclass says in ``check`` what would run, in ``load``, ``start``, ``run`` and ``verify`` what is done,
    and hands what it starts to ``begin``. Directories, hand-over and the end of everything are here.
    """

    name: ClassVar[str]
    ROLES: ClassVar[tuple[str, ...]]
    user: str = "nobody"
    """The system user that the database runs as where ztune is root; known after ``check``."""

    def __init__(
        self,
        params: Mapping[str, Any],
        database: Mapping[str, str] | None = None,
        *,
        patience: float | None = None,
        dilation: float = 1.0,
    ) -> None:
        self.params: dict[str, Any] = dict(params)
        self.database: dict[str, str] = dict(database or {})
        self.patience = patience_of(patience)
        self.dilation = dilation
        self.workdir: WorkDir | None = None
        self._paths: dict[str, Path] = {}
        """The directory of each role, from ``prepare`` on, where a job keeps them here."""
        self._running: list[Running] = []
        self._set_up()

    def _set_up(self) -> None:
        """Set what a job keeps, from its parameters: the end of the constructor. Nothing is started."""

    def check(self) -> str:
        """Return the version of what would run."""
        raise NotImplementedError

    def check_settings(self) -> None:
        """Refuse settings of the layout that are seen to be wrong without a program, before anything begins.

        Raises InputError. What this can't tell, ``check`` or the server itself does, where the trial runs.
        """

    def settings(self) -> dict[str, str]:
        """Return the database's settings that the parameters choose, overridden by the layout's, in the
        database's own words.
        """
        return dict(self.database)

    @cached_property
    def account(self) -> Account:
        """Who the database runs as: never root."""
        return Account.for_database(self.user)

    @cached_property
    def home(self) -> Path:
        """A directory of the account's for all that is no part of the database; there is one after
        ``prepare``.
        """
        if self.workdir is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self.workdir.path / "run"

    def roles(self) -> tuple[str, ...]:
        """Return the roles whose directories ``prepare`` needs."""
        return self.ROLES

    def place(self, role: str, places: Mapping[str, Path] | None) -> Path | None:
        """Return the directory that ``places`` gives to ``role``; ``None`` if there are no places at all.

        Raises:
            InputError: the role has none. Its files must not land where nobody looks for them.
        """
        if places is None:
            return None
        if role not in places:
            raise InputError(
                f"{self.name}: no dataset of the layout has the role {role!r}, which it writes to"
            )
        return places[role]

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path] | None = None) -> None:
        """Take the directory of each role, make ``home``, and try both as the account; then ``lay_out``.

        Raises:
            InputError: a place is missing, not empty, or can't be reached by the account.
        """
        self.check()
        self.workdir = workdir
        self._paths = self.take(places)
        workdir.sub("run", owner=self.account.owner)
        reached = (self.home, *self._paths.values())
        role_directories.must_be_reachable(reached, workdir, self.account, patience=self.patience)
        self.lay_out()

    def take(self, places: Mapping[str, Path] | None) -> dict[str, Path]:
        """Return the directories of ``places``, by role, now the account's, or new ones."""
        assert self.workdir is not None
        given = {role: self.place(role, places) for role in self.roles()}
        return {
            role: role_directories.take(role, path, self.workdir, self.account)
            for role, path in given.items()
        }

    def take_one(self, places: Mapping[str, Path] | None, why: str) -> dict[str, Path]:
        """Return the directory of the role ``data`` alone, where a database keeps the files of every role.

        Raises:
            InputError: a role's place is not empty, or they are on several file systems; then it is ``why``.
        """
        assert self.workdir is not None
        given = {role: self.place(role, places) for role in self.roles()}
        for role, path in given.items():
            if path is not None:
                role_directories.must_be_empty(role, path)
        role_directories.must_share_a_file_system(given.values(), why)
        return {"data": role_directories.take("data", given["data"], self.workdir, self.account)}

    def lay_out(self) -> None:
        """Put what is no part of the database where the account can read it: the end of ``prepare``."""

    def must_be_in_place(self, places: Mapping[str, Path]) -> None:
        """Raise ``ZtuneError`` if files were copied into other ``places`` than were prepared."""
        for role, path in self._paths.items():
            if self.place(role, places) != path:
                raise ZtuneError(f"{self.name}: {role} was prepared at {path} but copied to {places[role]}")

    def adopt(self, places: Mapping[str, Path]) -> None:
        """Take over what was copied into ``places``.

        Raises:
            ZtuneError: they are others than were prepared, or ``take_over`` does not take what is there.
        """
        self.must_be_in_place(places)
        self.take_over()
        for path in self._paths.values():
            role_directories.hand_over(path, self.account)

    def take_over(self) -> None:
        """Look at the files that were copied, and mend what was true of the place that they came from.

        Raises:
            ZtuneError: they are no state of this job with these parameters.
        """

    def write_note(self, path: Path, facts: LoadedFacts) -> None:
        """Keep ``facts`` of what was loaded in ``path``, to come along when the loaded files are copied."""
        role_directories.lend(path, json.dumps(asdict(facts)), self.account)

    def read_note(self, path: Path, kind: type[_Facts], what: str) -> _Facts:
        """Return what ``write_note`` kept of ``what``, such as "archive".

        Raises:
            ZtuneError: there is no such thing.
        """
        try:
            return kind(**json.loads(own_directory.read_plain(path)))
        except (OSError, ValueError, TypeError):
            raise ZtuneError(
                f"{path}: there is no {what} of {self.name} to take over; load it anew"
            ) from None

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role."""
        if not self._paths:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return dict(self._paths)

    def page_sizes(self) -> dict[str, int]:
        """Return the page size of each role that has one: files of blocks of many sizes have none."""
        return {}

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes, before compression, each role will hold, as far as that is known."""
        return {}

    def begin(self, program: _Running) -> _Running:
        """Note ``program``, which has just been started, and return it: ``stop`` and ``kill`` end it."""
        self._running.append(program)
        return program

    def finish(self, program: Running) -> None:
        """End one program in order, before the others."""
        self._running.remove(program)
        program.stop()

    def running(self, kind: type[_Running]) -> _Running:
        """Return the program of that ``kind`` which runs.

        Raises:
            ZtuneError: there is none.
        """
        for program in self._running:
            if isinstance(program, kind):
                return program
        raise ZtuneError(f"{self.name}: start comes before this step")

    def pids(self) -> list[int]:
        """Return the processes that do the I/O."""
        return [pid for program in self._running for pid in program.pids()]

    def stop(self) -> None:
        """End every program in order, the last one first.

        Raises:
            ZtuneError: one did not end in order.
        """
        self._end(lambda program: program.stop())

    def kill(self) -> None:
        """End every program at once."""
        self._end(lambda program: program.kill())

    def _end(self, end: Callable[[Running], None]) -> None:
        with contextlib.ExitStack() as each:
            for program in self._running:
                each.callback(end, program)
            self._running = []

    def cleanup(self) -> None:
        """End every process and remove the work directory."""
        with uninterrupted():
            try:
                self.kill()
            finally:
                if self.workdir is not None:
                    self.workdir.remove()

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return name, resolved parameters, result and version, as JSON values."""
        return {
            "name": self.name,
            "parameters": dict(self.params),
            "result": result.to_json() if result is not None else {},
            "version": self.check(),
        }
