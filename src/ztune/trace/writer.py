"""Writes a trace so that it is either whole or not there.

Events come in parts, which are packed on the disk (``spool.py``), and are read again when they are needed.
``finish`` sorts them by start time (a call is known when it *ends*, so recorders deliver out of order), a
span of time after the other, writes Parquet, and renames the folder to its final name.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import itertools
import os
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from ztune import __version__
from ztune.errors import InputError, ZtuneError, unwritten
from ztune.files import umask
from ztune.trace import check, rights
from ztune.trace.columns import EVENTS
from ztune.trace.manifest import (
    EVENTS_FILE,
    MANIFEST,
    Manifest,
    ParquetFile,
    check_name,
    first_problem,
    write_synced,
)
from ztune.trace.parquet import opened
from ztune.trace.partial import locked, partial_of, unlock
from ztune.trace.spool import PART_ROWS, Part, Spool

# One event; the same names and types as EVENTS, without padding (62 bytes).
EVENT_DTYPE = np.dtype([(field.name, field.type.to_pandas_dtype()) for field in EVENTS])
ROW_GROUP = 1 << 17  # rows; several groups are in memory while a trace is read, and one while it is written
_SORTED = 1 << 17  # rows that are sorted at a time, about
_EVERY = 256  # rows, of which one tells when the others are


class TraceWriter:
    """Collects events and writes the trace folder ``path`` (usually ``NAME.trace``).

    The trace is its owner's alone: it names what a database does, and may hold what is in it. With ``share``
    others may read it as far as the umask allows.

    As a context manager it aborts if it was not finished. Raises InputError if ``path`` exists, can't be
    made, or the disk fills up; then nothing is left behind but the files that ``keep`` names. Root is refused
    a folder that somebody else can change (`rights.require_closed`). ``again``: the partial trace is there,
    and is used.
    """

    def __init__(self, path: Path | str, share: bool = False, *, again: bool = False) -> None:
        self.path = Path(path)
        self.keep: tuple[str, ...] = ()
        """Files in the partial trace that stay when it is aborted, and are removed when it is finished."""
        self.scratch: tuple[str, ...] = ()
        """Files in the partial trace that are removed when it is aborted or finished."""
        self._share = share
        self.events = 0
        check_name(self.path)
        with self._writing():
            if self.path.exists() or self.path.is_symlink():
                raise InputError(
                    f"{self.path} exists already; remove it or choose another name for the trace"
                )
            self.partial = partial_of(self.path)
            try:
                own = shlex.quote(f"/root/{self.path.name}")
                rights.require_closed(
                    self.path.parent,
                    f"take one that root alone can write (--out {own}), or record as the user whose it is",
                )
                # Closed from the first moment on, which covers what recorders put there.
                self.partial.mkdir(mode=0o700, exist_ok=again)
                self._lock = None if again else locked(self.partial)
            except FileExistsError:
                try:
                    unlock(locked(self.partial))
                except OSError:  # somebody else's, or no folder
                    raise InputError(
                        f"{self.partial} is in the way; remove it or choose another name for the trace"
                    ) from None
                raise InputError(
                    f"{self.partial} exists: it is of a recording that was cut;"
                    f" `ztune trace recover {shlex.quote(str(self.partial))}` makes a trace of what it has"
                ) from None
            except FileNotFoundError:
                raise InputError(f"the folder {self.path.parent} does not exist") from None
            self._spool_path = self.partial / "events.spool"
            self._spool = Spool(self._spool_path, EVENT_DTYPE)
        self._chunks: list[_Chunk] = []
        self._times: list[npt.NDArray[np.int64]] = []

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @property
    def samples_dir(self) -> Path:
        """The folder for ``samples/ROLE.bin`` (made on first use); it moves with the trace."""
        folder = self.partial / "samples"
        folder.mkdir(exist_ok=True)
        return folder

    def add_rows(self, rows: npt.NDArray[np.void]) -> None:
        """Append events as an array of ``EVENT_DTYPE``, in any order of time."""
        if rows.dtype != EVENT_DTYPE:
            raise ValueError("the rows do not have the type EVENT_DTYPE")
        before = len(self._spool)
        with self._writing():
            self._spool.add(rows)
        begins = range(0, len(rows), PART_ROWS)
        for begin, part in zip(begins, self._spool.parts(before), strict=True):
            self._note(rows[begin : begin + PART_ROWS], part)

    def add_part(self, part: Part) -> None:
        """Append the events, an array of ``EVENT_DTYPE``, that ``part`` reads; it is read again later."""
        rows = part()
        if len(rows):
            self._note(rows, part)

    def _note(self, rows: npt.NDArray[np.void], part: Part) -> None:
        t = rows["t"]
        self._times.append(t[::_EVERY].copy())
        self._chunks.append(_Chunk(int(t.min()), int(t.max()), check.is_sorted(t), part))
        self.events += len(rows)

    def finish(self, **fields: Any) -> Path:
        """Write the Parquet file and the manifest, put the trace in its place, and return its path.

        ``fields`` are those of ``Manifest``; ``ztune``, ``created``, ``events``, ``parquet`` and (from
        ``dropped``) ``complete`` are filled in.
        Raises InputError if events and files do not fit together (a defect of the recorder), ZtuneError if
        the disk is full; the partial trace is removed then.
        """
        with self._writing():
            self._spool.close()
            rows = _in_order(self._chunks, self._times)
            parquet = _write_events(self.partial / EVENTS_FILE, rows, len(fields.get("files", [])))
            self._spool_path.unlink()
            try:
                manifest = Manifest(
                    **{
                        "ztune": __version__,
                        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                        "complete": not fields.get("dropped", 0),
                        **fields,
                        "events": self.events,
                        "parquet": {EVENTS_FILE: parquet},
                    }
                )
            except ValidationError as error:
                raise InputError(f"the recorder's manifest is wrong: {first_problem(error)}") from error
            write_synced(self.partial / MANIFEST, manifest.to_json())
            with contextlib.suppress(OSError):
                (self.partial / "samples").rmdir()  # made but not used
            for name in (*self.keep, *self.scratch):
                (self.partial / name).unlink(missing_ok=True)
            self._close_or_share()
            self.partial.rename(self.path)
            self._release()
        return self.path

    def _release(self) -> None:
        unlock(self._lock)
        self._lock = None

    def _close_or_share(self) -> None:
        mode = 0o777 & ~umask() if self._share else 0o700
        for path in (*self.partial.rglob("*"), self.partial):
            if path.is_symlink():
                continue  # none of ours
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.fchmod(fd, mode if stat.S_ISDIR(os.fstat(fd).st_mode) else mode & 0o666)
            finally:
                os.close(fd)

    def abort(self) -> None:
        """Remove what was written but for ``keep``, unless the trace was finished. May be called twice."""
        with contextlib.suppress(OSError):  # closing flushes, and the disk may be full
            self._spool.close()
        if self.keep:
            shutil.rmtree(self.partial / "samples", ignore_errors=True)
            for name in {self._spool_path.name, EVENTS_FILE, MANIFEST, *self.scratch} - {*self.keep}:
                (self.partial / name).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.partial, ignore_errors=True)
        self._release()

    def unwritten(self, error: OSError) -> ZtuneError:
        """Return the sentence for a trace that can't be written."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ZtuneError(
                f"no space left for the trace {self.path} after {self.events} events;"
                " free some, or record to another disk"
            )
        return unwritten(self.path, error)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn the operating system's errors into the user's; remove the partial trace on any error."""
        try:
            yield
        except OSError as error:
            if hasattr(self, "_spool"):
                self.abort()
            raise self.unwritten(error) from error
        except BaseException:
            if hasattr(self, "_spool"):
                self.abort()
            raise


@dataclass(frozen=True)
class _Chunk:
    """Events that ``read`` reads; ``first`` and ``last`` are the least and the greatest of their times."""

    first: int
    last: int
    is_sorted: bool
    read: Part


def _in_order(
    chunks: Sequence[_Chunk], times: Sequence[npt.NDArray[np.int64]]
) -> Iterator[npt.NDArray[np.void]]:
    """Give the events of ``chunks`` by time, part by part; calls that start together keep their order.

    Recorders deliver a call when it ends, so nearly in order: what belongs to a span of time lies in a few
    ``chunks``, unless calls take long. ``times``: of some events, by which the spans are chosen.
    """
    if not chunks:
        return
    pairs = itertools.pairwise(chunks)
    if all(chunk.is_sorted for chunk in chunks) and all(a.last <= b.first for a, b in pairs):
        for chunk in chunks:
            yield chunk.read()
        return
    some = np.sort(np.concatenate(times))
    cuts = np.unique(some[_SORTED // _EVERY :: _SORTED // _EVERY]).tolist()
    first = min(chunk.first for chunk in chunks)
    last = max(chunk.last for chunk in chunks)
    for low, high in itertools.pairwise([first, *(cut for cut in cuts if cut > first), last + 1]):
        found = []
        for chunk in chunks:
            if chunk.last < low or chunk.first >= high:
                continue
            rows = chunk.read()
            whole = low <= chunk.first and chunk.last < high
            found.append(rows if whole else rows[(rows["t"] >= low) & (rows["t"] < high)])
        rows = np.concatenate(found)
        yield rows[np.argsort(rows["t"], kind="stable")]


def _write_events(path: Path, sorted_rows: Iterable[npt.NDArray[np.void]], files: int) -> ParquetFile:
    """Write events, which come by time, as Parquet."""
    written = 0
    columns = {name: np.empty(ROW_GROUP, EVENT_DTYPE[name]) for name in EVENTS.names}
    filled = 0

    def write() -> None:
        group = {name: values[:filled] for name, values in columns.items()}
        try:
            check.columns(group, files, written)
        except ZtuneError as error:
            raise InputError(f"the recorder delivered a wrong event: {error}") from None
        out.write_batch(pa.RecordBatch.from_arrays([group[n] for n in EVENTS.names], schema=EVENTS))

    with (
        opened(path, "wb") as file,
        pq.ParquetWriter(
            file,
            EVENTS,
            compression="zstd",
            compression_level=3,
            use_dictionary=["pid", "tid", "op", "via", "flags", "file", "file2", "size"],
            column_encoding={"t": "DELTA_BINARY_PACKED"},
        ) as out,
    ):
        for rows in sorted_rows:
            begin = 0
            while begin < len(rows):
                part = rows[begin : begin + ROW_GROUP - filled]
                for name, values in columns.items():
                    values[filled : filled + len(part)] = part[name]
                begin, filled = begin + len(part), filled + len(part)
                if filled == ROW_GROUP:
                    write()
                    written, filled = written + filled, 0
        if filled:
            write()
            written += filled
    with path.open("rb") as whole:
        digest = hashlib.file_digest(whole, "sha256").hexdigest()
        os.fsync(whole.fileno())
    return ParquetFile(rows=written, bytes=path.stat().st_size, sha256=digest)
