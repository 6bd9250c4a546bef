"""What a machine lacks to mount a layout's datasets with ``ztune-mount``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ztune import native
from ztune.errors import MissingError
from ztune.native import openzfs
from ztune.packages import install_command, sudo_ztune

DEVICE = Path("/dev/fuse")
CONF = Path("/etc/fuse.conf")


@dataclass(frozen=True)
class MountProgram:
    """A program that runs, its version, and that of its OpenZFS."""

    path: Path
    version: str
    openzfs: str


def check(wanted: str | None = None) -> Path:
    """Return the program, on a machine that lets us mount with it. ``wanted``: with which OpenZFS, a version
    or a series; None for this machine's own.

    Raises MissingError elsewhere, and where it is not there; InputError where no such OpenZFS can be had.
    """
    path = native.MOUNT.find() if wanted is None else _of_version(wanted)
    reason = lacking()
    if reason is not None:
        raise MissingError(f"{reason[0]}: `{reason[1]}`")
    return path


def _of_version(wanted: str) -> Path:
    try:
        own: MountProgram | None = ask(native.MOUNT.find())
    except MissingError:
        own = None
    library = openzfs.chosen(wanted, own.openzfs if own else "", "mount")
    return native.MOUNT.against(library).find() if library else own.path if own else native.MOUNT.find()


def ask(path: Path) -> MountProgram:
    """Return what the program at ``path`` says of itself. Raises MissingError if it doesn't run."""
    try:
        done = subprocess.run([path, "version"], capture_output=True, text=True, timeout=60, check=False)
        answer = json.loads(done.stdout)
        return MountProgram(path, str(answer["version"]), str(answer["openzfs"]))
    except OSError as error:
        raise MissingError(f"{path}: can't be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"{path}: does not say its version") from None
    except (ValueError, KeyError, TypeError):
        words = done.stderr.strip().splitlines()
        raise MissingError(
            f"{path}: does not say its version{': ' + words[-1] if words else ''}; `make setup` builds it"
        ) from None


def lacking(device: Path = DEVICE, root: bool | None = None) -> tuple[str, str] | None:
    """Return what keeps us from mounting with FUSE, and the command that mends it; None if nothing does."""
    root = os.geteuid() == 0 if root is None else root
    if not device.exists():
        return f"the kernel shows no {device} (a container has to be given it)", "sudo modprobe fuse"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"this user may not open {device}", sudo_ztune()
    if not root and shutil.which("fusermount3") is None:
        return "mounting without root takes fusermount3", install_command("fuse")
    return None


def others_may_enter(conf: Path = CONF, root: bool | None = None) -> bool:
    """Whether other users than ours can be let into a mount: a database often runs as one of its own."""
    if os.geteuid() == 0 if root is None else root:
        return True
    try:
        lines = conf.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
