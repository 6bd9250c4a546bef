"""Where ztune keeps its state."""

from __future__ import annotations

import os
from pathlib import Path

from ztune.errors import InputError


def home() -> Path:
    """Return the state directory, made if missing.

    ``$ZTUNE_HOME``, else ``$XDG_STATE_HOME/ztune``, else ``~/.local/state/ztune``.
    Raises InputError where it cannot be made. It need not be writable: what is there can be read all the
    same.
    """
    own, xdg = os.environ.get("ZTUNE_HOME"), os.environ.get("XDG_STATE_HOME")
    path = Path(own) if own else (Path(xdg) / "ztune" if xdg else Path.home() / ".local" / "state" / "ztune")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the state directory {path} cannot be made: {error.strerror}; set ZTUNE_HOME to one that can"
        ) from None
    # The engine runs in a folder of its own: a relative path would mean something else there.
    return path.resolve()


def _folder(above: Path, name: str) -> Path:
    """Return a directory in the state directory, made if missing. Raises InputError if it can't be."""
    path = above / name
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the state directory {above} cannot be written: {error.strerror}; make room there, or set "
            "ZTUNE_HOME to one that can"
        ) from None
    return path


def database() -> Path:
    """Return the path of the results database."""
    return home() / "ztune.db"


def cache() -> Path:
    """Return the directory of what can be made again from a trace: operation files and sample blocks."""
    return _folder(home(), "cache")


def scratch() -> Path:
    """Return the directory for what lives no longer than a trial."""
    return _folder(home(), "scratch")


def traces() -> Path:
    """Return the directory of the traces that ``ztune tune`` recorded: its runs are repeated from them."""
    return _folder(home(), "traces")


def lab() -> Path:
    """Return the directory of the lab: images of guests, their saved states, what they are built from."""
    return _folder(cache(), "lab")


def mounts() -> Path:
    """Return the directory of what is known of mounts, and of their disks where no other place was named."""
    return _folder(home(), "mounts")
