"""Is this disk free? Only a disk that is empty, and that nobody holds, is ever used."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import labels, mounts
from ztune.units import format_size

_BLKGETSIZE64 = 0x80081272
_BLKRRPART = 0x125F
_BLKZNAME = (2 << 30) | (256 << 16) | (0x12 << 8) | 125  # include/sys/fs/zfs.h


@dataclass(frozen=True, slots=True)
class Disk:
    """A block device, and how to know it again."""

    path: str
    """As it was named."""
    node: str
    """The device node behind it, such as /dev/sdb; may be another after a reboot."""
    number: tuple[int, int]
    size: int
    identity: str
    """What of it survives a reboot: its serial number or world-wide name; a loop device's backing file."""

    @classmethod
    def of(cls, path: str) -> Disk:
        """Look at the device at ``path``.

        Raises:
            InputError: there is none, or it is no block device.
            MissingError: we may not read it.
        """
        try:
            found = Path(path).stat()
        except OSError as error:
            raise InputError(f"disk {path}: {error.strerror}; name a block device") from None
        if not stat.S_ISBLK(found.st_mode):
            raise InputError(f"disk {path}: not a block device")
        node = os.path.realpath(path)
        number = (os.major(found.st_rdev), os.minor(found.st_rdev))
        return cls(path, node, number, _size(node), identity(number))


def _size(node: str) -> int:
    try:
        fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        if os.geteuid() == 0:
            raise MissingError(
                f"disk {node}: not even root may open it here; a container's rules for devices, or a "
                "security module, keep it closed: run on the host itself, or hand the device to the container"
            ) from None
        raise MissingError(f"disk {node}: only root may use it; run as root") from None
    except OSError as error:
        raise InputError(f"disk {node}: can't be opened: {error.strerror}") from None
    try:
        (size,) = struct.unpack("Q", fcntl.ioctl(fd, _BLKGETSIZE64, bytes(8)))
    finally:
        os.close(fd)
    return int(size)


def _sys(number: tuple[int, int]) -> Path:
    return Path(f"/sys/dev/block/{number[0]}:{number[1]}").resolve()


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace").replace("\0", "").strip()
    except OSError:
        return ""


def identity(number: tuple[int, int]) -> str:
    """Return what is known of a device beside its name: one or more of its ids, joined; may be empty."""
    base = _sys(number)
    parts = []
    disk = base.parent if (base / "partition").exists() else base
    for name in ("wwid", "serial", "device/wwid", "device/serial", "dm/uuid", "loop/backing_file"):
        text = " ".join(_read(disk / name).split())
        if text:
            parts.append(text)
    # SCSI: the unit's serial number page, after its header of four bytes.
    try:
        serial = (disk / "device/vpd_pg80").read_bytes()[4:].decode("ascii", errors="replace").strip(" \0")
    except OSError:
        serial = ""
    parts += [serial] if serial else []
    if (base / "partition").exists():
        parts.append("partition " + _read(base / "partition"))
    return " · ".join(dict.fromkeys(parts))


def _family(number: tuple[int, int]) -> list[Path]:
    """Return the device's directory in sysfs and those of its partitions."""
    base = _sys(number)
    try:
        children = sorted(p for p in base.iterdir() if (p / "partition").exists())
    except OSError:
        children = []
    return [base, *children]


def require_free(path: str) -> Disk:
    """Return the disk at ``path`` after making sure that nobody uses it and nothing is on it.

    Raises:
        InputError: what it is used for, or what lies on it; nothing was changed.
        MissingError: we may not look.
    """
    disk = Disk.of(path)
    family = _family(disk.number)
    numbers = {_read(p / "dev") for p in family}
    for mount in mounts.table():
        if f"{mount.device[0]}:{mount.device[1]}" in numbers or os.path.realpath(mount.source) == disk.node:
            raise InputError(f"disk {path} is in use: {mount.source} is mounted at {mount.point}")
    try:
        swaps = Path("/proc/swaps").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        swaps = []
    names = {f"/dev/{p.name}" for p in family}
    for line in swaps:
        if line.split() and os.path.realpath(line.split()[0]) in names:
            raise InputError(f"disk {path} is in use: {line.split()[0]} is a swap area")
    for part in family:
        try:
            holders = sorted(p.name for p in (part / "holders").iterdir())
        except OSError:
            holders = []
        if holders:
            raise InputError(f"disk {path} is in use: {', '.join(holders)} holds {part.name}")
    if _read(family[0] / "ro") == "1":
        raise InputError(f"disk {path} is read-only")
    if len(family) > 1:
        raise InputError(f"disk {path} has a partition table; name an empty disk")
    fd = open_exclusive(disk)
    try:
        what = labels.signature(fd, disk.size)
        if what:
            raise InputError(f"disk {path} is not empty: it holds {what}; name an empty disk")
        at = labels.first_data(fd, disk.size)
        if at is not None:
            raise InputError(
                f"disk {path} is not empty: it holds data that ztune does not know, at byte {at}; "
                "if nobody needs it, overwrite its first and last 16 MiB with zeros"
            )
    finally:
        os.close(fd)
    if disk.size < 64 << 20:
        raise InputError(f"disk {path} has {format_size(disk.size)}; ZFS takes disks of 64M and more")
    return disk


def open_exclusive(disk: Disk, *, write: bool = False, seconds: float = 0.0) -> int:
    """Open a disk so that the kernel vouches that nobody else holds it: no mount, pool, RAID or swap.

    Args:
        disk: which.
        write: for writing too.
        seconds: how long to wait for somebody to let go, such as udev's own look at it.

    Raises:
        InputError: somebody holds it; the sentence says who, where that can be read.
    """
    flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_EXCL | os.O_CLOEXEC
    deadline = time.monotonic() + seconds
    while True:
        try:
            return os.open(disk.node, flags)
        except OSError as error:
            if error.errno == errno.EBUSY and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            if error.errno != errno.EBUSY:
                raise InputError(f"disk {disk.path}: can't be opened: {error.strerror}") from None
        break
    fd = os.open(disk.node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        what = labels.signature(fd, disk.size)
    finally:
        os.close(fd)
    raise InputError(
        f"disk {disk.path} is in use: the kernel holds it{f', and it carries {what}' if what else ''}"
    )


def require_different(disks: list[Disk]) -> None:
    """Raise InputError when two of ``disks`` are the same device, or a disk and its own partition."""
    seen: dict[Path, str] = {}
    for disk in disks:
        base = _sys(disk.number)
        for other, name in seen.items():
            if base == other or base in other.parents or other in base.parents:
                raise InputError(f"disks {name} and {disk.path} are the same device; name different ones")
        seen[base] = disk.path


def wipe_edges(fd: int, size: int) -> None:
    """Write zeros over the head and tail of a device or file: all that says what it was."""
    zeros = bytes(1 << 20)
    for start, end in ((0, min(size, labels.HEAD)), (max(labels.HEAD, size - labels.TAIL), size)):
        at = start
        while at < end:
            at += os.pwrite(fd, zeros[: min(len(zeros), end - at)], at)
    os.fsync(fd)


def reread_partitions(fd: int) -> None:
    """Make the kernel forget partitions that are no more; a partition or a loop device has none to forget."""
    for _ in range(20):
        try:
            fcntl.ioctl(fd, _BLKRRPART)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
            time.sleep(0.1)


def volume_node(name: str, seconds: float) -> str:
    """Return the device node of the ZFS volume ``name``, such as /dev/zd0, asking the kernel and not udev.

    Raises ZtuneError if it does not appear within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        for entry in sorted(p.name for p in Path("/sys/block").iterdir() if p.name.startswith("zd")):
            try:
                fd = os.open(f"/dev/{entry}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                found = fcntl.ioctl(fd, _BLKZNAME, bytes(256))
            except OSError:
                continue
            finally:
                os.close(fd)
            if found.partition(b"\0")[0].decode() == name:
                return f"/dev/{entry}"
        if time.monotonic() > deadline:
            raise ZtuneError(f"volume {name}: its device did not appear within {seconds:.0f} s")
        time.sleep(0.05)
