"""Files that a worker was sent, kept by their content in its own cache: each reaches it once.

What is not used for longest is removed when there is more than ``ROOM``. A file is what its name says: the
digest of what arrived is compared before it has the name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ztune import paths
from ztune.onhost.host import shared_files
from ztune.onhost.host.room import NoRoomError
from ztune.places import engine_limits
from ztune.units import format_size

ROOM = 16 << 30
"""Bytes of files that are kept, at most; and never more than a quarter of what else is free beside them. What
one replay needs is kept in any case."""
PART = 4 << 20
"""Bytes that are sent at a time."""


@dataclass(frozen=True)
class _Arriving:
    """A file of which parts are there; its ``end`` removes them."""

    path: Path
    end: contextlib.ExitStack


_arriving: dict[str, _Arriving] = {}


def folder() -> Path:
    """Return the directory of the files, this user's alone."""
    return paths.private(paths.cache() / "fleet")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(sha: str) -> Path | None:
    """Return the file with this digest, noted as used; None where it is not here."""
    path = folder() / sha
    try:
        os.utime(path)
    except FileNotFoundError:
        return None
    return path


def missing(shas: list[str]) -> list[str]:
    """Return which of ``shas`` are not here."""
    return [sha for sha in shas if find(sha) is None]


def put(sha: str, offset: int, data: bytes, size: int) -> None:
    """Write a part of the file ``sha``, of ``size`` bytes in all. Raises NoRoomError, OSError."""
    if offset == 0:
        _begin(sha, size)
    path = _parts(sha).path
    with path.open("ab") as file:
        if file.tell() != offset:
            raise OSError(f"{path} has {file.tell()} bytes where part {offset} begins")
        file.write(data)


def finish(sha: str) -> None:
    """Give the file that arrived its name. Raises OSError where it is another."""
    one = _parts(sha)
    with one.end:
        del _arriving[sha]
        if digest(one.path) != sha:
            raise OSError(f"what arrived is not the file {sha}")
        one.path.rename(folder() / sha)
    drop(ROOM)


def drop(most: int = 0) -> None:
    """Remove the files that were not used for longest until ``most`` bytes or fewer are left."""
    shared_files.remove_left(folder())
    found = kept()
    left = sum(found.values())
    if most:
        most = min(most, (shutil.disk_usage(folder()).free + left) // 4)
    for path, size in list(found.items())[: -1 if most else None]:
        if left <= most:
            break
        left -= size
        path.unlink(missing_ok=True)


def kept() -> dict[Path, int]:
    """Return the files and their sizes, bytes; those not used for longest first."""
    found = []
    for path in folder().iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker removes it
            if len(path.name) == 64:
                found.append((path.stat().st_mtime, path, path.stat().st_size))
    return {path: size for _, path, size in sorted(found)}


def _begin(sha: str, size: int) -> None:
    if len(sha) != 64 or not set(sha) <= set("0123456789abcdef"):
        raise OSError(f"{sha!r} is no digest")
    if sha in _arriving:  # who sent it before was cut
        _arriving.pop(sha).end.close()
    shared_files.remove_left(folder())
    if size > engine_limits.disk_bytes(folder()):
        raise NoRoomError(f"{format_size(size)} of a recording do not fit into {paths.home()}")
    end = contextlib.ExitStack()
    _arriving[sha] = _Arriving(end.enter_context(shared_files.partial(folder(), sha)), end)


def _parts(sha: str) -> _Arriving:
    if sha not in _arriving:
        raise OSError(f"{sha!r} has no part 0 here")
    return _arriving[sha]
