"""ext4 and xfs: baselines on the same disks, or on a ZFS volume."""

from __future__ import annotations

import ctypes
import os
import uuid
from pathlib import Path

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.zfs import Commands
from ztune.units import format_size

_LEAST = {"ext4": 16 << 20, "xfs": 300 << 20}  # mkfs.xfs(8): 300 MiB since xfsprogs 5.19


def new_identity() -> tuple[str, str]:
    """Return a UUID and a label (at most 12 characters, xfs's limit) for a file system to be made."""
    own = uuid.uuid4()
    return str(own), "zt" + own.hex[:10]


def check_size(type: str, size: int, where: str) -> None:
    """Raise InputError when a device of ``size`` bytes is too small for the file system."""
    if size < _LEAST[type]:
        raise InputError(
            f"{where} has {format_size(size)}; {type} needs at least {format_size(_LEAST[type])}"
        )


def make(run: Commands, type: str, node: str, own: str, label: str) -> None:
    """Make a file system on an empty device. Never with force: both programs refuse a device with content.

    Nothing is left to be initialised in the background, which would be measured as the database's.
    """
    if type == "ext4":
        argv = ["mkfs.ext4", "-q", "-U", own, "-L", label]
        argv += ["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", node]
    else:
        argv = ["mkfs.xfs", "-q", "-K", "-m", f"uuid={own}", "-L", label, node]
    run(argv, timeout=600)


def mount(run: Commands, type: str, node: str, point: Path, dilation: float = 1.0) -> None:
    """Mount the file system on ``node`` at the existing directory ``point``, without access times, as ZFS's.

    ``dilation``: what ext4's interval between commits is multiplied by.
    """
    options = ["noatime"]
    if type == "ext4":
        options.append("noinit_itable")
        if dilation != 1:
            options.append(f"commit={max(1, round(5 * dilation))}")  # ext4(5): 5 s unless told otherwise
    run(["mount", "-t", type, "-o", ",".join(options), node, str(point)], timeout=300)


def sync(path: Path) -> None:
    """Write everything of the file system at ``path`` to its disk: syncfs(2). Raises ZtuneError."""
    libc = ctypes.CDLL(None, use_errno=True)
    # A signal between open and try would leave the file system busy; syncfs waits in the kernel anyway.
    with uninterrupted():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if libc.syncfs(fd) != 0:
                raise ZtuneError(f"{path}: syncfs failed: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(fd)


def drop_caches() -> None:
    """Empty the page cache, and the dentry and inode caches, of the whole host."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError as error:
        raise ZtuneError(f"the page cache can't be emptied: {error.strerror}; run as root") from None
