"""What the replay engine reads beside its spec: the files of an export, and where their content is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.trace.manifest import RECORDSIZES

EXPORT_VERSION = 15  # part of the key under which callers cache an export
CONTENT = "neighbour-"
"""What stands before a role in the names of a neighbour's content."""
READ_BEFORE = " read"  # after a role: the content, at the start, of what is touched
UNTOUCHED = " untouched"  # after a role: the content of what is not touched
EMBEDDED = "embedded"  # the content of files that are all but empty, whatever their role


def content_name(name: str, recordsize: int) -> str:
    """Return under which name ``Inputs.content`` has what a spec calls ``name``, a role's content, in records
    of ``recordsize`` bytes: that of the next smaller ones that are measured, or of the least."""
    return f"{name} {max((one for one in RECORDSIZES if one <= recordsize), default=min(RECORDSIZES))}"


@dataclass(frozen=True)
class OpsFile:
    """One file of the export. ``size`` is its length in bytes when the trace began, ``size_end`` when it
    ended. ``neighbour``: whether it is one of a second recording, which is replayed beside the first.
    ``sampled``: whether it has a part of a file's regions only, one in ``of``; the file was ``whole`` bytes
    long at most, and ``whole_start`` when the trace began. ``recorded``: one region in so many was, by the
    inode number ``ino``; 0: all. ``certain``: offset and bytes of what every sample has, and what stands for
    itself. ``embedded``: all but empty.
    """

    id: int
    size: int
    role: str
    path: str
    trace_id: int  # the file's id in the trace's manifest
    size_end: int = 0
    neighbour: bool = False
    sampled: bool = False
    whole: int = 0
    recorded: int = 0
    ino: int = 0
    certain: tuple[tuple[int, int], ...] = ()
    whole_start: int = 0
    of: int = 1
    embedded: bool = False

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> OpsFile:
        """Return the file whose fields were kept as JSON."""
        return cls(**{**raw, "certain": tuple((at, size) for at, size in raw["certain"])})


@dataclass(frozen=True)
class OpsInfo:
    """What was exported."""

    path: Path
    nops: int
    threads: int
    files: list[OpsFile]
    left_out: int  # events of files without a role, and reads and writes of no bytes
    refused: int = 0  # reads and writes with O_DIRECT that OpenZFS 2.3 refuses
    cached: int | None = None  # bytes that first reads show to have been in caches; None: that is known


@dataclass(frozen=True)
class Inputs:
    """What the engine reads beside the spec.

    ``content``: its ``content_name``, or ``EMBEDDED`` → the file. ``beside``: how many commits a
    neighbour's job did, where its files are among these; None without one. ``calls``: of a sample, how many
    reads and writes each thread has in the whole.
    """

    ops: Path
    files: tuple[OpsFile, ...]
    content: dict[str, Path]
    warnings: tuple[str, ...]
    beside: int | None = None
    calls: tuple[tuple[int, int], ...] = ()
