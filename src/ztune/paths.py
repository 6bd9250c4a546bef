"""Where ztune keeps its state."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from ztune.errors import InputError
from ztune.onhost.host import own_directory

SCRATCH = "scratch"
GUEST = "lab-"
"""How the names in ``scratch`` begin of what the lab has there: of its guests and of their disks."""
ENGINE = "trial-"
"""How those begin of the folders of engines, whose pools may lie there."""
LAB, BUILD = "cache/lab", "build-"
"""Where the lab is, and how the names there begin of the folders that it is built in."""


def home() -> Path:
    """Return the state directory, made if missing.

    ``$ZTUNE_HOME``, else ``$XDG_STATE_HOME/ztune``, else ``~/.local/state/ztune`` (elsewhere than on Linux
    what platformdirs says).
    Raises InputError where it can't be made, and where somebody else could write it: programs that ztune
    runs, and what it deletes, are looked up there. It need not be writable: what is there can be read all
    the same.
    """
    own = os.environ.get("ZTUNE_HOME")
    path = Path(own) if own else platformdirs.user_state_path("ztune")
    try:
        # The engine runs in a folder of its own: a relative path would mean something else there.
        path = own_directory.real(Path.cwd() / path)
        # A database's own user passes here to programs that were fetched for it.
        own_directory.ensure(path, own_directory.PRIVATE if os.geteuid() else own_directory.PASSABLE)
    except OSError as error:
        raise InputError(
            f"the state directory {path} can't be made: {error.strerror}; "
            "set ZTUNE_HOME to one that can be made"
        ) from None
    except own_directory.NotOursError as error:
        raise InputError(f"the state directory {path} can't be used: {error}; or set ZTUNE_HOME") from None
    return path


def below(parent: Path, name: str, mode: int = own_directory.PASSABLE) -> Path:
    """Return a directory of ours in ``parent``, made if missing.

    Raises InputError where it can't be made, or others can write it.
    """
    try:
        return own_directory.ensure(parent / name, mode)
    except OSError as error:
        raise InputError(
            f"the state directory {parent} can't be written: {error.strerror}; "
            "make room there, or set ZTUNE_HOME to one that can be written"
        ) from None


def database() -> Path:
    """Return the path of the results database."""
    return home() / "ztune.db"


def cache() -> Path:
    """Return the directory of what can be made again from a trace: operation files and sample blocks."""
    return below(home(), "cache")


def scratch() -> Path:
    """Return the directory for what lives no longer than a trial."""
    return below(home(), SCRATCH)


def traces() -> Path:
    """Return the directory of the traces that ``ztune tune`` recorded: its runs are repeated from them."""
    return private(home() / "traces")


def private(path: Path) -> Path:
    """Make ``path`` a directory of this user's alone, closed if it was made open before; return it."""
    below(path.parent, path.name, own_directory.PRIVATE)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(own_directory.PRIVATE)
    return path


def folder(name: str) -> Path:
    """Return the directory ``name`` of the state directory, to read: it is made ``private`` if it is there.

    It is not made: a state directory that can't be written can be read all the same.
    """
    path = home() / name
    return private(path) if path.exists() else path


def lab() -> Path:
    """Return the directory of the lab: images of guests, their saved states, what they are built from."""
    return below(cache(), "lab")


def mounts() -> Path:
    """Return the directory of what is known of mounts, and of their disks where no other place was named."""
    return below(home(), "mounts")
