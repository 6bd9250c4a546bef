"""The manifest of a trace (``trace.json``) as data: what was recorded, by whom, and which files it speaks of.

docs/trace-format.md explains each key. Unknown keys are refused, so that a misspelt key is never silently
ignored; a new key therefore comes with a new ``version``.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ztune import files
from ztune.errors import InputError
from ztune.onhost.words import Role
from ztune.trace.schema import FORMAT, VERSION

MANIFEST = "trace.json"
EVENTS_FILE = "events.parquet"
PARTIAL = ".partial"  # of what is not whole yet
MOST_MANIFEST = 1 << 30  # bytes: of a million files with long names
INT64_MAX = 2**63 - 1
RECORDSIZES = (4096, 8192, 16384, 32768, 65536, 131072, 1 << 20)
"""Bytes of the records in which it is measured how files compress, and for which replay has content."""
Touched = Literal["", "read", "written"]
"""By which calls blocks were touched; "": by none, and before version 7 of the format by either."""
READ: Touched = "read"
WRITTEN: Touched = "written"
SHARES = 16  # parts of blocks whose compressed bytes are told
DEFAULT_RATIO = 2.0  # of a replay's content where nothing was measured; never zeros, never pure noise


def printable_path(path: object) -> object:
    r"""Return ``path`` with bytes that are not UTF-8 written as ``\xNN``; JSON can't hold them otherwise."""
    if isinstance(path, str):
        try:
            path.encode()
        except UnicodeEncodeError:
            return path.encode("utf-8", "surrogateescape" if _only_escapes(path) else "replace").decode(
                "utf-8", "backslashreplace"
            )
    return path


def _printable(value: object) -> object:
    """Return ``value``, of free content, with all texts and keys in it as ``printable_path`` has them."""
    if isinstance(value, dict):
        return {printable_path(key): _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else printable_path(value)


def _only_escapes(text: str) -> bool:
    """Say whether each surrogate in ``text`` came from ``os.fsdecode`` (and so stands for one byte)."""
    return all(not 0xD800 <= ord(c) <= 0xDFFF or 0xDC80 <= ord(c) <= 0xDCFF for c in text)


Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Nanoseconds = Annotated[int, Field(ge=0, le=INT64_MAX)]
Bytes = Annotated[int, Field(ge=0, le=INT64_MAX)]
Text = Annotated[str, BeforeValidator(printable_path)]
Free = Annotated[dict[str, Any], BeforeValidator(_printable)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RecorderInfo(_Part):
    """Which recorder made the trace."""

    name: str  # "ebpf", "strace"; traces made by bench/ and tests say "synthetic"
    detail: str = ""
    waits: bool = False  # events tell whose commits their threads had waited for; from version 8 on


class FileName(_Part):
    """A name that a file had from ``t`` (ns since the trace began) on."""

    t: Nanoseconds
    path: Text


class Counted(_Part):
    """What was done to a file of which a sample was recorded, all of it."""

    reads: Count
    read_bytes: Bytes
    writes: Count
    write_bytes: Bytes
    syncs: Count  # with the writes to files open with O_SYNC or O_DSYNC


class RegionSample(_Part):
    """Of files that are ``sampled`` the events of one region of ``region`` bytes in ``of`` are there."""

    of: Annotated[int, Field(ge=2, le=1 << 16)]
    region: Annotated[int, Field(ge=1, le=INT64_MAX)]


class RecordedWindow(_Part):
    """A time that was recorded. Between two of them nothing was, and ``t`` does not pass."""

    t: Nanoseconds  # when it begins
    duration_ns: Nanoseconds
    started_unix_ns: Nanoseconds


class TraceFile(_Part):
    """One file (an inode) of the trace. ``id`` is its place in the list, and its number in the events."""

    id: Annotated[int, Field(ge=0, le=2**31 - 1)]
    path: Text  # the last name seen
    names: list[FileName] = []
    role: Role | None = None
    dev: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    ino: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    size_start: Bytes = 0  # 0 if created in the trace
    size_end: Annotated[int, Field(ge=-1, le=INT64_MAX)] = -1  # -1: not known
    created: bool = False
    deleted: bool = False
    embedded: bool = False  # so little is in it that OpenZFS keeps it, compressed, in the pointer to it
    sampled: bool = False
    counted: Counted | None = None


class Warning_(_Part):
    """Something that limits what may be concluded from the trace."""

    code: str  # e.g. "shared-mmap"
    message: Text  # one sentence
    count: Count = 1


COLD = "cold"
"""Code of the warning that it is not known what the caches held."""
UNSEEN = ("shared-mmap", "mmap-reads")
"""Codes of warnings that files were used through mapped memory: of that a replay has nothing."""


class WorkloadInfo(_Part):
    """The workload that ztune itself ran while recording."""

    name: str
    parameters: Free = {}
    result: Free = {}
    version: str = ""


class Compressibility(_Part):
    """How well sampled blocks of one role compress: ``ratio`` = sum of block bytes / sum of compressed bytes.

    The compressed sizes are not yet rounded to sectors; a block that grows counts as incompressible (1.0).
    """

    role: Role
    recordsize: Annotated[int, Field(ge=1, le=INT64_MAX)]  # bytes
    algorithm: str  # "lz4", "zstd-3", "gzip-6"
    ratio: Annotated[float, Field(ge=1.0)]
    stdev: Annotated[float, Field(ge=0.0)] = 0.0  # of the blocks' own ratios
    blocks: Count = 0  # blocks that were compressed
    holes: Count = 0  # sampled blocks of zeros alone; not in ratio, not in blocks
    touched: bool = False  # the blocks hold a place that was read or written; else drawn over all files
    how: Touched = ""
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = []
    """Compressed bytes / bytes: the mean of each sixteenth of the blocks' bytes, sorted by it."""


class Sample(_Part):
    """A file of sampled content, ``bytes`` long: a whole number of chunks of ``chunk`` bytes."""

    role: Role
    file: Annotated[str, Field(pattern=r"^samples/[a-z]+(-(touched|(read|written)(-[0-9]+)?))?\.bin$")]
    chunk: Annotated[int, Field(ge=1, le=INT64_MAX)] = 1 << 20
    bytes: Bytes
    sha256: Sha256 | None = None
    touched: bool = False  # content from where calls read and wrote; else from all over the files
    how: Touched = ""
    recordsize: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0  # of what blocks, bytes; 0: of longer pieces


class ParquetFile(_Part):
    """What ``events.parquet`` must be, so that a truncated or mixed-up trace is noticed."""

    rows: Count
    bytes: Bytes
    sha256: Sha256


class Manifest(_Part):
    """``trace.json``. Times are ns, sizes bytes."""

    format: Literal["ztune-trace"] = FORMAT  # type: ignore[assignment]
    version: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9] = VERSION  # type: ignore[assignment]
    ztune: str
    created: str  # ISO 8601, UTC
    started_unix_ns: Nanoseconds = 0
    duration_ns: Nanoseconds
    recorder: RecorderInfo
    command: list[Text] | None = None
    pids: list[int] = []
    events: Count
    dropped: Count = 0
    complete: bool = True
    warnings: list[Warning_] = []
    environment: Free = {}
    workload: WorkloadInfo | None = None
    files: list[TraceFile] = []
    page_size: dict[Role, Annotated[int, Field(ge=1, le=INT64_MAX)]] = {}
    compressibility: list[Compressibility] = []
    samples: list[Sample] = []
    sample: RegionSample | None = None
    windows: list[RecordedWindow] = []  # where there are several
    parquet: dict[str, ParquetFile]

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        for index, file in enumerate(self.files):
            if file.id != index:
                raise ValueError(f"files[{index}] has id {file.id}; a file's id is its place in the list")
        if set(self.parquet) != {EVENTS_FILE}:
            raise ValueError(f'"parquet" must name {EVENTS_FILE} and nothing else')
        if self.parquet[EVENTS_FILE].rows != self.events:
            raise ValueError(
                f'"events" says {self.events}, but {EVENTS_FILE} is said to hold '
                f"{self.parquet[EVENTS_FILE].rows} rows"
            )
        if self.complete and self.dropped:
            raise ValueError(f'"complete" is true although {self.dropped} events were dropped')
        if self.sample is None and any(file.sampled for file in self.files):
            raise ValueError('a file is "sampled", but "sample" does not say how')
        for before, after in itertools.pairwise(self.windows):
            if before.t + before.duration_ns > after.t:
                raise ValueError(f"a window begins at {after.t}, before the one ahead of it has ended")
        for sample in self.samples:
            if sample.bytes % sample.chunk or not sample.bytes:
                raise ValueError(f"{sample.file} has {sample.bytes} bytes, not a whole number of chunks")
        return self

    def compresses(self, *roles: str | None) -> list[Compressibility]:
        """Return how files of ``roles`` compress where they were touched, or all over where that was not
        measured; of what holds more than zeros."""
        found: list[Compressibility] = []
        for role in roles:
            measured = [entry for entry in self.compressibility if entry.role == role and entry.blocks]
            found += [entry for entry in measured if entry.touched] or measured
        return found

    def to_json(self) -> str:
        """Return the text of ``trace.json``."""
        return self.model_dump_json(indent=1) + "\n"


def content_unknown(role: str) -> str:
    """Return the warning of a replay whose content for ``role`` is made up, since nothing was measured."""
    return (
        f"how well the files of role {role} compress was not measured;"
        f" replay writes content that lz4 compresses {DEFAULT_RATIO:g}:1"
    )


def parse(text: str | bytes, where: str | Path) -> Manifest:
    """Return the manifest in ``text``; ``where`` names its origin in errors.

    Raises InputError, with one sentence, for anything that is not a manifest this version understands.
    """
    try:
        raw = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not valid JSON ({_one_line(error)}); a trace's {MANIFEST} should be"
        ) from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InputError(f'{where} is not the manifest of a trace: "format" should be "{FORMAT}"')
    version = raw.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f'{where}: "version" should be a whole number from 1, not {_show(version)}')
    if version > VERSION:
        raise InputError(
            f"{where} has trace version {_show(version)}, made by a newer ztune"
            f" ({_show(raw.get('ztune', '?'))}); this one reads up to version {VERSION}: update ztune"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from None
    except (RecursionError, OverflowError, ValueError) as error:  # absurd nesting or numbers
        raise InputError(f"{where} is not a valid manifest ({_one_line(error)})") from None


def read(path: Path) -> Manifest:
    """Read and check the manifest file at ``path``; raises InputError."""
    try:
        return parse(files.read(path, MOST_MANIFEST), path)
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None


def write_synced(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` and wait until it is on the disk; raises OSError."""
    with path.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _show(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def check_name(path: Path) -> None:
    """Raise InputError if the name of the trace ``path`` is not UTF-8, as all that reads it wants."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"{os.fspath(path)!r}: the name of a trace is UTF-8; choose another") from None


def first_problem(error: ValidationError) -> str:
    """Return the first complaint of ``error`` as a phrase that names the key."""
    problem = error.errors(include_url=False)[0]
    where = ""
    for part in problem["loc"]:
        part_text = _show(part)[1:-1] if isinstance(part, str) else part
        where += f"[{part}]" if isinstance(part, int) else (f".{part_text}" if where else str(part_text))
    if problem["type"] == "extra_forbidden":
        return f'unknown key "{where}"; docs/trace-format.md lists the keys of version {VERSION}'
    if problem["type"] == "missing":
        return f'the key "{where}" is missing'
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if where else message
    if not where:
        return message
    return f'"{where}": {message}, not {_show(problem["input"])}'
