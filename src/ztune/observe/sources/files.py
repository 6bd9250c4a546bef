"""Reads one or several files of other tools into one observation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ztune.errors import InputError
from ztune.observe.model import Observation
from ztune.observe.sources.blkparse import Blkparse
from ztune.observe.sources.bpftrace import Bpftrace
from ztune.observe.sources.collect import Collected
from ztune.observe.sources.dtrace import DTrace
from ztune.observe.sources.fio import FioSource
from ztune.observe.sources.histogram_meaning import histogram_meaning
from ztune.observe.sources.observation import ObservationFile
from ztune.observe.sources.source import Reader, Source
from ztune.observe.sources.strace_counts import StraceCounts
from ztune.observe.sources.strace_log import StraceLog
from ztune.observe.sources.zpool_iostat import ZpoolIostat
from ztune.trace.roles import RoleRules

# A log of strace -C ends with a table, so the log is asked for first.
READERS: Final[tuple[Reader, ...]] = (
    ObservationFile(),
    FioSource(),
    ZpoolIostat(),
    Bpftrace(),
    DTrace(),
    Blkparse(),
    StraceLog(),
    StraceCounts(),
)


def reader_of(source: Source, format: str | None) -> Reader:
    """Return the reader that the user names, or that recognises the file; raises InputError."""
    if format is not None:
        for reader in READERS:
            if reader.name == format:
                return reader
        names = ", ".join(reader.name for reader in READERS)
        raise InputError(f"{format!r} is not a format that observe reads; it should be one of {names}")
    head = source.head()
    if not head.strip():
        raise InputError(f"{source.path} is empty")
    for reader in READERS:
        if reader.recognise(head):
            return reader
    known = "; ".join(f"{reader.name}: {reader.what}" for reader in READERS)
    raise InputError(
        f"{source.path} is of no format that observe reads ({known}); "
        "if it is one of these, name it with --format"
    )


def read_files(
    paths: Sequence[Path],
    *,
    rules: RoleRules | None = None,
    meaning: str | None = None,
    format: str | None = None,
) -> Observation:
    """Return one observation of all files; histograms of the same group are added.

    ``rules`` tell roles by path or by the key of an aggregation (None: those built in). ``meaning`` (one of
    ``MEANINGS``) says what histograms count that do not say it themselves. ``format`` (a name in
    ``READERS``) is used instead of recognising each file.

    Raises InputError: a file that can't be read, is of no known format, or holds nothing that could be
    read. A file that is cut is no error: what was read is kept, and ``limits`` says so. A single observation
    of ztune's own is returned as it is, with its own source.
    """
    if not paths:
        raise InputError("name at least one file to read")
    means = histogram_meaning(meaning) if meaning is not None else None
    into = Collected(rules if rules is not None else RoleRules.parse())
    sources = [Source(Path(path), into, means) for path in paths]
    readers = [reader_of(source, format) for source in sources]
    if len(sources) == 1 and isinstance(readers[0], ObservationFile):
        return readers[0].whole(sources[0])
    for source, reader in zip(sources, readers, strict=True):
        before, said = into.pieces, len(into.limits)
        reader.read(source)
        if into.pieces == before:
            why = into.limits[said] if len(into.limits) > said else "it may be cut"
            raise InputError(f"{source.path}: nothing of {reader.name} could be read in it; {why}")
    subject = ", ".join(
        f"{reader.name} output {source.name}" for source, reader in zip(sources, readers, strict=True)
    )
    into.limit("Read from files: what the tools did not print (disks, settings, properties) is not known.")
    return into.done(subject)
