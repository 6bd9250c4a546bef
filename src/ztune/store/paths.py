"""Where ztune keeps its state."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ztune.errors import InputError


def home() -> Path:
    """Return the state directory, made if missing.

    ``$ZTUNE_HOME``, else ``$XDG_STATE_HOME/ztune``, else ``~/.local/state/ztune``.
    Raises InputError where it cannot be made or written.
    """
    own, xdg = os.environ.get("ZTUNE_HOME"), os.environ.get("XDG_STATE_HOME")
    path = Path(own) if own else (Path(xdg) / "ztune" if xdg else Path.home() / ".local" / "state" / "ztune")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the state directory {path} cannot be made: {error.strerror}; set ZTUNE_HOME to one that can"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"the state directory {path} cannot be written; set ZTUNE_HOME to one that can")
    # The engine runs in a folder of its own: a relative path would mean something else there.
    return path.resolve()


def database() -> Path:
    """Return the path of the results database."""
    return home() / "ztune.db"


def cache() -> Path:
    """Return the directory of what can be made again from a trace: operation files and sample blocks."""
    path = home() / "cache"
    path.mkdir(exist_ok=True)
    return path


def scratch() -> Path:
    """Return the directory for what lives no longer than a trial."""
    path = home() / "scratch"
    path.mkdir(exist_ok=True)
    return path


def traces() -> Path:
    """Return the directory of the traces that ``ztune tune`` recorded: its runs are repeated from them."""
    return private(home() / "traces")


def private(path: Path) -> Path:
    """Make ``path`` a directory of this user's alone, closed if it was made open before; return it."""
    path.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)
    return path


def lab() -> Path:
    """Return the directory of the lab: images of guests, their saved states, what they are built from."""
    path = cache() / "lab"
    path.mkdir(exist_ok=True)
    return path


def mounts() -> Path:
    """Return the directory of what is known of mounts, and of their disks where no other place was named."""
    path = home() / "mounts"
    path.mkdir(exist_ok=True)
    return path
