"""Files that the user named: written whole or not at all, and never anything else in their place; read no
further than such a file can be long.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ztune.errors import InputError, unwritten

MOST = 64 << 20
"""Bytes that are read of a file: those that the user writes or ztune made are far smaller."""


def read(path: Path, most: int = MOST, look: Callable[[int], object] | None = None) -> bytes:
    """Return what is in ``path``. Raises InputError for more than ``most`` bytes, as of a link to /dev/zero,
    whose size says nothing; OSError where it can't be read; and what ``look`` raises at the open file, whose
    descriptor it gets.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise InputError(f"{path} has more than {most >> 20} MiB, so it is another kind of file")
        if look is not None:
            look(file.fileno())
    return content


def write(path: Path, content: str | bytes, executable: bool = False) -> None:
    """Write ``content`` to ``path`` as ``writing`` does; what is no Unicode in text as ``\\udcff``."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with writing(path, executable) as file:
        file.write(data)


@contextmanager
def writing(path: Path, executable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that becomes ``path`` at the end of the block; on an error all is as it was.

    A regular file is replaced in one step and keeps owner and permissions; behind a symbolic link, what it
    points to. A device, a pipe or a terminal is written to, never replaced. In a directory that everybody may
    write to, such as /tmp, nothing of another user's is taken. ``executable`` sets the execute bits that the
    umask allows. Raises InputError with the reason.
    """
    try:
        target, there = _look(path)
        if there is None or stat.S_ISREG(there.st_mode):
            yield from _replacing(target, there, executable)
        else:
            # In the kernel's buffer as soon as it is written: an error has to be seen here.
            with io.FileIO(_opened(target, there), "wb") as raw, io.BufferedWriter(raw) as file:
                yield file
    except OSError as error:
        raise unwritten(path, error) from None


def check(path: Path) -> bool:
    """Say whether a regular file is at ``path``, before work whose result is to be written there.

    Raises InputError with the reason if ``writing`` can't succeed.
    """
    try:
        target, there = _look(path)
        if there is not None and not stat.S_ISREG(there.st_mode):
            return False
        folder = target.parent
        if not folder.is_dir():
            raise InputError(f"can't write {path}: its directory does not exist")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"can't write {path}: its directory can't be written to")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None
    return there is not None


def make_folder(path: Path) -> bool:
    """Make the folder ``path`` if it is missing, and say whether it was. Raises OSError; InputError for one
    that is not to be written into: what is another user's in a directory that everybody may write to, could
    have links in it.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        _require_ours(path, path.lstat())
        return False
    return True


def callers() -> tuple[int, ...]:
    """Return the user who had sudo run this, where that is known: what is theirs counts as root's."""
    uid = os.environ.get("SUDO_UID", "")
    return (int(uid),) if os.geteuid() == 0 and uid.isascii() and uid.isdigit() else ()


def umask() -> int:
    """Return this process's umask, which can only be read by setting it."""
    now = os.umask(0o077)
    os.umask(now)
    return now


def _look(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the name to write to, a link's target in place of the link, and what is there, None without it.

    Looked at once: another user may put a link there a moment later, which must not be followed then. Raises
    InputError for what can't be written to.
    """
    try:
        named = path.lstat()
    except FileNotFoundError:
        return path, None
    _require_ours(path, named)
    if not stat.S_ISLNK(named.st_mode):
        return path, _writable(path, named)
    target = Path(os.path.realpath(path))
    try:
        there = _writable(path, path.stat())
    except FileNotFoundError:
        return target, None
    regular = stat.S_ISREG(there.st_mode)
    # /proc/PID/fd/1 leads to files by more than a name, which need not be the file's any more.
    if regular and not (target.exists() and target.samefile(path)):
        raise InputError(f"can't write {path}: what it leads to has no name any more")
    _require_ours(target, there)
    return target if regular else path, there


def _require_ours(path: Path, found: os.stat_result) -> None:
    """Raise InputError for what is another user's in a directory that everybody may write to.

    As Linux has it with fs.protected_symlinks, fs.protected_regular and fs.protected_fifos, which may be off.
    """
    folder = path.parent.stat()
    open_to_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if open_to_all and found.st_uid not in (os.geteuid(), folder.st_uid, *callers()):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something"
        raise InputError(
            f"can't write {path}: it is {what} of another user in a directory that everybody may write to;"
            " name one that is yours, or another directory"
        )


def _writable(path: Path, there: os.stat_result) -> os.stat_result:
    if stat.S_ISDIR(there.st_mode):
        raise InputError(f"can't write {path}: it is a directory; name a file")
    if stat.S_ISBLK(there.st_mode):
        raise InputError(f"can't write {path}: it is a disk; name a file")
    return there


def _opened(path: Path, there: os.stat_result) -> int:
    """Open the device or pipe ``there`` for writing; another one that has taken its place is not touched."""
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.samestat(os.fstat(seen), there):
            raise InputError(f"can't write {path}: something else has taken its place")
        return os.open(f"/proc/self/fd/{seen}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(seen)


def _replacing(target: Path, there: os.stat_result | None, executable: bool) -> Iterator[BinaryIO]:
    allowed = ~umask()
    mode = 0o666 & allowed if there is None else stat.S_IMODE(there.st_mode) & 0o777
    if executable:
        mode |= 0o111 & allowed
    # An unpredictable name of its own: nobody can have put something in its place.
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".ztune-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if there is not None and (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                # Root does not take a user's file away.
                with suppress(OSError):
                    os.fchown(handle, there.st_uid, there.st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
