"""What of files' content is there after a power cut: all that was synced, in the order of what was done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mount_ground import SMALL, Mounted, spec
from mount_libc import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, fallocate

pytestmark = pytest.mark.timeout(240)

OLD, NEW = b"o" * 65536, b"N" * 20000


def undisturbed(**properties: str) -> dict[str, Any]:
    """Return a layout whose transaction groups wait for a sync: what is between two is in the log alone."""
    table = spec(tunables={"zfs_txg_timeout": 300})
    for dataset in table["datasets"]:
        dataset["properties"].update(properties)
    return table


def after_a_cut(mounted: Mounted) -> dict[str, bytes]:
    """Cut the power; return what the files on the dataset with small records hold then."""
    mounted.kill()
    mounted.start()
    return {path.name: path.read_bytes() for path in mounted.places[SMALL].iterdir()}


def shorten(path: Path) -> None:
    os.truncate(path, 4096)


def punch(path: Path) -> None:
    _allocate(path, PUNCH_HOLE | KEEP_SIZE)


def zero(path: Path) -> None:
    _allocate(path, ZERO_RANGE)


def _allocate(path: Path, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    fallocate(fd, mode, 0, 32768)
    os.close(fd)


CHANGES: list[Callable[[Path], None]] = [shorten, punch, zero]


def test_a_synchronous_write_is_replayed_behind_what_came_before(own_mount: Callable[..., Mounted]) -> None:
    mounted = own_mount(undisturbed())
    top = mounted.places[SMALL]
    paths = {change: top / change.__name__ for change in CHANGES}
    for path in paths.values():
        path.write_bytes(OLD)
    mounted.sync()
    for change, path in paths.items():
        fd = os.open(path, os.O_WRONLY | os.O_DSYNC)
        change(path)
        os.pwrite(fd, NEW, 0)
        os.close(fd)
    written = {path.name: path.read_bytes() for path in paths.values()}
    assert all(data.startswith(NEW) for data in written.values())
    assert after_a_cut(mounted) == written
