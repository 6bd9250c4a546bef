"""Where a mount's disks are kept, and the one door through which they are deleted: ``MountStore.remove``.

A store is a directory made by ``MountStore.create`` and by nothing else. It holds a marker with a token that
its maker keeps besides, the program's folder ``disks``, and the program's log. ``remove`` deletes only what
carries that token, is the very inode that was made, belongs to us, is no link and no mount point, is used by
no program, and holds nothing but what a store holds. Otherwise it refuses and says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.errors import InputError
from ztune.trial import mounted, mounts
from ztune.trial.door import Refused
from ztune.trial.jobs.interrupt import uninterrupted

MARKER = ".ztune-mount-store"
DISKS = "disks"
_FORMAT = "ztune-mount-store"
_LOG = mounted.log_of(Path(DISKS)).name
# What the program makes; anything else is somebody's.
_FILES = re.compile(
    r"disk-[A-Za-z0-9_.:\- ]+\.img|pool-[A-Za-z0-9_.:\- ]+\.config|spec\.json(\.partial)?|lock"
)
_SOCKETS = (mounted.CONTROL,)


@dataclass(frozen=True)
class MountStore:
    """A store that ``create`` made. ``token`` proves it."""

    path: Path
    """Absolute, without symbolic links."""
    token: str

    @property
    def disks(self) -> Path:
        """The program's own folder, its ``--store``."""
        return self.path / DISKS

    @property
    def log(self) -> Path:
        """What the program said, since it was last started."""
        return self.path / _LOG

    @classmethod
    def create(cls, path: Path, token: str | None = None) -> MountStore:
        """Make a store at ``path``, which is missing or an empty directory of ours. Raises InputError.

        ``token``: for who has to note it before; else a new one.
        """
        path = Path(os.path.realpath(path))
        made = not path.exists()
        token = token or secrets.token_hex(16)
        begun = False
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise InputError(f"{path}: is not empty; a store takes a directory of its own")
            found = path.lstat()
            if found.st_uid != os.geteuid():
                raise InputError(f"{path}: belongs to user {found.st_uid}; a store is a directory of ours")
            begun = True
            marker = {"format": _FORMAT, "token": token, "inode": found.st_ino, "made": made}
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(path / MARKER, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(marker, file)
            (path / DISKS).mkdir(mode=0o700)
        except OSError as error:
            if begun:
                # Nothing half made stays in the way of the next.
                with contextlib.suppress(Refused, OSError):
                    cls(path, token).remove_unfinished()
            raise InputError(f"{path}: can't be made a store: {error.strerror}") from None
        return cls(path, token)

    def check(self) -> None:
        """Raise Refused unless this is, beyond doubt, the store that ``create`` made; looks only."""
        here, _ = self._open()
        os.close(here)

    def allocated(self) -> int:
        """Return how many bytes the store takes; its files are sparse."""
        total = 0
        for folder in (self.path, self.disks):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                total += sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
        return total

    def remove(self) -> None:
        """Delete the store and all that is in it; does nothing when it is gone.

        Raises:
            Refused: it may hold something that isn't ours, or is in use. Nothing was deleted.
        """
        try:
            here, marker = self._open()
        except FileNotFoundError:
            return
        try:
            with uninterrupted(), self._unused(here):
                disks = self._names(here)
                # By descriptor from here on: a path that is swapped under us leads nowhere else. The marker
                # goes last, so that a removal that is cut can be taken up again.
                if disks is not None:
                    folder = os.open(DISKS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                    try:
                        for name in disks:
                            os.unlink(name, dir_fd=folder)
                    finally:
                        os.close(folder)
                    os.rmdir(DISKS, dir_fd=here)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_LOG, dir_fd=here)
                os.unlink(MARKER, dir_fd=here)
                if marker.get("made"):
                    self.path.rmdir()
        except OSError as error:
            raise Refused(f"{self.path}: not removed entirely: {error.strerror}: {error.filename}") from None
        finally:
            os.close(here)

    def remove_unfinished(self) -> None:
        """Delete what a ``create`` that was cut left: the store, or a directory of ours with nothing in it.

        Raises:
            Refused: it may hold something that isn't ours. Nothing was deleted.
        """
        marker = self.path / MARKER
        with contextlib.suppress(OSError):
            # The marker is written in one piece: it is empty, or whole.
            if [entry.name for entry in os.scandir(self.path)] == [MARKER]:
                found = marker.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_size == 0:
                    marker.unlink()
            if not self.path.is_symlink() and self.path.lstat().st_uid == os.geteuid():
                self.path.rmdir()
                return
        self.remove()

    def locked(self) -> bool:
        """Whether a program has the store's lock: a killed one keeps it until the kernel is done with it."""
        try:
            lock = os.open(
                self.disks / mounted.LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _open(self) -> tuple[int, dict[str, Any]]:
        """Return a descriptor, and what the marker says. Raises FileNotFoundError, Refused."""
        path = self.path
        if not path.is_absolute():
            raise Refused(f"{path}: left alone: it is no absolute path")
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise Refused(f"{path}: left alone: it is a symbolic link")
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{path}: left alone: it is not a directory")
        if found.st_uid != os.geteuid():
            raise Refused(f"{path}: left alone: it belongs to user {found.st_uid}, not to us")
        if Path(os.path.realpath(path)) != path:
            raise Refused(f"{path}: left alone: a symbolic link lies on the way to it")
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            now = os.fstat(here)
            if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
                raise Refused(f"{path}: left alone: it was replaced while we looked")
            marker = self._marker(here)
            # The token alone would let a copy through, as by `cp -a`.
            if marker.get("inode") != found.st_ino:
                raise Refused(f"{path}: left alone: it is another directory than the one that we made")
            return here, marker
        except BaseException:
            os.close(here)
            raise

    def _marker(self, here: int) -> dict[str, Any]:
        path = self.path
        try:
            handle = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
        except OSError:
            raise Refused(f"{path}: left alone: it has no marker {MARKER}, so it is not ours") from None
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            data = file.read(4096) if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else b""
        try:
            marker = json.loads(data)
        except ValueError:
            marker = None
        if not isinstance(marker, dict) or marker.get("format") != _FORMAT:
            raise Refused(f"{path}: left alone: its marker {MARKER} is not one of ours")
        if not self.token or marker.get("token") != self.token:
            raise Refused(f"{path}: left alone: its marker {MARKER} is that of another store")
        return marker

    @contextlib.contextmanager
    def _unused(self, here: int) -> Iterator[None]:
        """Within the body no program has the store, and none can take it."""
        path = self.path
        inside = mounts.below(path, mounts.table())
        if inside:
            raise Refused(f"{path}: left alone: {inside[0].point} is a mount point; unmount it first")
        pid = mounted.serving(self.disks)
        if pid is not None:
            raise Refused(f"{path}: left alone: process {pid} has it mounted; unmount it first")
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(f"{DISKS}/{mounted.LOCK}", flags, dir_fd=here)
        except FileNotFoundError:
            yield
            return
        except OSError as error:
            raise Refused(f"{path}: left alone: its lock can't be opened: {error.strerror}") from None
        try:
            # Both kinds: which one the program takes is its own affair.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise Refused(f"{path}: left alone: a program has its lock") from None
        try:
            yield
        finally:
            os.close(lock)

    def _names(self, here: int) -> list[str] | None:
        """Return the program's files, None without its folder. Raises Refused if anything else is there."""
        device = os.fstat(here).st_dev
        disks = None
        for name in [entry.name for entry in os.scandir(here)]:
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if name == DISKS and stat.S_ISDIR(found.st_mode) and found.st_dev == device:
                folder = os.open(DISKS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                try:
                    disks = [entry.name for entry in os.scandir(folder)]
                    for inner in disks:
                        self._known(f"{DISKS}/{inner}", os.stat(inner, dir_fd=folder, follow_symlinks=False))
                finally:
                    os.close(folder)
            elif name not in (MARKER, _LOG) or not stat.S_ISREG(found.st_mode):
                raise Refused(f"{self.path}: left alone: {name} in it is none of a store's")
        return disks

    def _known(self, name: str, found: os.stat_result) -> None:
        inner = name.partition("/")[2]
        regular = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and _FILES.fullmatch(inner)
        if not regular and not (stat.S_ISSOCK(found.st_mode) and inner in _SOCKETS):
            raise Refused(f"{self.path}: left alone: {name} in it is none of a store's")
