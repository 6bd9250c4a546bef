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

from ztune.errors import InputError, Refused
from ztune.onhost.host import mounted, mounts, own_directory, sparse
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.own_directory import NotOursError, OwnDirectory

MARKER = ".ztune-mount-store"
DISKS = "disks"
_FORMAT = "ztune-mount-store"
_LOG = mounted.log_of(Path(DISKS)).name
# What the program makes; anything else is somebody's.
_FILES = re.compile(
    r"disk-[A-Za-z0-9_.:\- ]+\.img|pool-[A-Za-z0-9_.:\- ]+\.config|spec\.json(\.partial)?|lock"
)
_SOCKETS = (mounted.CONTROL,)
_POOLS = re.compile(r"disk-.*\.img|pool-.*\.config")


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
        token = token or secrets.token_hex(16)
        begun = False
        try:
            path = own_directory.real(path)
            made = not path.exists()
            with OwnDirectory.open(path, make=own_directory.PRIVATE) as here:
                if here.names():
                    raise InputError(f"{path}: is not empty; a store takes a directory of its own")
                begun = True
                inode = os.fstat(here.fd).st_ino
                marker = {"format": _FORMAT, "token": token, "inode": inode, "made": made}
                fd = here.open_file(MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    json.dump(marker, file)
                here.below(DISKS, make=own_directory.PRIVATE, new=True).close()
        except OSError as error:
            if begun:
                # Nothing half made stays in the way of the next.
                with contextlib.suppress(Refused, OSError):
                    cls(path, token).remove_unfinished()
            raise InputError(f"{path}: can't become a store: {error.strerror}") from None
        except NotOursError as error:
            raise InputError(f"{path}: can't become a store: {error}") from None
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

    def keep(self, folder: Path) -> None:
        """Copy the pools, which nobody has mounted, into ``folder``. Raises OSError."""
        _copy_pools(self.disks, folder)

    def begin_anew(self) -> None:
        """Delete the pools, which nobody has mounted. Raises OSError."""
        with OwnDirectory.open(self.disks) as here:
            for name in here.names():
                if _FILES.fullmatch(name) and name != mounted.LOCK:
                    os.unlink(name, dir_fd=here.fd)

    def begin_with(self, folder: Path) -> None:
        """Copy the pools that ``keep`` put into ``folder`` into this store, which has none.

        Raises OSError.
        """
        _copy_pools(folder, self.disks)

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
                    with own_directory.parent_of(self.path) as parent:
                        if parent is not None:
                            os.rmdir(self.path.name, dir_fd=parent.fd)
        except NotOursError as error:
            raise Refused(f"{self.path}: not removed entirely: {error}") from None
        except OSError as error:
            raise Refused(f"{self.path}: not removed entirely: {error.strerror}: {error.filename}") from None
        finally:
            os.close(here)

    def remove_unfinished(self) -> None:
        """Delete what a ``create`` that was cut left: the store, or a directory of ours with nothing in it.

        Raises:
            Refused: it may hold something that isn't ours. Nothing was deleted.
        """
        try:
            with own_directory.parent_of(self.path) as parent, contextlib.suppress(OSError):
                if parent is None:
                    return
                with parent.below(self.path.name) as here:
                    # The marker is written in one piece: it is empty, or whole.
                    if here.names() == [MARKER]:
                        found = here.look(MARKER)
                        if found is not None and stat.S_ISREG(found.st_mode) and found.st_size == 0:
                            os.unlink(MARKER, dir_fd=here.fd)
                os.rmdir(self.path.name, dir_fd=parent.fd)
                return
        except NotOursError as error:
            raise Refused(f"{self.path}: left alone: {error}") from None
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
        try:
            with OwnDirectory.open(path) as found:
                marker = self._marker(found)
                # The token alone would let a copy through, as by `cp -a`.
                if marker.get("inode") != os.fstat(found.fd).st_ino:
                    raise Refused(f"{path}: left alone: it is another directory than the one that we made")
                return os.dup(found.fd), marker
        except NotOursError as error:
            raise Refused(f"{path}: left alone: {error}") from None
        except NotADirectoryError:
            raise Refused(f"{path}: left alone: it is not a directory") from None

    def _marker(self, here: OwnDirectory) -> dict[str, Any]:
        path = self.path
        try:
            handle = here.open_file(MARKER)
        except OSError:
            raise Refused(f"{path}: left alone: it has no marker {MARKER}, so it is not ours") from None
        except NotOursError as error:
            raise Refused(f"{path}: left alone: its marker {MARKER} can't be trusted: {error}") from None
        with os.fdopen(handle, "rb") as file:
            data = file.read(4096)
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
                raise Refused(f"{self.path}: left alone: {name} in it is no file of a store's")
        return disks

    def _known(self, name: str, found: os.stat_result) -> None:
        inner = name.partition("/")[2]
        regular = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and _FILES.fullmatch(inner)
        if not regular and not (stat.S_ISSOCK(found.st_mode) and inner in _SOCKETS):
            raise Refused(f"{self.path}: left alone: {name} in it is no file of a store's")


def _copy_pools(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if _POOLS.fullmatch(path.name) and _FILES.fullmatch(path.name):
            sparse.copy(path, target / path.name)
