"""Directories of ours among everybody's, such as in /tmp, and what of them a ztune that was killed left.

Anybody may make something of that name there. So nothing is taken for ours but a directory that belongs to
us and that nobody else can write, in which the lock is a plain file of ours. Its maker holds the lock for as
long as it lives: the number of a process says nothing, as one of another container has none here. What a
process still works with, such as the trial of a ztune that was killed, stays until that has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ztune import paths
from ztune.errors import InputError
from ztune.onhost.host import own_directory, shared_files, workdir
from ztune.onhost.host.own_directory import Inode
from ztune.onhost.host.process import all_pids

TMP, MEMORY = Path("/tmp"), Path("/dev/shm")
CONNECTION, PROGRAM, GUEST = "ztune-ssh-", "ztune-trial-", "ztune-lab-"
"""How the names begin of what a connection by ssh has, of a trial program in memory, of a guest's sockets."""
DISKS, WARMING, RESULTS = "ztune-disks-", "ztune-warming-", "ztune-results-"
"""… of disks that are measured, of what a database's start reads, and of a copy of the results database."""
KINDS = (CONNECTION, PROGRAM, GUEST, DISKS, WARMING, RESULTS)
LOCK = ".lock"
_IN_HOME = ((paths.SCRATCH, paths.GUEST), (paths.SCRATCH, paths.ENGINE), (paths.LAB, paths.BUILD))
_MARK = b"ztune\n"
_NAME = re.compile(rf"({'|'.join(KINDS)})[a-z0-9_]{{8}}")  # as tempfile names them


@dataclass(slots=True)
class Temporary:
    """A directory of this process alone, until it is removed or a ``with`` block ends. Use ``make``."""

    path: Path
    _lock: int

    @classmethod
    def make(cls, prefix: str, parent: Path) -> Temporary:
        """Make one in ``parent``, and remove what was left there of the same kind. Raises OSError."""
        for path in left(parent, prefix):
            _remove(path)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            path.rmdir()
            raise
        made = cls(path, lock)
        try:
            # Marked when it is locked: one that is not is nobody's yet. Where locks can't be had it never is.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.write(lock, _MARK)
        except BaseException:
            made.remove()
            raise
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be done."""
        with contextlib.suppress(OSError, InputError):
            own_directory.remove(self.path, LOCK)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def runtime() -> Path:
    """Return where a socket of ours goes: with `sudo -E` the variable names the caller's directory."""
    return _or_tmp(Path(os.environ.get("XDG_RUNTIME_DIR", "")))


def disk() -> Path:
    """Return where a directory of ours goes that may become large."""
    return _or_tmp(Path(tempfile.gettempdir()))


def _or_tmp(path: Path) -> Path:
    """Return ``path`` without links, or /tmp where somebody else could swap what is made in it."""
    try:
        found = own_directory.real(path)
        own_directory.check(found)
    except (OSError, own_directory.NotOursError):
        return TMP
    return found


def left(parent: Path, prefix: str = "") -> list[Path]:
    """Return what was left in ``parent`` whose name begins with ``prefix``."""
    try:
        names = sorted(entry.name for entry in os.scandir(parent))
    except OSError:
        return []
    found = []
    for name in names:
        if name.startswith(prefix) and _NAME.fullmatch(name):
            with contextlib.suppress(OSError, InputError), _dead(parent / name):
                found.append(parent / name)
    return found


def left_here() -> list[Path]:
    """Return all that was left on this host, the folders of the lab, of engines and of databases among it."""
    found = [path for parent in _parents() for path in left(parent)]
    # Nothing is made to look: there may be no room for it.
    home = paths.home()
    found += [path for where, prefix in _IN_HOME for path in shared_files.left(home / where, prefix, "")]
    return [*found, *workdir.leftovers(workdir.WorkDir.default_parent())]


def remove_left_here() -> None:
    """Remove it, as far as nobody has begun to use it meanwhile."""
    for parent in _parents():
        for path in left(parent):
            _remove(path)
    for where, prefix in _IN_HOME:
        shared_files.remove_left(paths.home() / where, prefix, "")
    workdir.sweep(workdir.WorkDir.default_parent())


def _parents() -> list[Path]:
    return list(dict.fromkeys((runtime(), TMP, disk(), MEMORY)))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError, InputError), _dead(path) as inode:
        own_directory.remove(path, LOCK, inode=inode)


@contextlib.contextmanager
def _dead(path: Path) -> Iterator[Inode]:
    """Within the body nobody else takes ``path`` for left. Raises InputError, OSError where it is not."""
    with own_directory.parent_of(path) as parent:
        if parent is None:
            raise FileNotFoundError
        with parent.below(path.name) as here, os.fdopen(here.open_file(LOCK, os.O_RDWR), "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.read(len(_MARK) + 1) != _MARK or _is_used(path):
                raise BlockingIOError
            found = os.fstat(here.fd)
            yield found.st_dev, found.st_ino


def _is_used(path: Path) -> bool:
    """Whether a process was started with a file in ``path``, or that can't be seen."""
    inside = os.fsencode(path) + b"/"
    if not Path("/proc/1").exists():
        return True  # other users' processes are hidden
    for pid in all_pids():
        try:
            if inside in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return True
    return False
