"""Mounts of a process's own: what it mounts is in no other process's copy."""

from __future__ import annotations

import ctypes
import os

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # mount_namespaces(7)


def take() -> None:
    """Give this thread, and what it starts, mounts of their own where that is permitted.

    Another process that does so meanwhile, as tests beside this one do, would take a copy of ours with it,
    and a copy keeps a loop device in use after ours is unmounted.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "mounts of its own", "/")
