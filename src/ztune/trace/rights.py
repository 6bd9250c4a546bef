"""Whose a trace is, for who may not read or change it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ztune import files
from ztune.errors import InputError
from ztune.onhost.host import own_directory


def owner(path: Path) -> str:
    """Return the name of the user who owns ``path``, or "user 1234" of one without a name. Raises OSError."""
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def remedy(path: Path) -> str:
    """Return the command that gives ``path``, a trace of somebody else's, to this user, as a clause."""
    return f'`sudo chown -R "$USER" {shlex.quote(str(path))}` makes it yours'


def require_closed(folder: Path, remedy: str) -> None:
    """Have nobody able to make root write elsewhere than in ``folder``, by a link or by a swap of folders.

    Each level of it has to be root's, or that of the user who called sudo, and written by nobody else, but
    for sticky ones such as /tmp. Who is not root could lose no more than their own files. ``remedy``: what
    would be right, for the sentence.

    Raises:
        InputError: somebody else can change what lies there.
        OSError: it is missing, or can't be looked at.
    """
    if os.geteuid() != 0:
        return
    try:
        own_directory.check(Path.cwd() / folder, links=True, trusted=files.callers())
    except own_directory.NotOursError as error:
        raise InputError(f"{error.fault}, so root writes no trace there; {remedy}") from None
