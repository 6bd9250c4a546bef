"""What a user may name to be measured, and whether it may be written to."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ztune.disk.measure import LEAST, DiskKind
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import devices
from ztune.units import format_size

NBD = "nbd+unix://"


@dataclass(frozen=True)
class DiskUnderTest:
    """What fio is given."""

    path: str
    size: int
    kind: DiskKind | None
    """As the kernel says; None where it can't know."""
    what: str


def rotational(number: int) -> DiskKind | None:
    """Return what the kernel says of the block device with this st_dev or st_rdev; None if it is none."""
    base = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for place in (base, base.resolve().parent):
        try:
            return "hdd" if (place / "queue/rotational").read_text().strip() == "1" else "flash"
        except OSError:
            continue
    return None


@contextmanager
def opened(
    name: str, *, write: bool, yes: bool, size: int | None, say: Callable[[str], object]
) -> Iterator[DiskUnderTest]:
    """Check ``name`` and yield what fio shall use; a scratch file is gone at the end.

    ``say`` is told what takes long.

    Raises InputError, MissingError.
    """
    if name.startswith(NBD):
        if write:
            raise InputError(
                f"--write would destroy what {name} serves, and ztune can't see whether it is empty; name a "
                "directory or an empty device on that disk"
            )
        if size is None:
            raise InputError(f"{name}: --size is needed, the disk's own")
        yield DiskUnderTest(name, size, None, "NBD server")
        return
    path = Path(name)
    try:
        found = path.stat()
    except FileNotFoundError:
        hint = "a directory, with --write, gets a scratch file" if write else "name a file or a device"
        raise InputError(f"{name} does not exist; {hint}") from None
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from None
    if stat.S_ISBLK(found.st_mode):
        if size is not None:
            raise InputError("--size is for scratch files; a device is measured whole")
        yield _device(name, found.st_rdev, write, yes)
    elif stat.S_ISDIR(found.st_mode):
        if not write:
            raise InputError(f"{name} is a directory: --write allows a scratch file in it, else name a file")
        with _scratch(path, size or 8 * LEAST, say) as target:
            yield target
    elif stat.S_ISREG(found.st_mode):
        if size is not None:
            raise InputError("--size is for scratch files; a file is measured whole")
        yield _file(path, found, write)
    else:
        raise InputError(f"{name} is neither a file, a directory nor a block device")


def _device(name: str, number: int, write: bool, yes: bool) -> DiskUnderTest:
    disk = devices.require_free(name) if write else devices.Disk.of(name)
    _large(name, disk.size)
    if write and not yes:
        raise InputError(
            f"--write overwrites all of {name} ({format_size(disk.size)}, "
            f"{disk.identity or 'no serial number'}); it is empty and unused; "
            "--yes if that is the disk you mean"
        )
    return DiskUnderTest(disk.node, disk.size, rotational(number), "device")


def _file(path: Path, found: os.stat_result, write: bool) -> DiskUnderTest:
    if write:
        raise InputError(
            f"--write would destroy what {path} holds; name its directory: a scratch file is made there"
        )
    if not os.access(path, os.R_OK):
        raise MissingError(f"{path} can't be read by this user")
    _large(str(path), found.st_size)
    if found.st_blocks * 512 < 0.9 * found.st_size:
        raise InputError(
            f"{path} has holes: of {format_size(found.st_size)} only "
            f"{found.st_blocks * 512 / found.st_size:.0%} are on the disk (sparse or "
            "compressed); reading it would not measure the disk"
        )
    return DiskUnderTest(str(path), found.st_size, rotational(found.st_dev), "file")


def _large(name: str, size: int) -> None:
    if size < LEAST:
        raise InputError(
            f"{name} has {format_size(size)}: too small, it fits in the disk's own cache; "
            f"{format_size(LEAST)} is the least"
        )


@contextmanager
def _scratch(folder: Path, size: int, say: Callable[[str], object]) -> Iterator[DiskUnderTest]:
    _large("--size: the scratch file", size)
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < size + LEAST // 4:
        raise InputError(
            f"{folder} has {room.f_bavail * room.f_frsize / 2**30:.1f} GiB free, too little for a "
            f"scratch file of {format_size(size)}; --size names a smaller one"
        )
    try:
        handle, name = tempfile.mkstemp(prefix=".ztune-disk-", dir=folder)
    except OSError as error:
        raise MissingError(f"{folder}: no file can be made there: {error.strerror}") from None
    say("writing the scratch file")
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            # Written, not only allocated: what was never written is not read from the disk.
            data = os.urandom(1 << 20)
            try:
                for at in range(0, size, len(data)):
                    file.write(data[: size - at])
                os.fsync(file.fileno())
            except OSError as error:
                raise ZtuneError(f"{folder}: the scratch file can't be written: {error.strerror}") from None
        yield DiskUnderTest(name, size, rotational(folder.stat().st_dev), "scratch file")
    finally:
        Path(name).unlink(missing_ok=True)
