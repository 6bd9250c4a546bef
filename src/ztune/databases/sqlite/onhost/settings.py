"""What the header of an SQLite database says. No more: to open it with SQLite could write files beside it.

Source: https://www.sqlite.org/fileformat2.html, The Database Header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ztune.onhost.host import noatime
from ztune.onhost.look.reading import Instance, ObservedDatabase, Process, open_files, unknown

SETTINGS: Final = ("page_size", "journal_mode", "auto_vacuum", "cache_size")
"""Told by the header."""
OF_CONNECTIONS: Final = ("synchronous", "wal_autocheckpoint", "mmap_size", "locking_mode")
"""Set by each program that opens the database, and written nowhere."""
MOST: Final = 50
_MAGIC = b"SQLite format 3\0"
_ENDINGS = (".db", ".sqlite", ".sqlite3", ".db3")


def _header(path: Path) -> bytes:
    try:
        return noatime.beginning(path, 100)
    except OSError:
        return b""


def find(processes: Sequence[Process], folders: Sequence[Path]) -> Iterator[Instance]:
    """Yield databases that a process has open, or that are in a folder under one of the usual endings."""
    count = 0
    for process in processes:
        for path in open_files(process.pid):
            if count < MOST and path.is_file() and _header(path).startswith(_MAGIC):
                count += 1
                yield Instance(path, process)
    for folder in folders:
        for path in (folder / name for name in noatime.names(folder)):
            if count >= MOST:
                return
            with suppress(OSError):
                ours = path.suffix in _ENDINGS and path.is_file() and not path.is_symlink()
                if ours and _header(path).startswith(_MAGIC):
                    count += 1
                    yield Instance(path)


def read(instance: Instance, user: str | None = None) -> ObservedDatabase:
    """Return what the header of one database says."""
    header = _header(instance.place)
    missing = unknown(
        OF_CONNECTIONS, (), "each program that opens the database sets it, and it is not stored"
    )
    if len(header) < 100 or not header.startswith(_MAGIC):
        missing |= unknown(SETTINGS, (), f"{instance.place} could not be read, or is no SQLite database")
        return ObservedDatabase(kind="sqlite", where=str(instance.place), unknown=missing)

    def number(at: int, bytes_: int = 4, signed: bool = False) -> int:
        return int.from_bytes(header[at : at + bytes_], "big", signed=signed)

    page = number(16, 2)
    settings = {
        "page_size": str(65536 if page == 1 else page),
        "journal_mode": "wal" if header[19] == 2 else "rollback",
        # The number of the largest root page, which is 0 without it; then whether it is incremental.
        "auto_vacuum": "none" if not number(52) else "incremental" if number(64) else "full",
    }
    if number(48, signed=True):
        settings["cache_size"] = str(number(48, signed=True))
    version = number(96)
    return ObservedDatabase(
        kind="sqlite",
        version=f"{version // 1000000}.{version // 1000 % 1000}.{version % 1000}" if version else None,
        where=str(instance.place),
        settings=settings,
        unknown=missing,
    )
