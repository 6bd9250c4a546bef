"""Room for a trace on the disk that it is written to, which may be the recorded database's own."""

from __future__ import annotations

import contextlib
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ztune.onhost.host import room
from ztune.onhost.probes import procfs
from ztune.trace.roles import RoleRules

LOOK_S = 0.25


BY_OUT, BY_HOME = "name a folder on another disk by --out", "set ZTUNE_HOME to a roomier place"


def require(folder: Path, remedy: str = BY_OUT) -> None:
    """Raise InputError if no more may be written below ``folder``: the reserve of its disk is begun.

    ``remedy``: what the user can do besides making room.
    """
    with contextlib.suppress(OSError):  # a folder that can't be looked at is told of by who writes there
        room.require_spare("the trace", folder.absolute(), remedy)


class Headroom:
    """Looks at the disk of ``folder`` while files there, ``growing``, get larger."""

    def __init__(self, folder: Path, growing: Iterable[Path]) -> None:
        self._folder = folder
        self._growing = list(growing)
        self._looked = time.monotonic()

    def is_short(self) -> bool:
        """Say whether the trace, which takes about as much as they do, would take from the disk's reserve.

        It looks a few times a second at most.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return False
        self._looked = now
        size = 0
        for path in self._growing:
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        try:
            return room.spare(self._folder) <= size
        except OSError:
            return False


def beside(folder: Path, recorded: Iterable[Path]) -> str | None:
    """Return a sentence if one of the files or folders ``recorded`` lies on the file system of ``folder``.

    Datasets of one pool, or subvolumes, are file systems of their own here although they share their room.
    """
    with contextlib.suppress(OSError):
        device = folder.stat().st_dev
        for path in recorded:
            with contextlib.suppress(OSError):
                if path.stat().st_dev == device:
                    # A link of /proc leads to the file, whatever name it has in the process's own root.
                    name = path.readlink() if path.is_symlink() else path
                    return (
                        f"the trace is written to the file system of {name}, which is recorded: it takes "
                        "room there, and its writes disturb those recorded; --out on another disk spares that"
                    )
    return None


def opened(pids: Iterable[int], rules: RoleRules) -> Iterator[Path]:
    """Yield the files with a role that processes and their descendants have open now, as links of /proc."""
    for pid in procfs.descendants(pids):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(link.stat().st_mode) and rules.role(str(link.readlink())) is not None:
                        yield link
