"""Opens a trace and checks it: quickly when opened, thoroughly before its events are used."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ztune.errors import InputError, reason
from ztune.trace import manifest as manifest_module
from ztune.trace import rights
from ztune.trace.manifest import EVENTS_FILE, MANIFEST, PARTIAL, Manifest, Sample, Touched, check_name

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"


class Trace:
    """A recorded trace. Make one with ``Trace.open``."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._verified = False

    @classmethod
    def open(cls, path: Path | str) -> Trace:
        """Open the trace folder ``path``; checks the manifest and the events' size, rows and columns.

        The checksum and the values are checked when events are first read. Raises InputError, with one
        sentence, if the folder is not a trace, is incomplete, or comes from a newer ztune.
        """
        trace = cls._found(Path(path))
        trace._check_shape()
        return trace

    @classmethod
    def reopen(cls, path: Path | str, sha: str) -> Trace:
        """Open the trace that was opened as ``path`` before, and was replayed: its rows and columns are what
        they were, and are not looked at again. Raises InputError as ``open`` does, and where it has another
        ``sha`` now.
        """
        trace = cls._found(Path(path))
        if trace.sha != sha:
            raise InputError(f"{path} is not the trace that was replayed")
        return trace

    @classmethod
    def _found(cls, path: Path) -> Trace:
        try:
            if path.name == MANIFEST and path.is_file():  # a user may well name the file inside
                path = path.parent
            if not path.exists():
                raise InputError(f"there is no trace {path}")
            check_name(path)
            if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
                # Since Python 3.14 is_file below says no.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not path.is_dir() or not (path / MANIFEST).is_file():
                unfinished = path.is_dir() and (
                    path.name.endswith(PARTIAL) or (path / "events.spool").exists()
                )
                why = "its recording was not finished" if unfinished else f"it holds no {MANIFEST}"
                raise InputError(
                    f"{path} is not a trace: a trace is a folder made by `ztune record`, and {why}"
                )
        except (OSError, ValueError) as error:  # no permission; a NUL or an over-long name
            hint = ""
            if isinstance(error, PermissionError):
                hint = (
                    "; a trace is its recorder's alone, unless it was recorded with --share: "
                    f"{rights.remedy(path)}"
                )
            raise InputError(f"can't open the trace {str(path)!r}: {reason(error)}{hint}") from None
        trace = cls(path, manifest_module.read(path / MANIFEST))
        trace._check_size()
        return trace

    @property
    def name(self) -> str:
        """The folder's name without ``.trace``."""
        return self.path.name.removesuffix(".trace")

    @cached_property
    def sha(self) -> str:
        """SHA-256 of the manifest, which holds the events' own: the identity of the trace."""
        try:
            return hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"can't read {self.path / MANIFEST}: {reason(error)}") from None

    @property
    def duration_s(self) -> float:
        """Length of the recording in seconds."""
        return self.manifest.duration_ns / 1e9

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """Return the events (all columns, or those named), sorted by ``t``, checked. Raises InputError."""
        # Here, as a trace that is gone takes no Arrow and no NumPy, a fifth of a second.
        from ztune.trace import parquet

        self._verify()
        return parquet.read(self.path / EVENTS_FILE, columns, len(self.manifest.files))

    def columns(self, *names: str) -> Columns:
        """Return the named columns (default: all) as numpy arrays of the types in ``EVENTS``, checked."""
        table = self.table(list(names) or None)
        return {name: table.column(name).to_numpy() for name in table.column_names}

    def parts(self, *names: str) -> Iterator[Columns]:
        """Give what ``columns`` does, a group of rows at a time; at least one part, which may be empty."""
        from ztune.trace import parquet  # see ``table``

        self._verify()
        for table in parquet.parts(self.path / EVENTS_FILE, names, len(self.manifest.files)):
            yield {name: table.column(name).to_numpy() for name in table.column_names}

    def sample(
        self, role: str, touched: bool = False, how: Touched = "", recordsize: int = 0
    ) -> tuple[Sample, Path] | None:
        """Return the kept content of a role and where it lies, or None: of all files, or of what was
        ``touched`` and ``how``, of blocks of ``recordsize`` bytes or (0) of longer pieces.

        Raises InputError if it is damaged.
        """
        wanted = (role, touched, how, recordsize)
        for sample in self.manifest.samples:
            if (sample.role, sample.touched, sample.how, sample.recordsize) == wanted:
                path = self.path / sample.file
                if not path.is_file():
                    raise InputError(f"the trace {self.path} lacks its {sample.file}")
                if path.stat().st_size != sample.bytes:
                    raise InputError(
                        f"{path} has {path.stat().st_size} bytes, but should have {sample.bytes}"
                    )
                if sample.sha256 is not None and _sha256(path) != sample.sha256:
                    raise InputError(f"{path} was changed after recording: its checksum does not match")
                return sample, path
        return None

    def _check_size(self) -> None:
        path, said = self.path / EVENTS_FILE, self.manifest.parquet[EVENTS_FILE]
        if not path.is_file():
            raise InputError(f"the trace {self.path} lacks its {EVENTS_FILE}")
        size = path.stat().st_size
        if size != said.bytes:
            cut = "truncated" if size < said.bytes else "not the one recorded"
            raise InputError(f"{path} is {cut}: it has {size} bytes, but {MANIFEST} says {said.bytes}")

    def _check_shape(self) -> None:
        from ztune.trace import parquet  # Arrow, see ``table``

        path, said = self.path / EVENTS_FILE, self.manifest.parquet[EVENTS_FILE]
        rows = parquet.check_shape(path)
        if rows != said.rows:
            raise InputError(f"{path} has {rows} events, but {MANIFEST} says {said.rows}")

    def _verify(self) -> None:
        """Check the checksum, once."""
        if self._verified:
            return
        path = self.path / EVENTS_FILE
        try:
            if _sha256(path) != self.manifest.parquet[EVENTS_FILE].sha256:
                raise InputError(
                    f"{path} was changed after recording: its checksum does not match {MANIFEST}"
                )
        except OSError as error:
            raise InputError(f"can't read {path}: {reason(error)}") from None
        self._verified = True


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def operations_of(trace: Trace) -> int:
    """Return how many operations the recorded job did; 0 where that is not known."""
    workload = trace.manifest.workload
    return int(workload.result.get("operations") or 0) if workload is not None else 0


def commits_of(trace: Trace) -> int:
    """Return how many of the recorded job's operations waited for its log; 0 where that is not known."""
    workload = trace.manifest.workload
    commits = None if workload is None else workload.result.get("commits")
    return operations_of(trace) if commits is None else int(commits)
