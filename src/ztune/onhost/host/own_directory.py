"""Directories that nobody but us could have written: opened level by level, checked, and used by descriptor.

What a journal says is done as root. So what is believed, or executed, lies in a directory in whose path every
level is a directory and no link, belongs to root or to us, and can't be written by anybody else. A sticky
directory that all may write, such as /tmp, is good enough above a level of ours: nobody else can rename that.
ACLs need no look of their own: where one lets others write, the mode's group bits, its mask, show it. A file
system that another user has mounted (FUSE) is theirs, whoever owns its files by what it says.

Only the standard library, and of ztune only the errors: a copy of this file's text runs on hosts without it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import InputError

PRIVATE, PASSABLE = 0o700, 0o711
"""Modes of directories: ours alone, and one that the users of databases pass through without looking."""
Inode = tuple[int | None, int]
"""Device and number of a file; None: whatever device."""
MOUNTS = Path("/proc/self/mountinfo")
_MOST_LINKS, _DEEPEST = 40, 200
_OPEN = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOursError(InputError):
    """Somebody else could have written what lies there, so nothing of it is believed."""

    def __init__(self, fault: str, remedy: str = "") -> None:
        """``fault``: what is wrong, and where. ``remedy``: what would be right, where that can be told."""
        super().__init__(f"{fault}; {remedy}" if remedy else fault)
        self.fault = fault


@dataclass(slots=True)
class OwnDirectory:
    """A directory of ours, open. What is read and written goes through ``fd``: a path that is swapped after
    the check leads nowhere else.
    """

    path: Path
    fd: int

    @classmethod
    def open(cls, path: Path, make: int | None = None) -> OwnDirectory:
        """Open ``path``, an absolute one without links.

        Args:
            path: where.
            make: the mode of each level that is missing and is made.

        Raises:
            NotOursError: a level could have been written, or put there, by somebody else.
            FileNotFoundError: it is missing, and ``make`` is None.
            OSError: it can't be opened or made.
        """
        found = _walk(path, make=make)
        try:
            _require(found, path, os.fstat(found.fd), last=True)
            return found._readable()
        finally:
            found.close()

    def below(self, name: str, make: int | None = None, *, new: bool = False) -> OwnDirectory:
        """Open the directory ``name`` in it, as ``open`` does. ``new``: it must not be there yet.

        Raises:
            FileExistsError: it is there although it has to be new.
        """
        found = _step(self, name, make, new)
        try:
            _require(found, found.path, os.fstat(found.fd), last=True)
            return found._readable()
        finally:
            found.close()

    def open_file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Open a file in it and return the descriptor; it is no link, has one name only, and is ours alone to
        write. Never waits, as for a FIFO.

        Raises:
            NotOursError: it is something else.
            OSError: it can't be opened.
        """
        path = self.path / name
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=self.fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotOursError(f"{path} is a symbolic link, not a file of ztune's") from None
            if error.errno in (errno.ENXIO, errno.EISDIR):
                raise NotOursError(f"{path} is not a regular file") from None
            raise
        try:
            require_file(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def names(self) -> list[str]:
        """Return the names in it, sorted."""
        return sorted(entry.name for entry in os.scandir(self.fd))

    def look(self, name: str) -> os.stat_result | None:
        """Return what ``name`` in it is, without following it; None if it is missing."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def clear(self, last: str = "") -> None:
        """Delete all that is in it, ``last`` after the rest, so that a removal that is cut can be taken up.

        Raises:
            NotOursError: something is mounted below it, which is left alone.
        """
        _clear(self.fd, self.path, _mount_id(self.fd), last, _DEEPEST)

    def sync(self) -> None:
        """Wait until the names in it are on the disk."""
        # Some network and overlay file systems can't; their names are written at once.
        with suppress(OSError):
            os.fsync(self.fd)

    def close(self) -> None:
        """Let go of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> OwnDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _readable(self) -> OwnDirectory:
        # The way here takes no right to read, only to pass.
        return OwnDirectory(self.path, os.open(".", os.O_RDONLY | _OPEN, dir_fd=self.fd))


def real(path: Path) -> Path:
    """Return ``path`` without links and, where it goes on below what exists, as it would be.

    A link is followed if root or we made it, in a directory that nobody else can write.

    Raises:
        NotOursError: somebody else could have written a level of it.
    """
    try:
        found = _walk(path, links=True)
    except _EndsError as end:
        return end.path
    found.close()
    return found.path


def check(path: Path, *, links: bool = False, trusted: Collection[int] = ()) -> None:
    """Raise NotOursError unless what we make in ``path``, a directory, can't be touched by anybody else.

    Args:
        path: where.
        links: links that lead there are followed, as by ``real``.
        trusted: other users who may own levels of it.

    Raises:
        FileNotFoundError: it is missing.
        OSError: it can't be looked at.
    """
    try:
        _walk(path, links=links, trusted=trusted).close()
    except _EndsError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None


def ensure(path: Path, mode: int = PRIVATE) -> Path:
    """Make the directory ``path``, of ours, if it is missing, and return it. Raises NotOursError, OSError."""
    OwnDirectory.open(path, make=mode).close()
    return path


@contextmanager
def parent_of(path: Path) -> Iterator[OwnDirectory | None]:
    """Open the directory that holds ``path``, which may be sticky; None when it is missing.

    Raises:
        NotOursError: somebody else could have written a level of it.
    """
    try:
        found = _walk(path.parent)
    except FileNotFoundError:
        yield None
        return
    try:
        yield found
    finally:
        found.close()


def is_inode(found: os.stat_result, inode: Inode | None) -> bool:
    """Whether ``found`` is what was noted; None: nothing was, or not the device."""
    if inode is None:
        return True
    return inode[0] in (None, found.st_dev) and inode[1] == found.st_ino


def remove(path: Path, last: str = "", *, inode: Inode | None = None) -> None:
    """Delete the directory ``path``, which is ours, and all in it, ``last`` last. Nothing there is fine.

    ``inode``: the device and number it was made with, where that is known.

    Raises:
        NotOursError: it may not be ours, or something is mounted in it.
        OSError: it can't be deleted entirely.
    """
    with parent_of(path) as parent:
        if parent is None:
            return
        try:
            found = parent.below(path.name)
        except FileNotFoundError:
            return
        with found:
            if not is_inode(os.fstat(found.fd), inode):
                raise NotOursError(f"{path} is another directory than the one that was made")
            if _mount_id(found.fd) != _mount_id(parent.fd):
                raise NotOursError(f"{path} is a mount point; unmount it first")
            found.clear(last)
        os.rmdir(path.name, dir_fd=parent.fd)


def open_plain(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file in a directory that may be another user's, a database's own: no link of theirs is followed,
    on no level, none of their FIFOs is waited for.

    Raises:
        NotOursError: it is no regular file, or has another name too.
        OSError: it can't be opened.
    """
    path = path.absolute()
    # Level by level: a directory on the way may be theirs, too, and a link by now.
    try:
        folder = _walk(path.parent, links=True, theirs=True)
    except _EndsError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    try:
        # Emptied only after the look: it may be another name of somebody's file.
        flags_ = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path.name, flags_, mode, dir_fd=folder.fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotOursError(f"{path} is a link, or no regular file; nothing was written") from None
        error.filename = str(path)
        raise
    finally:
        folder.close()
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise NotOursError(f"{path} is no regular file, or has another name too; nothing was written")
    if flags & os.O_TRUNC:
        os.ftruncate(fd, 0)
    return fd


def read_plain(path: Path, most: int = 64 << 20) -> str:
    """Return the first ``most`` bytes of a text file that another user may have put there, as ``open_plain``
    opens it. Raises NotOursError, OSError.
    """
    with os.fdopen(open_plain(path, os.O_RDONLY), "rb") as file:
        return file.read(most).decode("utf-8", errors="replace")


def require_file(path: Path, found: os.stat_result) -> None:
    """Raise NotOursError unless ``found`` is a file with one name that only we can write."""
    if not stat.S_ISREG(found.st_mode):
        raise NotOursError(f"{path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise NotOursError(f"{path} belongs to {_user(found.st_uid)}, not to us")
    if found.st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, "it was deleted just now", str(path))
    if found.st_nlink != 1:
        raise NotOursError(f"{path} has {found.st_nlink} names: somebody may have linked it there")
    if found.st_mode & 0o022:
        raise NotOursError(f"{path} can be written by others than us (mode {found.st_mode & 0o7777:04o})")


def only_ours(fd: int, trusted: Collection[int] = ()) -> bool:
    """Whether nobody but root, us and the users ``trusted`` could have written the file that is open."""
    found = os.fstat(fd)
    return found.st_uid in (0, os.geteuid(), *trusted) and not _others(fd, found, trusted)


class _EndsError(Exception):
    """The way ends; ``path`` is where it would lead."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path


def _walk(
    path: Path,
    *,
    make: int | None = None,
    links: bool = False,
    theirs: bool = False,
    trusted: Collection[int] = (),
) -> OwnDirectory:
    """Return ``path``, of which each level was checked, open for passing only.

    ``theirs``: levels may be another user's; links that they could have made are refused all the same.
    ``trusted``: these users are as good as we are.
    """
    if not path.is_absolute() or (".." in path.parts and not links):
        raise NotOursError(f"{path} is no absolute path")
    here = OwnDirectory(Path("/"), os.open("/", os.O_PATH | _OPEN))
    left, followed = deque(path.parts[1:]), 0
    try:
        if not theirs:
            _require(here, path, os.fstat(here.fd), trusted=trusted)
        while left:
            name = left.popleft()
            try:
                below = _step(here, name, make, False, path)
            except NotOursError:
                target = _link(here, name, trusted) if links and followed < _MOST_LINKS else None
                if target is None:
                    raise
                if theirs:
                    _require(here, path, os.fstat(here.fd))
                followed += 1
                left.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
                if target.is_absolute():
                    here.close()
                    here = OwnDirectory(Path("/"), os.open("/", os.O_PATH | _OPEN))
                continue
            except FileNotFoundError:
                if links:
                    raise _EndsError(here.path.joinpath(name, *left)) from None
                raise
            before = os.fstat(here.fd).st_dev
            here.close()
            here = below
            found = os.fstat(here.fd)
            if theirs:
                continue
            if found.st_dev != before:
                _require_mount(here, path, trusted)
            _require(here, path, found, trusted=trusted)
        return here
    except BaseException:
        here.close()
        raise


def _step(
    here: OwnDirectory, name: str, make: int | None, new: bool, whole: Path | None = None
) -> OwnDirectory:
    if not name or "/" in name or name == "." or (name == ".." and whole is None):
        raise NotOursError(f"{here.path}: {name!r} is no name of a directory in it")
    path = here.path.parent if name == ".." else here.path / name
    flags = os.O_PATH | _OPEN
    made = new
    try:
        if new:
            os.mkdir(name, make or PRIVATE, dir_fd=here.fd)
        try:
            fd = os.open(name, flags, dir_fd=here.fd)
        except FileNotFoundError:
            if make is None:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, make, dir_fd=here.fd)
                made = True
            fd = os.open(name, flags, dir_fd=here.fd)
    except NotADirectoryError:
        found = here.look(name)
        if found is None or not stat.S_ISLNK(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
        way = f", on the way to {whole}," if whole not in (None, path) else ""
        raise NotOursError(f"{path}{way} is a symbolic link") from None
    if made and make is not None:
        # Whatever the umask. By way of the kernel's own link: the descriptor is for passing only.
        Path(f"/proc/self/fd/{fd}").chmod(make)
    return OwnDirectory(path, fd)


def _link(here: OwnDirectory, name: str, trusted: Collection[int]) -> Path | None:
    """Return where the link ``name`` leads if root, we or who is trusted made it."""
    found = here.look(name)
    if found is None or not stat.S_ISLNK(found.st_mode) or found.st_uid not in (0, os.geteuid(), *trusted):
        return None
    return Path(os.readlink(name, dir_fd=here.fd))


def _require(
    here: OwnDirectory,
    whole: Path,
    found: os.stat_result,
    *,
    last: bool = False,
    trusted: Collection[int] = (),
) -> None:
    way = f", on the way to {whole}," if here.path != whole else ""
    ours = (os.geteuid(),) if last else (0, os.geteuid(), *trusted)
    if found.st_uid not in ours:
        raise NotOursError(
            f"{here.path}{way} belongs to {_user(found.st_uid)}, who can change what lies in it",
            f"take one that belongs to {_user(os.geteuid())}",
        )
    others = _others(here.fd, found, trusted)
    if others and (last or not found.st_mode & stat.S_ISVTX):
        who = "every user" if others & 0o002 else f"group {found.st_gid}, or others by an ACL,"
        raise NotOursError(
            f"{here.path}{way} can be written by {who} (mode {found.st_mode & 0o7777:04o}), who can change "
            "what lies in it",
            f"take another, or: chmod go-w {here.path}",
        )


def _require_mount(here: OwnDirectory, whole: Path, trusted: Collection[int]) -> None:
    number = _mount_id(here.fd).rpartition("\t")[2].strip()
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if left.split(" ")[0] != number or not kind.startswith("fuse"):
            continue
        user = next((o[8:] for o in options.split(" ")[-1].split(",") if o.startswith("user_id=")), "0")
        if int(user) not in (0, os.geteuid(), *trusted):
            way = f", on the way to {whole}," if here.path != whole else ""
            raise NotOursError(f"{here.path}{way} is a file system that {_user(int(user))} has mounted")


def _others(fd: int, found: os.stat_result, trusted: Collection[int]) -> int:
    """Return the bits of the mode by which others than the owner may write what is open."""
    others = found.st_mode & 0o022
    alone = others == 0o020 and any(_alone_in(found.st_gid, uid) for uid in (os.geteuid(), *trusted))
    return 0 if alone and not _has_acl(fd) else others


def _alone_in(gid: int, uid: int) -> bool:
    """Whether ``gid`` is the group of its own that many systems give each user, here ``uid``, with nobody
    else in it.
    """
    import grp
    import pwd

    if uid == 0 or (uid == os.geteuid() and gid != os.getegid()):
        return False  # more accounts than root are in root's group on some systems
    try:
        group, name = grp.getgrgid(gid), pwd.getpwuid(uid).pw_name
        # By name, too: a directory service does not list whose first group it is.
        members = {*group.gr_mem, *(user.pw_name for user in pwd.getpwall() if user.pw_gid == gid)}
        return group.gr_name == name and members <= {name}
    except KeyError:
        return False


def _has_acl(fd: int) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(f"/proc/self/fd/{fd}")
    except OSError as error:
        return error.errno != errno.ENOTSUP


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def _mount_id(fd: int) -> str:
    """Return the kernel's number of the mount that an open file lies in: a bind mount has one of its own."""
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    except OSError:
        return str(os.fstat(fd).st_dev)
    return next((line for line in text.splitlines() if line.startswith("mnt_id:")), "")


def _clear(fd: int, path: Path, mount: str, last: str, deepest: int) -> None:
    names = [entry.name for entry in os.scandir(fd)]
    if last in names:
        names.remove(last)
        names.append(last)
    for name in names:
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=fd)
                continue
            inner = os.open(name, os.O_RDONLY | _OPEN, dir_fd=fd)
        except FileNotFoundError:
            continue
        try:
            if _mount_id(inner) != mount:
                raise NotOursError(f"{path / name} is a mount point; unmount it first")
            if deepest == 0:
                raise NotOursError(f"{path / name}: directories are nested deeper than any that ztune makes")
            _clear(inner, path / name, mount, "", deepest - 1)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)
