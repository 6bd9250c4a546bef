"""Where trials keep what they believe, and where other users pass.

``STATE/state/RUN/TRIAL`` holds a trial's journal and key and is closed to others; ``STATE/places/RUN/TRIAL``
holds its mount points and work directories, through which a database's own user passes, and nothing there is
believed. Both are made and checked by ``ztune.onhost.host.own_directory``.

Before, one directory was both, ``STATE/RUN/TRIAL``: what older versions left so is still found and cleaned.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ztune.onhost.host.own_directory import NotOursError, OwnDirectory

BELIEVED, PLACES = "state", "places"
LOCK = "lock"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a run or a trial may be called."""


@dataclass(frozen=True, slots=True)
class RunHome:
    """The directories of one run."""

    state: Path
    run: str
    old: bool = False
    """Whether an older version made it."""

    @property
    def believed(self) -> Path:
        """The directory with the lock and a directory for each trial."""
        return (self.state if self.old else self.state / BELIEVED) / self.run

    @property
    def places(self) -> Path:
        """The directory with one for each trial's mount points."""
        return (self.state if self.old else self.state / PLACES) / self.run


def runs(state: Path) -> list[RunHome]:
    """Return the runs that have a directory in STATE, those of older versions first. What others could have
    written is among them: whoever opens it is told. Raises NotOursError, OSError.
    """
    return [
        RunHome(state, name, old)
        for top, old in ((state, True), (state / BELIEVED, False))
        for name in _directories(top)
        if not (old and name in (BELIEVED, PLACES)) and _is_run(top / name)
    ]


def trials(run: OwnDirectory) -> list[str]:
    """Return the trials that have a directory in a run's, oldest name first."""
    found = {name: run.look(name) for name in run.names() if ID.fullmatch(name)}
    return [name for name, about in found.items() if about is not None and stat.S_ISDIR(about.st_mode)]


def _directories(path: Path) -> list[str]:
    try:
        with OwnDirectory.open(path) as top:
            return trials(top)
    except FileNotFoundError:
        return []


def _is_run(path: Path) -> bool:
    try:
        with OwnDirectory.open(path) as found:
            names = found.names()
    except NotOursError:
        return True
    except FileNotFoundError:
        return False
    # Empty: killed between the directory and the lock.
    return not names or LOCK in names
