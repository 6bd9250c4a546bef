"""The connection to the results database: every failure is one sentence, and so is waiting for a lock.

SQLite says with a number what went wrong (sqlite.org/rescode.html). Only two of them mean a damaged file; a
full or read-only disk, or another process, are no reason to set results aside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ztune import output, temporary
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import shared_files
from ztune.temporary import Temporary

WAIT_S = 60.0
"""How long another process may keep the database locked: a write of ours takes milliseconds."""
SAY_S = 2.0
"""After so long it is said that somebody is waited for."""
_EACH_S = 0.1  # short waits in SQLite, so that a request to stop is heard
_FULL = 1 << 20  # bytes left on a disk that is as good as full: SQLite's index of its log takes 32 KiB alone


class Rows:
    """What a statement returned, all of it."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> Sequence[Any]:
        """Return every row."""
        return self._rows

    def fetchone(self) -> Any:
        """Return the first row, None if there is none."""
        return self._rows[0] if self._rows else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class Connection:
    """A connection to ``path``, or to a copy in memory where that can only be read."""

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        """Open it; nothing is read. Raises ZtuneError."""
        self.path = path
        self.why_read_only = ""
        """Why nothing can be written, as a sentence; empty if it can."""
        self._db = self._connected(str(path))
        self._claims: dict[str, contextlib.ExitStack] = {}

    def _connected(self, name: str) -> sqlite3.Connection:
        try:
            made = sqlite3.connect(name, timeout=_EACH_S, isolation_level=None)
        except sqlite3.Error as error:
            raise self._failure(error) from None
        made.row_factory = sqlite3.Row
        return made

    def close(self) -> None:
        """Close it; the locks on runs are free then."""
        for run_id in [*self._claims]:
            self.release(run_id)
        self._db.close()

    def execute(self, sql: str, values: Sequence[object] = ()) -> Rows:
        """Run one statement and return its rows.

        A database that another process has locked is waited for, and after two seconds that is said.

        Raises:
            InputError: the database is damaged, or can't be opened.
            ZtuneError: it is locked for too long, or its disk is full, read-only or failing.
        """
        began = time.monotonic()
        said = False
        while True:
            try:
                cursor = self._db.execute(sql, values)
                return Rows(cursor.fetchall())
            except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
                raise  # a fault of ours
            except UnicodeDecodeError:
                raise InputError(
                    f"the results database {self.path} can't be used: a text in it is not UTF-8; "
                    "move it away or set ZTUNE_HOME"
                ) from None
            except sqlite3.DatabaseError as error:
                waited = time.monotonic() - began
                if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or waited > WAIT_S:
                    raise self._failure(error) from None
                if waited > SAY_S and not said:
                    said = True
                    output.echo(f"waiting for another process that has {self.path} locked", err=True)
                time.sleep(_EACH_S)

    def begin(self) -> None:
        """Begin a transaction that writes."""
        # IMMEDIATE: take the write lock before reading, so that two processes never deadlock on an upgrade.
        self.execute("BEGIN IMMEDIATE")

    def version(self) -> int:
        """Return the version of the schema; 0 where there is none yet."""
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def set_version(self, version: int) -> None:
        """Note the version of the schema."""
        self.execute(f"PRAGMA user_version = {version:d}")

    def claim(self, run_id: str) -> bool:
        """Take the lock on a run, which this connection holds until ``release`` or its end; False: another
        one has it. Raises ZtuneError.
        """
        if run_id in self._claims:
            return True
        lock, held = self._lock(run_id), contextlib.ExitStack()
        try:
            held.enter_context(shared_files.locked(lock, wait=False))
        except BlockingIOError:
            return False
        except OSError as error:
            raise ZtuneError(f"{lock}: can't be locked: {error.strerror}") from None
        self._claims[run_id] = held
        return True

    def release(self, run_id: str) -> None:
        """Give the lock on a run back."""
        if (held := self._claims.pop(run_id, None)) is not None:
            with held, contextlib.suppress(OSError):
                self._lock(run_id).unlink()

    def claimed(self, run_id: str) -> bool:
        """Whether somebody, in any container or on any host, has the lock on a run, or may have it."""
        try:
            # Looked at, not made: the store may be one that can only be read.
            with self._lock(run_id).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return False

    def _lock(self, run_id: str) -> Path:
        # Beside the file itself, as SQLite's log is, whatever links lead there.
        return Path(f"{os.path.realpath(self.path)}-run-{run_id}")

    def read_from_memory(self, why: str) -> None:
        """Go on with a copy of the database in memory, which has what is in its log too.

        For a disk where SQLite can't make the files that reading takes. Raises ZtuneError.
        """
        self._db.close()
        if not self.path.is_file():
            raise ZtuneError(why)
        memory = temporary.MEMORY
        parent = memory if os.access(memory, os.W_OK) else temporary.disk()
        try:
            with Temporary.make(temporary.RESULTS, parent) as folder:
                copy = folder.path / self.path.name
                # The log last: what goes into the database meanwhile is in both then.
                for ending in ("", "-wal"):
                    source = self.path.with_name(self.path.name + ending)
                    if not ending or source.is_file():
                        shutil.copyfile(source, copy.with_name(copy.name + ending))
                there = self._connected(str(copy))
                try:
                    self._db = self._connected(":memory:")
                    there.backup(self._db)
                finally:
                    there.close()
        except OSError as error:
            raise ZtuneError(f"{why} ({error.strerror})") from None
        except sqlite3.Error as error:
            raise self._failure(error) from None
        self.why_read_only = why

    def _failure(self, error: sqlite3.Error) -> ZtuneError:
        """Return the sentence for what SQLite said."""
        code, path = _code(error), self.path
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return InputError(
                f"the results database {path} can't be used: {error}; move it away or set ZTUNE_HOME"
            )
        try:
            usage = shutil.disk_usage(path.parent)
        except OSError as unreadable:
            return ZtuneError(f"the results database {path} can't be reached: {unreadable.strerror}")
        full = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and usage.free < _FULL
        if code == sqlite3.SQLITE_FULL or full:
            return ReadOnlyError(
                f"there is no room for results: the disk of {path} is full ({usage.free >> 10} KiB free); "
                "what is stored is kept; make room there, then go on"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return ZtuneError(
                f"the results database {path} is locked by another process for more than {WAIT_S:.0f} s; "
                "wait until that is done, or stop it"
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return ReadOnlyError(_read_only(path))
        if code == sqlite3.SQLITE_CANTOPEN:
            return ReadOnlyError(_read_only(path) if path.exists() else _not_made(path))
        if code == sqlite3.SQLITE_IOERR:
            return ReadOnlyError(
                f"the disk of the results database {path} fails: {error} ({error.sqlite_errorname}); what is "
                "stored is kept; look at the disk"
            )
        return InputError(f"the results database {path} can't be used: {error}; set ZTUNE_HOME for another")


class ReadOnlyError(ZtuneError):
    """Nothing can be written to the database; what is in it may still be read."""


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _read_only(path: Path) -> str:
    return (
        f"the results database {path} can't be written: it or its disk is read-only; "
        "what is stored can still be read; to store more, set ZTUNE_HOME to a place that can be written"
    )


def _not_made(path: Path) -> str:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        why = os.strerror(errno.EIO)
    except OSError as error:
        why = error.strerror or str(error)
    return f"the results database {path} can't be made: {why}; set ZTUNE_HOME to a place that can be written"
