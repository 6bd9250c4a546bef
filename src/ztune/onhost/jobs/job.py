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

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.process import patience_of
from ztune.onhost.host.workdir import WorkDir

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
    """mean, p50, p90, p99, p999, max, in milliseconds; empty where the job has no such thing."""
    checks: tuple[Check, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    offered_per_second: float | None = None
    """Operations that became due per second of wall time: 0 where the next begins when the last is done,
    ``None`` where the job does not know."""

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
        latency = {name: ms / dilation for name, ms in self.latency_ms.items()}
        offered = None if self.offered_per_second is None else self.offered_per_second * dilation
        return replace(self, seconds=self.seconds / dilation, latency_ms=latency, offered_per_second=offered)

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


class JobBase:
    """What most jobs share: the settings, the work directory, the places. A job may do without it."""

    name: ClassVar[str]
    ROLES: ClassVar[tuple[str, ...]]

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

    def kill(self) -> None:
        """End every process at once."""
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        """Return the database's settings that the parameters choose, overridden by the layout's, in the
        database's own words.
        """
        return dict(self.database)

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

    def must_be_in_place(self, places: Mapping[str, Path]) -> None:
        """Raise ``ZtuneError`` if files were copied into other ``places`` than were prepared."""
        for role, path in self._paths.items():
            if self.place(role, places) != path:
                raise ZtuneError(f"{self.name}: {role} was prepared at {path} but copied to {places[role]}")

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role."""
        if not self._paths:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return dict(self._paths)

    def expected_bytes(self) -> dict[str, int]:
        """Return about how many bytes, before compression, each role will hold, as far as that is known."""
        return {}

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
