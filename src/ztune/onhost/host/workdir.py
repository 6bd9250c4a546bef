"""The work directory, and the one door through which anything is ever deleted: ``WorkDir.remove``.

A work directory is made by ``WorkDir.create`` and by nothing else. It holds a marker file with an id of its
own, on which its maker has a lock for as long as it lives; ``remove`` deletes only a directory that carries
that marker, is the very inode that was created, belongs to us, is no symbolic link and no mount point, and
has no mount point inside. Otherwise it refuses and says why.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ztune.errors import InputError, Refused, ZtuneError
from ztune.onhost.host import mounted, mounts, own_directory
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.own_directory import NotOursError
from ztune.onhost.host.process import all_pids

MARKER = ".ztune-workdir"
_FORMAT = "ztune-workdir-2"  # that of an older ztune has no lock: nobody can say who has it
_PREFIX = "ztune-"
_NAME = re.compile(r"ztune-[a-z0-9-]+-[0-9a-f]{12}")


@dataclass(slots=True)
class WorkDir:
    """A directory that ztune made and may delete. Use ``create`` or ``adopt``, not the constructor."""

    path: Path
    """Absolute, without symbolic links."""
    token: str
    """The id in the marker and in the directory's name."""
    device: int
    inode: int
    keep: bool = False
    removed: bool = False
    _marker: IO[str] | None = field(default=None, repr=False)
    """Open, and so locked, in the process that made it."""

    @staticmethod
    def default_parent() -> Path:
        """Return where work directories go by default: ``$TMPDIR``, else ``/var/tmp``.

        Not ``/tmp``, which may be memory: a database and what the recorder samples from it belong on a disk.
        """
        return Path(os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else "/tmp"))

    @classmethod
    def create(cls, purpose: str, *, parent: Path | None = None, keep: bool = False) -> WorkDir:
        """Make a new work directory below ``parent`` and remove what dead runs left there.

        Args:
            purpose: part of the directory's name; lower-case letters, digits and ``-``.
            parent: an existing directory that we may write to.
            keep: ``remove`` leaves the directory alone.

        Raises:
            InputError: ``parent`` is missing or not writable.
        """
        base = (parent or cls.default_parent()).absolute()
        try:
            base = own_directory.real(base)
            own_directory.check(base)
        except OSError as error:
            raise InputError(
                f"work directory: {base} can't be used: {error.strerror}; name an existing one"
            ) from None
        except NotOursError as error:
            raise InputError(f"work directory: {error}") from None
        sweep(base)
        token = secrets.token_hex(6)
        path = base / f"{_PREFIX}{re.sub('[^a-z0-9-]', '-', purpose.lower()) or 'work'}-{token}"
        try:
            # 0711: a database that runs as another user must be able to pass through, not to look around.
            path.mkdir(mode=0o711)
        except OSError as error:
            raise InputError(f"work directory: can't make one in {base}: {error.strerror}") from None
        path.chmod(0o711)
        found = path.lstat()
        work = cls(path=path, token=token, device=found.st_dev, inode=found.st_ino, keep=keep)
        work._marker = _write_marker(path, {"format": _FORMAT, "token": token, "keep": keep})
        # A backstop for a caller that forgets; `remove` takes it away again.
        atexit.register(work._at_exit, os.getpid())
        return work

    @classmethod
    def adopt(cls, path: Path) -> WorkDir:
        """Take over a work directory that an earlier process made.

        Raises:
            Refused: ``path`` isn't one, by name, marker or owner.
        """
        path = path.absolute()
        found = _must_be_own_directory(path)
        marker = _read_marker(path)
        token = str(marker["token"])
        if not _NAME.fullmatch(path.name) or not path.name.endswith("-" + token):
            raise Refused(f"{path}: not removed: its name does not carry the id in its marker {MARKER}")
        return cls(path, token, found.st_dev, found.st_ino, keep=bool(marker.get("keep")))

    def sub(self, name: str, *, owner: tuple[int, int] | None = None, mode: int = 0o700) -> Path:
        """Make a directory inside and return it.

        Args:
            name: a single path component.
            owner: uid and gid, when the database runs as another user; needs root.
            mode: permission bits.
        """
        if Path(name).name != name or name in ("", ".", "..", MARKER):
            raise ValueError(f"not a name for a directory: {name!r}")
        path = self.path / name
        path.mkdir(mode=mode)
        path.chmod(mode)
        if owner is not None:
            os.chown(path, *owner)
        return path

    def remove(self) -> None:
        """Delete the directory and all that is in it. Does nothing when it is gone already or to be kept.

        Raises:
            Refused: what is at ``path`` now isn't, beyond doubt, what ``create`` made. Nothing was
            deleted.
        """
        if self.removed or self.keep:
            return
        try:
            found = _must_be_own_directory(self.path)
        except FileNotFoundError:
            self._forget()
            return
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise Refused(
                f"{self.path}: not removed: another directory has taken the place of the one we made"
            )
        if _read_marker(self.path).get("token") != self.token:
            raise Refused(f"{self.path}: not removed: its marker {MARKER} is not the one we wrote")
        inside = [point for point in _mount_points() if point == self.path or self.path in point.parents]
        if inside:
            raise Refused(f"{self.path}: not removed: {inside[0]} is a mount point; unmount it first")
        try:
            with uninterrupted():
                # By descriptor, and the marker last: a removal that is cut can be taken up again.
                own_directory.remove(self.path, MARKER, inode=(self.device, self.inode))
        except NotOursError as error:
            raise Refused(f"{self.path}: not removed: {error}") from None
        self._forget()

    def _forget(self) -> None:
        self.removed = True
        if self._marker is not None:
            self._marker.close()
        atexit.unregister(self._at_exit)

    def _at_exit(self, pid: int) -> None:
        # A forked child inherits the hook but owns nothing.
        if os.getpid() == pid:
            with contextlib.suppress(ZtuneError, OSError):
                self.remove()


def leftovers(parent: Path) -> list[Path]:
    """Return the work directories below ``parent`` whose ztune died without cleaning up (SIGKILL, power
    cut).
    """
    found = []
    try:
        names = [entry.name for entry in os.scandir(parent) if _NAME.fullmatch(entry.name)]
    except OSError:
        return []
    for name in names:
        path = parent / name
        with contextlib.suppress(ZtuneError, OSError), _left(path):
            found.append(path)
    return found


def sweep(parent: Path) -> list[Path]:
    """Remove the leftovers below ``parent`` and return which they were."""
    gone = []
    for path in leftovers(parent):
        with contextlib.suppress(ZtuneError, OSError), _left(path):
            _unmount_dead(path)
            WorkDir.adopt(path).remove()
            gone.append(path)
    return gone


def _unmount_dead(path: Path) -> None:
    """Unmount below ``path`` what a ``ztune-mount`` that is dead has left: its files are in its store."""
    for mount in mounts.below(path, mounts.table()):
        if mounted.ours(mount) and mounted.dead(mount.point):
            mounted.detach(mount.point)


def _must_be_own_directory(path: Path) -> os.stat_result:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise Refused(f"{path}: not removed: it is a symbolic link")
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{path}: not removed: it is not a directory")
    if found.st_uid != os.geteuid():
        raise Refused(f"{path}: not removed: it belongs to user {found.st_uid}, not to us")
    if path.resolve() != path:
        raise Refused(f"{path}: not removed: a symbolic link lies on the way to it")
    return found


@contextlib.contextmanager
def _left(path: Path) -> Iterator[None]:
    """Within the body nobody else takes ``path`` for a leftover.

    Raises Refused, OSError where it is none: whoever made it, here or in another container or on another
    host, has the lock on its marker; somebody works in it; or it is to be kept.
    """
    _must_be_own_directory(path)
    with _marker_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _read_marker(path).get("keep") or _in_use(path):
            raise Refused(f"{path}: not removed: it is kept or in use")
        yield


def _write_marker(path: Path, marker: dict[str, Any]) -> IO[str]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.fdopen(os.open(path / MARKER, flags, 0o600), "w", encoding="utf-8")
    try:
        # Before anything is in it: a marker that says nothing is nobody's.
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(marker, file)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _marker_file(path: Path) -> IO[bytes]:
    try:
        # Not to be read alone: on NFS only who may write has a lock to himself.
        handle = os.open(path / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise Refused(f"{path}: not removed: it has no marker {MARKER}, so it is not ours") from None
    return os.fdopen(handle, "r+b", buffering=0)


def _read_marker(path: Path) -> dict[str, Any]:
    with _marker_file(path) as file:
        found = os.fstat(file.fileno())
        data = file.read(4096) if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else b""
    try:
        marker = json.loads(data)
    except ValueError:
        marker = None
    if not isinstance(marker, dict) or marker.get("format") != _FORMAT or "token" not in marker:
        raise Refused(f"{path}: not removed: its marker {MARKER} is not one of ours")
    return marker


def _mount_points() -> list[Path]:
    """Return every mount point of this process; bind mounts share a device number, so the table is the only
    proof.
    """
    try:
        return [mount.point for mount in mounts.table()]
    except OSError:
        return []


def _in_use(path: Path) -> bool:
    """Whether some process works below ``path``: PostgreSQL's stand in their data directory."""
    for pid in all_pids():
        with contextlib.suppress(OSError):
            cwd = Path(f"/proc/{pid}/cwd").readlink()
            if cwd == path or path in cwd.parents:
                return True
    return False


def short_parent(needed: int) -> Path:
    """Return a directory for sockets, of at most 107 - ``needed`` characters (``sun_path`` has 108 bytes on
    Linux).
    """
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
        if len(os.fsencode(parent)) + needed <= 107 and os.access(parent, os.W_OK):
            return parent
    raise InputError("no directory with a path short enough for a unix socket; set TMPDIR to a short one")
