"""A saved state: a database after its load and an orderly stop, one archive for each role.

Archives and not trees: a cluster has a thousand small files, and a guest that reads each through the host's
share needs five minutes for what it reads as one file in ten seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.onhost.host.own_directory import PRIVATE
from ztune.onhost.trial.journal import Journal

MARKER = ".ztune-saved.json"
"""Beside the archives: what the state is of."""
FORMAT, VERSION = "ztune-saved", 2
_TAR = ("tar", "--sparse", "--numeric-owner", "--blocking-factor=2048")


def archive(folder: Path, role: str) -> Path:
    """Return the file that holds ``role`` in the saved state ``folder``."""
    return folder / f"{role}.tar"


def begin(journal: Journal, folder: Path, **about: Any) -> None:
    """Make the new directory ``folder`` of a state that is not whole yet, this user's alone, journalled so
    that what a killed trial left of it goes; ``about``: as ``mark`` takes it, but for the token.

    Raises OSError, as ``mark`` does.
    """
    journal.make("saved", "saved", path=str(folder))
    folder.mkdir(mode=PRIVATE)  # there may be content of the user's in it
    made = folder.lstat()
    journal.note("saved", inode=[made.st_dev, made.st_ino])
    mark(folder, token=journal.token, **about)


def mark(
    folder: Path,
    *,
    token: str,
    job: str,
    params: Mapping[str, Any],
    sizes: Mapping[str, int],
    environment: str,
) -> None:
    """Write what the state in ``folder`` is of; ``sizes`` are bytes by role, ``token`` is its maker's."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "token": token,
        "job": job,
        "params": dict(params),
        "bytes": dict(sizes),
        "environment": environment,
    }
    path = folder / MARKER
    path.write_text(json.dumps(about), encoding="utf-8")
    path.chmod(0o644)  # whatever the umask: one that others can write is not believed


def pack(place: Path, folder: Path, role: str) -> list[str]:
    """Return the command that saves what is in ``place``: owners, modes, links and holes as they are."""
    return [*_TAR, "--create", f"--file={archive(folder, role)}", f"--directory={place}", "."]


def unpack(folder: Path, role: str, place: Path) -> list[str]:
    """Return the command that puts ``role`` of a saved state into the directory ``place``."""
    return [
        *_TAR,
        "--extract",
        "--preserve-permissions",
        f"--file={archive(folder, role)}",
        f"--directory={place}",
    ]
