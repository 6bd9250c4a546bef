"""What a workload is: typed, documented parameters, a life cycle of named steps, and a checked result.

Life cycle, in this order::

    workload = registry.get("postgres-oltp")({"scale": 25})
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from ztune.errors import InputError, ZtuneError
from ztune.units import format_size, parse_size
from ztune.workloads.interrupt import signals_as_interrupt
from ztune.workloads.workdir import WorkDir

ProgressFn = Callable[[str, float], None]
"""Called with the name of the step and how much of it is done (0…1)."""


def no_progress(_step: str, _done: float) -> None:
    """Report progress to nobody."""


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str), "size"]
"""A parameter in bytes, written and shown with a suffix."""


def param(default: Any, *, unit: str = "", meaning: str, **limits: Any) -> Any:
    """Declare a parameter of a workload: its default, unit, meaning and limits (``ge``, ``le``, …).

    The table in ``docs/workloads.md`` is generated from these, so ``meaning`` is a sentence for a user.
    """
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **limits)


@dataclass(frozen=True, slots=True)
class ParameterDoc:
    """One parameter, described for a person."""

    name: str
    type: str
    default: str
    unit: str
    allowed: str
    meaning: str


class Parameters(BaseModel):
    """Base of every workload's parameters: unknown names and values out of range are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
            name = ".".join(str(part) for part in first["loc"]) or "parameters"
            if first["type"] == "extra_forbidden":
                known = list(cls.model_fields)
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
                raise InputError(f"workload {workload} has no parameter {name!r}; {hint}") from None
            text = re.sub(r"^(Value error, |Assertion failed, )", "", first["msg"])
            got = f" (got {first['input']!r})" if first.get("loc") else ""
            raise InputError(
                f"workload {workload}: parameter {name!r}: {text[:1].lower()}{text[1:]}{got}"
            ) from None

    @classmethod
    def docs(cls) -> list[ParameterDoc]:
        """Describe every parameter, in the order they are declared."""
        found = []
        for name, info in cls.model_fields.items():
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            limits = {
                key: getattr(meta, key)
                for meta in info.metadata
                for key in ("ge", "gt", "le", "lt")
                if hasattr(meta, key)
            }
            is_size = "size" in [meta for meta in info.metadata if isinstance(meta, str)]
            show = (lambda value: format_size(parse_size(value))) if is_size else str
            signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
            allowed = ", ".join(f"{signs[key]} {show(value)}" for key, value in limits.items())
            choices = [arg for arg in get_args(info.annotation) if isinstance(arg, str)]
            if choices:
                allowed = ", ".join(choices)
            kind = (
                "size" if is_size else "choice" if choices else getattr(info.annotation, "__name__", "text")
            )
            default = info.default
            text = ("on" if default else "off") if isinstance(default, bool) else show(default)
            found.append(
                ParameterDoc(
                    name=name,
                    type={"int": "whole number", "float": "number", "bool": "on/off", "str": "text"}.get(
                        kind, kind
                    ),
                    default=text,
                    unit=str(extra.get("unit", "")),
                    allowed="on, off" if isinstance(default, bool) else allowed,
                    meaning=info.description or "",
                )
            )
        return found

    def resolved(self) -> dict[str, Any]:
        """Return every parameter with its value, as JSON: what is kept with results so that a run can be
        repeated.
        """
        return self.model_dump(mode="json")


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
    """What a run of a workload did, as the workload's own client saw it on this machine.

    These are facts about the recorded run. They are not a measurement of any ZFS layout.
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

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        data = asdict(self)
        data["checks"] = [{**asdict(check), "ok": check.ok} for check in self.checks]
        data["per_second"] = self.per_second
        return data


class Workload(Protocol):
    """A job for a database. Third parties register theirs under the entry-point group ``ztune.workloads``.

    The class is called with a mapping of parameters (names to values or their text) and must refuse bad ones
    with ``InputError``. No step may write outside the work directory that ``prepare`` was given.
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


W = TypeVar("W", bound=Workload)


@contextmanager
def running(
    workload: W, *, parent: Path | None = None, keep: bool = False, progress: ProgressFn = no_progress
) -> Iterator[W]:
    """Prepare, load and start ``workload`` in a work directory of its own; stop and remove everything at
    the end.

    Args:
        workload: not yet prepared.
        parent: where the work directory is made; default ``WorkDir.default_parent()``.
        keep: leave the work directory behind after an orderly stop (for looking at it).
        progress: called during ``load`` and ``start``.

    Ctrl-C, SIGTERM and SIGHUP end the body with ``KeyboardInterrupt``; processes and directories are gone
    by then.
    """
    with signals_as_interrupt():
        workload.check()
        workdir = WorkDir.create(workload.name, parent=parent, keep=keep)
        try:
            workload.prepare(workdir)
            workload.load(progress)
            workload.start(progress)
            yield workload
            workload.stop()
        finally:
            workload.cleanup()
            workdir.remove()
