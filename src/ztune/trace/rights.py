"""Whose a trace is, for who may not read or change it."""

from __future__ import annotations

import shlex
from pathlib import Path


def owner(path: Path) -> str:
    """Return the name of the user who owns ``path``, or "user 1234" of one without a name. Raises OSError."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def remedy(path: Path) -> str:
    """Return the command that gives ``path``, a trace of somebody else's, to this user, as a clause."""
    return f'`sudo chown -R "$USER" {shlex.quote(str(path))}` makes it yours'
