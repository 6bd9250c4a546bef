"""Room on file systems: what a load will need, what has to stay free, and a watch while it is written.

A job can mostly say how large its data will be, and is refused before it begins where that does not fit.
Where it can't, or is wrong, the watch holds: it ends the work before the file system is full.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.units import format_size

RESERVE = 2 << 30
RESERVE_SHARE = 0.05
"""What stays free of a file system of the host: 2 GiB, for what others write there, and for our own journals
and results. The watch looks so often that the fastest disk does not write as much between two looks. Of one
that is smaller than 40 GiB it is 5 %, as much as ext4 keeps for root."""
_LOOK_S = 0.25


class NoRoomError(ZtuneError):
    """A file system has too little room left."""


class TooLargeError(InputError):
    """What was asked for is larger than the room of a host, which is found before anything is written."""


def is_of_host(error: BaseException) -> bool:
    """Whether ``error`` says that this host's own disks are full or fail: no fault of what is tried."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
    causes = (error, error.__cause__, error.__context__)
    return any(
        isinstance(e, NoRoomError | TooLargeError) or (isinstance(e, OSError) and e.errno in full)
        for e in causes
    )


def is_short(paths: Iterable[Path]) -> bool:
    """Whether a file system of ``paths`` has less room than stays free, so that whatever failed may have
    failed for that."""
    for path in paths:
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(_existing(path))
            if usage.free < reserve(usage.total):
                return True
    return False


def spare(path: Path) -> int:
    """Return the bytes that may still be written below ``path``, which may be missing yet: those free beside
    the reserve; negative where that was begun. Raises OSError."""
    usage = shutil.disk_usage(_existing(path))
    return usage.free - reserve(usage.total)


def require_spare(what: str, folder: Path, remedy: str) -> None:
    """Refuse to write what may become large where the reserve of a file system is begun already.

    Args:
        what: how the sentence calls it.
        folder: where, which may be missing yet.
        remedy: what the user can do besides making room.

    Raises:
        TooLargeError: no more may be written there.
        OSError: it can't be looked at.
    """
    usage = shutil.disk_usage(_existing(folder))
    keep = reserve(usage.total)
    if usage.free <= keep:
        raise TooLargeError(
            f"{what} is not written to {folder}: {about(usage.free)} of {about(usage.total)} are free there, "
            f"and {about(keep)} stay so; make room there, or {remedy}"
        )


def reserve(total: int) -> int:
    """Return the bytes that stay free of a file system with ``total`` bytes."""
    return min(RESERVE, int(total * RESERVE_SHARE))


def about(size: int) -> str:
    """Return bytes for a sentence: "83.0 MiB", "1.5 GiB"."""
    power = min(6, max(2, (max(size, 1).bit_length() - 1) // 10))
    return f"{size / 1024**power:.1f} {' KMGTPE'[power]}iB"


def needed_by(job: Any) -> dict[str, int]:
    """Return the bytes that each role will take, where the job can tell; some can't."""
    needs = getattr(job, "expected_bytes", None)
    return dict(needs()) if callable(needs) else {}


def require(job: str, needs: Iterable[tuple[Path, int]], remedy: str) -> None:
    """Refuse what does not fit on this host, before anything is written.

    Args:
        job: how the sentence calls who writes.
        needs: directories, which may be missing yet, and the bytes to be written below each.
        remedy: what the user can do besides taking less data.

    Raises:
        TooLargeError: it does not fit beside the reserve of a file system.
    """
    totals: dict[int, tuple[Path, int]] = {}
    for path, size in needs:
        place = _existing(path)
        where, before = totals.get(place.stat().st_dev, (place, 0))
        totals[place.stat().st_dev] = (where, before + size)
    for place, size in totals.values():
        usage = shutil.disk_usage(place)
        keep = reserve(usage.total)
        if size > usage.free - keep:
            raise TooLargeError(
                f"{job}: about {about(size)} are needed below {place}, where {about(usage.free)} are free, "
                f"{about(keep)} of which stay so; ask for less data, or {remedy}"
            )


def require_on(needs: Mapping[str, int], places: Mapping[str, Path]) -> None:
    """Refuse data that is larger than the disks it goes to, which are ours to fill.

    Args:
        needs: bytes of each role.
        places: the directory of each role; roles without one are left out.

    Raises:
        InputError: the roles of one file system will not fit on it.
    """
    rooms: dict[int, tuple[int, int, list[str]]] = {}
    for role, size in needs.items():
        if role in places:
            found = places[role].stat().st_dev
            free = shutil.disk_usage(places[role]).free
            _, total, roles = rooms.get(found, (0, 0, []))
            rooms[found] = (free, total + size, [*roles, role])
    for free, total, roles in rooms.values():
        if total > free:
            raise InputError(
                f"role {' and '.join(sorted(roles))} is larger than the disk: {format_size(total)} of "
                f"data, {format_size(free // 1024 * 1024)} free; take a larger disk or less data"
            )


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.is_dir())


class RoomWatch:
    """Within the body the file systems of ``paths`` are watched; it is interrupted before one is full.

    At its end that is raised as NoRoomError, with what was found; what the body wrote is its own to remove.
    """

    def __init__(self, what: str, paths: Callable[[], Iterable[Path]]) -> None:
        """``what``: how the sentence calls what is stopped. ``paths`` is asked at each look."""
        self._what = what
        self._paths = paths
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._found = ""
        self._thread = threading.Thread(target=self._watch, daemon=True, name="room")

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Watch no more. Raises NoRoomError if the body was interrupted."""
        with interrupt.uninterrupted(), contextlib.suppress(KeyboardInterrupt), self._lock:
            self._over.set()
        if self._found and not interrupt.asked():
            raise NoRoomError(self._found) from error

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            for path in self._paths():
                with contextlib.suppress(OSError):
                    place = _existing(path)
                    usage = shutil.disk_usage(place)
                    keep = reserve(usage.total)
                    if usage.free < keep:
                        return self._end(
                            f"{self._what} was stopped, and what it wrote is removed: {about(usage.free)} of "
                            f"{about(usage.total)} are left below {place}, and {about(keep)} stay free; ask "
                            "for less data, or make room there"
                        )

    def _end(self, sentence: str) -> None:
        with self._lock:
            if not self._over.is_set():
                self._found = sentence
                interrupt.ring()
