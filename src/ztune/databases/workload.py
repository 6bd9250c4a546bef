"""What a workload is: typed, documented parameters around a job that does the work.

``JobWorkload`` makes a workload from a ``Parameters`` class and a ``Job`` class (``ztune.onhost.jobs``). The
job is what a trial runs, on whatever machine; here it runs under the recorder.

Life cycle, in this order::

    workload = registry.make("postgres-oltp", {"scale": 25})
    with running(workload) as workload:      # prepare, load, start; stop and cleanup whatever happens
        with Recording(pids=workload.pids(), …):
            result = workload.run()          # the timed job: the only step that is recorded
        result = workload.verify(result)     # after the recording: it reads what the job wrote

``prepare`` makes directories, ``load`` brings the database to its starting state, ``start`` starts the server
and warms it, ``run`` does the job, ``verify`` proves that it was done, ``stop`` shuts down in order,
``cleanup`` removes everything that the workload made. ``cleanup`` may be called after any step, and
twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from ztune.databases import memory
from ztune.databases.artifacts import Fetched
from ztune.errors import InputError, ZtuneError
from ztune.onhost.declared import KNOWN as KNOWN
from ztune.onhost.declared import Declared as Declared
from ztune.onhost.host import interrupt, room
from ztune.onhost.host.interrupt import signals_as_interrupt
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.job import Job
from ztune.onhost.jobs.job import ProgressFn as ProgressFn
from ztune.onhost.jobs.job import WorkloadResult as WorkloadResult
from ztune.onhost.jobs.job import no_progress as no_progress
from ztune.onhost.jobs.role_directories import room_for
from ztune.units import format_size, is_power_of_two, parse_size

_LARGEST_FILE = 1 << 20
_LARGEST_NUMBER = (1 << 63) - 1
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_KINDS = {"int": "whole number", "float": "number", "bool": "on/off", "str": "text"}
_SHOWN = 60  # characters of a value that a sentence quotes


def _power_of_two(value: int) -> int:
    if not is_power_of_two(value):
        raise ValueError("it should be a power of two")
    return value


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), "size"]
"""A parameter in bytes, written and shown with a suffix."""
PowerOfTwo = Annotated[Size, AfterValidator(_power_of_two)]
"""One that is a power of two, as sizes of pages are."""
Seed = Annotated[int, Field(ge=0, le=2**30 - 1)]
"""A parameter that decides what is drawn at random."""


def param(default: Any, *, unit: str = "", meaning: str | None = None, **limits: Any) -> Any:
    """Declare a parameter of a workload: its default, unit and limits (``ge``, ``le``, …).

    One that has none of these but a default needs no call. The table in ``docs/workloads.md`` is generated
    from them all, with the string below the parameter (or ``meaning``) as the sentence for a user.
    """
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


def read_text(path: Path, what: str) -> str:
    """Return the text of a user's file.

    Raises:
        InputError: it can't be read, is no text, or larger than 1 MiB; ``what`` is how the sentence calls it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise InputError(f"{what} {path}: it is larger than 1 MiB, the most that ztune reads of one")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{what} {path}: it is not text") from None
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}; name an existing one") from None


def arc_param() -> Any:
    """Declare the parameter ``arc`` of a workload whose ``size`` may be relative to it."""
    return param(
        "64M",
        ge=16 << 20,
        meaning="The ARC that `size` is relative to. `ztune tune` and `ztune run` take the study's.",
    )


def busy_param() -> Any:
    """Declare the parameter ``busy`` of a workload whose job has ``calibrate``, beside ``rate``."""
    return param(
        0,
        ge=0,
        le=95,
        unit="%",
        meaning="How busy the load keeps the processors, all work on them counted. "
        "The `rate` that does so is found first, where the load runs, in about a minute: before a recording, "
        "or before the first block of a run with its base layout; all layouts of the run have that rate. "
        "0: `rate` counts.",
    )


@dataclass(frozen=True, slots=True)
class ParameterDoc:
    """One parameter, described for a person."""

    name: str
    type: str
    default: str
    unit: str
    allowed: str
    meaning: str


def _described(name: str, info: FieldInfo) -> ParameterDoc:
    is_size, relative = "size" in info.metadata, memory.MARK in info.metadata
    choices = [arg for arg in get_args(info.annotation) if isinstance(arg, str)]
    kind = getattr(info.annotation, "__name__", "text")
    shown = (lambda value: format_size(parse_size(value))) if is_size else str
    limits = (
        f"{sign} {shown(getattr(one, key))}"
        for one in info.metadata
        for key, sign in _SIGNS.items()
        if hasattr(one, key)
    )
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    meaning = " ".join((info.description or "").split())
    switch = isinstance(info.default, bool)
    return ParameterDoc(
        name=name,
        type="size" if is_size or relative else "choice" if choices else _KINDS.get(kind, kind),
        default=("on" if info.default else "off") if switch else shown(info.default),
        unit="bytes" if is_size or relative else str(extra.get("unit", "")),
        allowed=", ".join(choices or (["on", "off"] if switch else limits)),
        meaning=f"{meaning} {memory.MEANING}" if relative else meaning,
    )


class Parameters(BaseModel):
    """Base of every workload's parameters: unknown names and values out of range are refused.

    The string below a parameter says what it means.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*")
    @classmethod
    def _is_countable(cls, value: object) -> object:
        if isinstance(value, int | float) and abs(value) > _LARGEST_NUMBER:
            raise ValueError("it is larger than 2^63 - 1, the largest number that a program counts with")
        return value

    @model_validator(mode="after")
    def _has_one_pace(self) -> Self:
        fields = type(self).model_fields
        if getattr(self, "busy", 0) and self.model_dump()["rate"] != fields["rate"].default:
            raise ValueError("busy finds the rate, and a rate is given too; leave one out")
        return self

    @classmethod
    def parse(cls, workload: str, values: Mapping[str, object] | None) -> Self:
        """Return validated parameters.

        Raises:
            InputError: a name is unknown or a value not allowed; the sentence names both.
        """
        try:
            return cls.model_validate(dict(values or {}))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = list(cls.model_fields)
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
                raise InputError(f"workload {workload} has no parameter {name!r}; {hint}") from None
            text = re.sub(r"^(Value error, |Assertion failed, )", "", first["msg"])
            given = repr(first["input"])
            given = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…"
            if not first["loc"]:
                # Of several parameters together.
                raise InputError(f"workload {workload}: {text[:1].lower()}{text[1:]}") from None
            got = f" (got {given})"
            raise InputError(
                f"workload {workload}: parameter {name!r}: {text[:1].lower()}{text[1:]}{got}"
            ) from None

    @classmethod
    def docs(cls) -> list[ParameterDoc]:
        """Describe every parameter, in the order they are declared."""
        return [_described(name, info) for name, info in cls.model_fields.items()]

    def resolved(self) -> dict[str, Any]:
        """Return every parameter with its value, as JSON: what is kept with results so that a run can be
        repeated.
        """
        return self.model_dump(mode="json")


class InputParameters(Parameters):
    """Parameters of a workload whose ``input`` may be the user's own ``file``; naming one is enough."""

    @model_validator(mode="before")
    @classmethod
    def _own_file(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("file"):
            if values.get("input", "file") != "file":
                raise ValueError(f"input is {values['input']!r}, but a file is named too; leave one out")
            return {**values, "input": "file", "file": str(Path(str(values["file"])).absolute())}
        return values

    @model_validator(mode="after")
    def _names_a_file(self) -> Self:
        found = self.model_dump(include={"input", "file"})
        if found["input"] == "file" and not found["file"]:
            raise ValueError("input is file, but no file is named; add -p file=PATH")
        return self


class Workload(Protocol):
    """A job for a database. A third party's database names its workloads in ``database.toml``.

    The class is called with a mapping of parameters (names to values or their text) and must refuse bad ones
    with ``InputError``. No step may write outside the work directory that ``prepare`` was given. A class with
    these methods can be recorded; only a ``JobWorkload`` can be run in trials. What a power cut loses of its
    database is not known, unless a method ``declared()`` says so (``JobWorkload.durability``).
    """

    name: ClassVar[str]
    """As users type it, such as ``postgres-oltp``."""
    summary: ClassVar[str]
    """One line for ``ztune list workloads``."""
    Parameters: ClassVar[type[Parameters]]
    params: Any
    """The validated parameters: an instance of ``Parameters``."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None: ...

    def check(self) -> str:
        """Return the version of the database that would run, such as ``PostgreSQL 15.18``.

        Raises:
            MissingError: a program is missing; the text names the command that brings it.
        """
        ...

    def prepare(self, workdir: WorkDir) -> None:
        """Make directories and an empty database below ``workdir``."""
        ...

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Bring the database to its starting state. Not recorded."""
        ...

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server and warm it. Not recorded."""
        ...

    def pids(self) -> list[int]:
        """Return the processes to record; their threads and descendants, present and future, belong to
        them.
        """
        ...

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Do the job and return what happened. The only step that is recorded.

        Raises:
            ZtuneError: the server died or the client failed.
        """
        ...

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with checks that the job was really done; for after the recording and before
        ``stop``.

        Raises:
            ZtuneError: a check does not hold.
        """
        ...

    def stop(self) -> None:
        """Shut the server down in order, so that its files are consistent. Does nothing when none runs."""
        ...

    def cleanup(self) -> None:
        """End every process of the workload at once and remove the work directory (unless it is to be
        kept).
        """
        ...

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role; where one lies below another, the deeper one counts."""
        ...

    def page_sizes(self) -> dict[str, int]:
        """Return the database's page size per role, in bytes, for roles where it has one."""
        ...

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return name, resolved parameters, result and version: the ``workload`` entry of a trace's
        manifest.
        """
        ...


class JobWorkload(Workload):
    """A workload around one job: everything but the parameters is the job's.

    A subclass sets ``name``, ``summary``, ``Parameters`` and ``job_class``, and ``job_modules`` if the job's
    module imports others that are neither the standard library's nor ``ztune.onhost``'s.
    """

    job_class: ClassVar[type[Job]]
    needs: ClassVar[tuple[str, ...]] = ()
    """What must be installed, as ``ztune.packages`` calls it: what ``ztune setup`` brings."""
    roles_together: ClassVar[Mapping[str, str]] = {}
    """Role → why it can't have another dataset than ``data``."""
    artifacts: ClassVar[tuple[Fetched, ...]] = ()
    """What must be fetched into ztune's cache: ``ztune setup`` does that too."""
    roles_from: ClassVar[str] = ""
    """Where the roles come from, if they are not always the same: for ``ztune list workloads``."""
    roles_declared: ClassVar[bool] = False
    """Whether the roles are its user's word, so that one which the job does not use is a mistake."""
    durability: ClassVar[Declared] = Declared()
    """What a power cut loses of the database; ``KNOWN`` of one whose settings ztune knows. Here nothing is
    declared, so ztune says of every layout that its durability is not known.
    """
    read_in: ClassVar[tuple[str, str]] = ("", "")
    """The parameter that may name a file, and how sentences call that. The file's text becomes the parameter
    with ``_text`` behind its name: the file may not be where the job runs.
    """
    job_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of one's own that must be sent along to run the job elsewhere, beside the one that holds it.
    They may import the standard library, each other, ``ztune.onhost``, ``ztune.errors`` and
    ``ztune.units``.
    """

    def __init__(
        self,
        values: Mapping[str, object] | None = None,
        *,
        database: Mapping[str, str] | None = None,
        patience: float | None = None,
    ) -> None:
        """Take the parameters.

        Args:
            values: parameters by name, as values or their text.
            database: settings of the database itself, from a layout.
            patience: multiplies the job's time limits.

        Raises:
            InputError: a parameter is unknown or has a value that it can't have.
        """
        self.params: Any = self.Parameters.parse(self.name, values)
        self.job: Any = self.job_class(self.resolved(), database, patience=patience)

    def resolved(self) -> dict[str, Any]:
        """Return the job's parameters as JSON values: all of them, a size relative to the ARC in bytes, and
        files read in where one was named.
        """
        found = memory.resolved(self.params.resolved())
        name, what = self.read_in
        if name and found[name] and not found[f"{name}_text"]:
            found[f"{name}_text"] = read_text(Path(found[name]), what)
        return found

    def declared(self) -> Declared:
        """Return what is declared of the database with these parameters."""
        return self.durability

    def to_fetch(self) -> tuple[Fetched, ...]:
        """Return what must be fetched for these parameters: ``artifacts``, where they make no difference."""
        return self.artifacts

    @classmethod
    def job_name(cls) -> str:
        """Return what a trial's spec calls the job: ``module:Class``."""
        return f"{cls.job_class.__module__}:{cls.job_class.__qualname__}"

    def check(self) -> str:
        """Return the version of what would run."""
        return str(self.job.check())

    def prepare(self, workdir: WorkDir, places: Mapping[str, Path] | None = None) -> None:
        """Make directories; see ``Job.prepare``."""
        self.job.prepare(workdir, places)

    def load(self, progress: ProgressFn = no_progress) -> None:
        """Bring the database to its starting state."""
        with room_for(self._roles()):
            self.job.load(progress)

    def start(self, progress: ProgressFn = no_progress) -> None:
        """Start the server and warm it."""
        with room_for(self._roles()):
            self.job.start(progress)

    def find_rate(self, progress: ProgressFn = no_progress) -> None:
        """Find the rate of a load that is to keep the processors busy, where it is one: then it has that
        rate, and counts from here on.
        """
        if self.job.params.get("busy"):
            with room_for(self._roles()):
                self.job.calibrate(progress)
                self.job.recount()

    def pids(self) -> list[int]:
        """Return the processes to record."""
        return list(self.job.pids())

    def run(self, progress: ProgressFn = no_progress) -> WorkloadResult:
        """Do the job."""
        with room_for(self._roles()):
            result: WorkloadResult = self.job.run(progress)
        return result

    def verify(self, result: WorkloadResult) -> WorkloadResult:
        """Return ``result`` with its checks."""
        with room_for(self._roles()):
            checked: WorkloadResult = self.job.verify(result)
        return checked

    def _roles(self) -> dict[str, Path]:
        """Return the directories that are known so far."""
        try:
            return self.role_paths()
        except ZtuneError:
            return {}

    def stop(self) -> None:
        """Shut down in order."""
        self.job.stop()

    def cleanup(self) -> None:
        """End every process and remove the work directory."""
        self.job.cleanup()

    def role_paths(self) -> dict[str, Path]:
        """Return the directory of each role."""
        return dict(self.job.role_paths())

    def unrecorded_paths(self) -> tuple[Path, ...]:
        """Return files in the roles' directories that play no role."""
        return tuple(self.job.unrecorded_paths()) if hasattr(self.job, "unrecorded_paths") else ()

    def page_sizes(self) -> dict[str, int]:
        """Return the page size per role."""
        return dict(self.job.page_sizes())

    def info(self, result: WorkloadResult | None = None) -> dict[str, Any]:
        """Return name, resolved parameters, result and version, as JSON."""
        return {**self.job.info(result), "name": self.name}


W = TypeVar("W", bound=Workload)


@contextmanager
def running(
    workload: W,
    *,
    parent: Path | None = None,
    keep: bool = False,
    progress: ProgressFn = no_progress,
    starting: AbstractContextManager[object] | None = None,
) -> Iterator[W]:
    """Prepare, load and start ``workload`` in a work directory of its own; stop and remove everything at
    the end.

    Args:
        workload: not yet prepared.
        parent: where the work directory is made; default ``WorkDir.default_parent()``.
        keep: leave the work directory behind after an orderly stop (for looking at it).
        progress: called during ``load`` and ``start``.
        starting: entered for the time of ``start``.

    Ctrl-C, SIGTERM and SIGHUP end the body with ``KeyboardInterrupt``; processes and directories are gone
    by then.
    """
    with signals_as_interrupt():
        workload.check()
        place = parent or WorkDir.default_parent()
        needed = sum(room.needed_by(getattr(workload, "job", workload)).values())
        room.require(f"workload {workload.name}", [(place, needed)], "set TMPDIR to a roomier place")
        workdir = WorkDir.create(workload.name, parent=parent, keep=keep)
        try:
            with room.RoomWatch(f"workload {workload.name}", lambda: [place]):
                workload.prepare(workdir)
                workload.load(progress)
                with starting or nullcontext():
                    workload.start(progress)
                    if isinstance(workload, JobWorkload):
                        workload.find_rate(progress)
                yield workload
                workload.stop()
        except Exception:
            # What fails while it is being stopped fails for that.
            interrupt.check()
            raise
        finally:
            workload.cleanup()
            workdir.remove()
