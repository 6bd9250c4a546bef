"""What a machine lacks to mount a layout's datasets with ``ztune-mount``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ztune import native
from ztune.errors import MissingError
from ztune.packages import install_command

DEVICE = Path("/dev/fuse")
CONF = Path("/etc/fuse.conf")


def check() -> Path:
    """Return the program, on a machine that lets us mount with it. Raises MissingError elsewhere."""
    path = native.MOUNT.find()
    reason = lacking()
    if reason is not None:
        raise MissingError(f"{reason[0]}: `{reason[1]}`")
    return path


def lacking(device: Path = DEVICE, root: bool | None = None) -> tuple[str, str] | None:
    """Return what keeps us from mounting with FUSE, and the command that mends it; None if nothing does."""
    root = os.geteuid() == 0 if root is None else root
    if not device.exists():
        return f"the kernel shows no {device} (a container has to be given it)", "sudo modprobe fuse"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"this user may not open {device}", "sudo ztune …"
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
