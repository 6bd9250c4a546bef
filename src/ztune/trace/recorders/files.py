"""Which file an event speaks of: numbers given by a recorder, names that come and go, inodes used again.

A recorder enters, in order of time, the files it saw and the calls on names (rename, unlink, ...) that ended
well. The table follows which file a name stood for, and turns these calls into events of files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ztune.onhost.host import mounts
from ztune.onhost.host.mounts import MountInfo
from ztune.trace.manifest import FileName, TraceFile
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

UNKNOWN = -2  # in Selection.numbers: a number that was never explained (its record was lost)
IGNORED = -3  # a file that is no storage, or outside of the paths asked for


class Call(NamedTuple):
    """When a call on names happened, and who made it. Nanoseconds since the trace began. ``between``: two
    windows of the recording."""

    t: int
    dur: int
    pid: int
    tid: int
    between: bool = False


@dataclass
class KnownFile:
    """One file, as far as it is known."""

    path: str
    dev: int = 0  # as in st_dev
    ino: int = 0  # 0: known by name only
    size_start: int = 0  # bytes
    links: int = 1
    created: bool = False
    names: list[FileName] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    uncertain: bool = False  # known by name only: may turn out to be no regular file
    number: int = 0  # the recorder's; 0: none
    nameless: bool = False  # made without a name (O_TMPFILE), and none was given yet

    @property
    def deleted(self) -> bool:
        """Whether no name is left."""
        return self.links <= 0


@dataclass(frozen=True)
class Selection:
    """The files that stay, and what the recorder's numbers become."""

    files: list[TraceFile]
    ids: dict[int, int]  # recorder's number → file id, of those that stay
    numbers: npt.NDArray[np.int32]  # the same as an array, with UNKNOWN or IGNORED for the others, -1 for 0
    events: list[tuple[Call, Op, int, int, int]]  # call, op, file id, second file id or -1, size


def is_storage(path: str) -> bool:
    """Say whether a regular file holds data to keep, or is memory shared by way of a file name.

    POSIX shared memory objects are the files directly in /dev/shm (shm_overview(7)); a JVM shares its
    performance counters as hsperfdata_USER/PID.
    """
    if path.startswith("/dev/shm/") and "/" not in path[len("/dev/shm/") :]:
        return False
    return re.search(r"/hsperfdata_[^/]*/[0-9]+$", path) is None


class FileTable:
    """Files by number, by name and by inode."""

    def __init__(self) -> None:
        self.entries: list[KnownFile] = []
        self._numbers: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._members: dict[str, int] = {}  # folder → how many names, and folders with names, are right in it
        self._inodes: dict[tuple[int, int], int] = {}
        self._calls: list[tuple[Call, Op, int, int, int]] = []  # file and file2 as indices of entries
        self._next_own = -2  # numbers for files that a caller, not a recorder, entered
        self._folders: dict[str, str] = {}

    def seen(
        self,
        number: int,
        t: int,
        path: str,
        dev: int,
        ino: int,
        size: int,
        *,
        links: int = 1,
        created: bool = False,
    ) -> None:
        """Enter a file at first sight: its number, name, ``st_dev``, inode, size in bytes before the call."""
        index = self._names.get(path)
        if not created and index is not None and not self.entries[index].ino:
            entry = self.entries[index]  # known by name so far, from a rename
            entry.dev, entry.ino, entry.size_start, entry.uncertain = dev, ino, size, False
        else:
            index = len(self.entries)
            self.entries.append(
                KnownFile(
                    path, dev, ino, 0 if created else size, links, created, [FileName(t=max(t, 0), path=path)]
                )
            )
            if links > 0:
                self._name(index, path)
        self.entries[index].number = number
        self.entries[index].nameless = links <= 0
        self._numbers[number] = index
        self._inodes[dev, ino] = index

    def entered(self, t: int, path: str, dev: int, ino: int, size: int) -> int:
        """Enter a file that is not the recorder's discovery; return its number, an old one if it is known."""
        index = self._inodes.get((dev, ino))
        if index is not None and self.entries[index].number:
            return self.entries[index].number
        number, self._next_own = self._next_own, self._next_own - 1
        self.seen(number, t, path, dev, ino, size)
        return number

    def rename(self, call: Call, old: str, new: str, *, exchange: bool = False) -> None:
        """Enter a rename; a file that had the new name loses it. Folders take what is in them along."""
        old, new = self._real(old), self._real(new)
        if old == new:
            return
        if exchange:
            self._exchange(call, old, new)
            return
        if self._rename_folder(call, old, new):
            return
        index = self._found(old, call)
        self._forget(old)
        over = self._names.get(new)
        if over is not None:
            self._lose(over, new)
        self._move(call, index, old, new)
        self._calls.append((call, Op.RENAME, index, -1 if over is None else over, 0))

    def unlink(self, call: Call, path: str) -> None:
        """Enter the removal of a name."""
        path = self._real(path)
        index = self._found(path, call)
        self._lose(index, path)
        self._calls.append((call, Op.UNLINK, index, -1, 0))

    def link(self, call: Call, old: str, new: str) -> None:
        """Enter a second name of a file. Not an event of the trace, but the file outlives its first name.

        One that has no name (``O_TMPFILE``) is linked by its descriptor: it is told by its inode, which the
        new name has, if it is still there.
        """
        old, new = self._real(old), self._real(new)
        index = self._found(old, call) if (nameless := self._nameless(old, new)) is None else nameless
        entry = self.entries[index]
        entry.links += 1
        entry.names.append(FileName(t=call.t, path=new))
        if nameless is not None:
            entry.path, entry.nameless = new, False
        self._name(index, new)

    def truncate(self, call: Call, path: str, size: int) -> None:
        """Enter truncate(2), which names its file."""
        index = self._found(self._real(path), call)
        self._calls.append((call, Op.TRUNCATE, index, -1, size))

    def named(self, path: str) -> KnownFile | None:
        """Return the file that has the name ``path`` now (a real path: no symbolic links)."""
        index = self._names.get(path)
        return None if index is None else self.entries[index]

    def knows(self, dev: int, ino: int) -> bool:
        """Say whether a file with this inode is known, and not deleted."""
        index = self._inodes.get((dev, ino))
        return index is not None and not self.entries[index].deleted

    def numbered(self, number: int) -> KnownFile | None:
        """Return the file with a number."""
        index = self._numbers.get(number)
        return None if index is None else self.entries[index]

    def select(self, used: Iterable[int], highest: int, below: list[Path], rules: RoleRules) -> Selection:
        """Choose the files to keep: those with events, and below one of the paths ``below`` if any are given.

        ``used`` are the recorder's numbers that occur in events, ``highest`` the greatest number given.
        """
        used = list(used)
        wanted: dict[int, None] = {}
        for number in used:
            if (index := self._numbers.get(number)) is not None:
                wanted[index] = None
        for call, _, index, other, _ in self._calls:
            if call.between:
                continue
            wanted[index] = None
            if other >= 0:
                wanted[other] = None
        mounts = Mounts()
        mounts.read()
        roots = {name for path in below for name in mounts.names(path)}
        ids: dict[int, int] = {}
        files: list[TraceFile] = []
        for index in sorted(wanted):
            entry = self.entries[index]
            if self._keep(entry, roots):
                ids[index] = len(files)
                files.append(self._describe(entry, len(files), rules))
        import numpy as np  # here, as mounts and names of files are known without it

        numbers = np.full(highest + 1, UNKNOWN, np.int32)
        for number, index in self._numbers.items():
            if 0 < number <= highest:
                numbers[number] = ids.get(index, IGNORED)
        numbers[0] = -1
        by_number = {number: ids[index] for number, index in self._numbers.items() if index in ids}
        events = [
            (call, op, ids[index], ids.get(other, -1), size)
            for call, op, index, other, size in self._calls
            if index in ids
        ]
        return Selection(files, by_number, numbers, events)

    def _keep(self, entry: KnownFile, roots: set[str]) -> bool:
        names = {entry.path, *(name.path for name in entry.names)}
        if not all(is_storage(name) for name in names):
            return False
        if roots and not any(
            name == root or name.startswith(root.rstrip("/") + "/") for name in names for root in roots
        ):
            return False
        if entry.uncertain and not entry.deleted:
            try:
                found = os.lstat(entry.path)
            except OSError:
                return True
            if not stat.S_ISREG(found.st_mode):
                return False
            entry.dev, entry.ino, entry.size_start = found.st_dev, found.st_ino, found.st_size
        return True

    @staticmethod
    def _describe(entry: KnownFile, number: int, rules: RoleRules) -> TraceFile:
        size_end = -1
        if not entry.deleted:
            try:
                found = Path(entry.path).stat()
                # btrfs shows a device of its own in stat; the inode number must do.
                if stat.S_ISREG(found.st_mode) and entry.ino in (0, found.st_ino):
                    size_end = found.st_size
            except (OSError, ValueError):
                pass
        return TraceFile(
            id=number,
            path=entry.path,
            names=entry.names,
            role=rules.role(entry.path),  # type: ignore[arg-type]  # RoleRules gives known roles only
            dev=entry.dev,
            ino=entry.ino,
            size_start=entry.size_start,
            size_end=size_end,
            created=entry.created,
            deleted=entry.deleted,
        )

    def _name(self, index: int, path: str) -> None:
        before = self._names.get(path)
        if before is not None and before != index and path in self.entries[before].current:
            self.entries[before].current.remove(path)  # taken away by a process that is not recorded
        self._names[path] = index
        if before is None:
            self._count(path, 1)
        if path not in self.entries[index].current:
            self.entries[index].current.append(path)

    def _forget(self, path: str) -> int | None:
        """Take a name out of the table; return what it stood for, if anything."""
        index = self._names.pop(path, None)
        if index is not None:
            self._count(path, -1)
        return index

    def _count(self, path: str, change: int) -> None:
        """Count a name that came (1) or went (-1) in its folder, and this folder likewise in the next."""
        while path:
            path = path.rpartition("/")[0]
            before = self._members.get(path, 0)
            self._members[path] = before + change
            if not self._members[path]:
                del self._members[path]
            elif before:
                return

    def _lose(self, index: int, path: str) -> None:
        entry = self.entries[index]
        entry.links -= 1
        if path in entry.current:
            entry.current.remove(path)
        if self._names.get(path) == index:
            self._forget(path)
        if entry.current:
            entry.path = entry.current[-1]

    def _found(self, path: str, call: Call) -> int:
        """Return the index of the file that has the name ``path``; a new one, known by name only, if none."""
        if path not in self._names:
            self.entries.append(KnownFile(path, names=[FileName(t=call.t, path=path)], uncertain=True))
            self._name(len(self.entries) - 1, path)
        return self._names[path]

    def _nameless(self, old: str, new: str) -> int | None:
        """Return the index of a file that has got its first name, ``new``; None: ``old`` is a name."""
        if old in self._names:
            return None
        try:
            found = os.lstat(new)
        except (OSError, ValueError):
            return None
        index = self._inodes.get((found.st_dev, found.st_ino))
        # One that has lost its name is another: its number was given to a new file.
        return index if index is not None and self.entries[index].nameless else None

    def _move(self, call: Call, index: int, old: str, new: str) -> None:
        """Give a file the name ``new`` in place of ``old``, which is no longer in the table of names."""
        entry = self.entries[index]
        if old in entry.current:
            entry.current.remove(old)
        self._name(index, new)
        entry.path = new
        entry.names.append(FileName(t=call.t, path=new))

    def _exchange(self, call: Call, old: str, new: str) -> None:
        pair = self._forget(old), self._forget(new)
        for index, gone, path in ((pair[0], old, new), (pair[1], new, old)):
            if index is not None:
                self._move(call, index, gone, path)

    def _rename_folder(self, call: Call, old: str, new: str) -> bool:
        # Most renames are of files: to look through all names for each would take hours where there are many.
        inside = [path for path in self._names if path.startswith(old + "/")] if old in self._members else []
        for path in inside:
            index = self._names[path]
            self._forget(path)
            self._move(call, index, path, new + path[len(old) :])
        return bool(inside) or (old not in self._names and Path(new).is_dir())

    def _real(self, path: str) -> str:
        """Follow symbolic links in the folder part, as the kernel did; recorders name files by real paths."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder or "/")
        return self._folders[folder].rstrip("/") + "/" + name


class Mounts:
    """Where file systems are mounted, from /proc/PID/mountinfo (proc(5))."""

    def __init__(self) -> None:
        self._by_device: dict[int, list[MountInfo]] = {}
        self._all: list[MountInfo] = []  # in the kernel's order: later ones lie on top
        self._theirs: list[MountInfo] = []  # of the processes that are recorded
        self.texts: list[str] = []

    def read(self, pid: int | str = "self") -> None:
        """Add the mounts that a process sees, after those known already; a process gone is no error."""
        try:
            text = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return
        self.add(text, theirs=pid != "self")

    def add(self, text: str, *, theirs: bool = False) -> None:
        """Add the mounts in ``text``, of the form of /proc/PID/mountinfo. ``theirs``: what the processes see
        that are recorded, which may be in a container.
        """
        self.texts.append(text)
        found = mounts.parse(text)
        if theirs:
            self._theirs = found
        for mount in found:
            known = self._by_device.setdefault(os.makedev(*mount.device), [])
            if mount not in known:
                known.append(mount)
                self._all.append(mount)

    def absolute(self, dev: int, inside: str) -> str:
        """Return the path of a file from its path inside its file system (begins with /)."""
        best = None
        for mount in self._by_device.get(dev, []):
            fits = mount.root == "/" or inside == mount.root or inside.startswith(mount.root + "/")
            if fits and (best is None or len(mount.root) < len(best.root)):
                best = mount
        if best is None:
            return inside
        rest = inside if best.root == "/" else inside[len(best.root) :]
        return (str(best.point).rstrip("/") + rest) or "/"

    def usual(self, path: str) -> str:
        """Return the name that `absolute` gives what the recorded processes call ``path``, without symbolic
        links: of a bind mount that is the name of what is mounted.
        """
        mount = mounts.over(Path(path), self._theirs or self._all)
        if mount is None:
            return path
        inside = Path(mount.root) / Path(path).relative_to(mount.point)
        return self.absolute(os.makedev(*mount.device), str(inside))

    def names(self, path: Path) -> set[str]:
        """Return the names of a folder or file, and of parts of it: a bind mount gives further ones."""
        real = Path(os.path.realpath(path))
        names = {str(real)}
        mount = mounts.over(real, self._all)
        if mount is None:
            return names
        inside = Path(mount.root) / real.relative_to(mount.point)
        for other in self._by_device[os.makedev(*mount.device)]:
            if inside.is_relative_to(other.root):
                names.add(str(other.point / inside.relative_to(other.root)))
            elif Path(other.root).is_relative_to(inside):
                names.add(str(other.point))
        return names

    def of(self, dev: int) -> MountInfo | None:
        """Return the first mount of the file system with this device number."""
        return next(iter(self._by_device.get(dev, [])), None)
