"""Room: what does not fit is refused, and what fills a disk all the same is stopped in time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ztune.errors import InputError
from ztune.onhost.host import interrupt, room
from ztune.onhost.host.interrupt import signals_as_interrupt
from ztune.onhost.host.room import NoRoomError, RoomWatch

GIB = 1 << 30


class Disk:
    """The file system of everything, as ``shutil.disk_usage`` has it."""

    def __init__(self) -> None:
        self.total, self.free = 100 * GIB, 50 * GIB

    def __call__(self, _path: Path) -> Any:
        return SimpleNamespace(total=self.total, used=self.total - self.free, free=self.free)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(shutil, "disk_usage", found)
    yield found


def test_the_reserve() -> None:
    assert room.reserve(100 * GIB) == 2 * GIB
    assert room.reserve(64 << 20) == int(64 * 0.05 * 2**20)


def test_what_fits_is_let_through_and_what_does_not_is_refused(disk: Disk, tmp_path: Path) -> None:
    missing = tmp_path / "not" / "yet"
    room.require("job x", [(tmp_path, 24 * GIB), (missing, 24 * GIB)], "look elsewhere")
    with pytest.raises(InputError) as refused:
        # On one file system they add up.
        room.require("job x", [(tmp_path, 24 * GIB), (missing, 25 * GIB)], "look elsewhere")
    assert str(refused.value) == (
        f"job x: about 49.0 GiB are needed below {tmp_path}, where 50.0 GiB are free, 2.0 GiB of which stay "
        "so; ask for less data, or look elsewhere"
    )
    room.require("job x", [], "look elsewhere")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 MiB"),
        (5 << 20, "5.0 MiB"),
        (GIB, "1.0 GiB"),
        (1 << 40, "1.0 TiB"),
        (10**30, "867361737988.4 EiB"),
    ],
)
def test_sizes_in_sentences(size: int, text: str) -> None:
    assert room.about(size) == text


def _work(disk: Disk) -> None:
    """Write for as long as nobody stops it."""
    disk.free = 3 * GIB
    for _ in range(600):
        time.sleep(0.1)
        disk.free = max(0, disk.free - GIB // 4)


def test_what_fills_the_disk_is_stopped_before_the_reserve_is_used(disk: Disk, tmp_path: Path) -> None:
    with (
        pytest.raises(NoRoomError) as stopped,
        signals_as_interrupt(),
        RoomWatch("the load", lambda: [tmp_path]),
    ):
        _work(disk)
    assert "the load was stopped, and what it wrote is removed" in str(stopped.value)
    assert f"of 100.0 GiB are left below {tmp_path}, and 2.0 GiB stay free" in str(stopped.value)
    assert 0 < disk.free < 2 * GIB


def test_a_disk_that_is_full_is_no_request_of_the_users(disk: Disk, tmp_path: Path) -> None:
    with signals_as_interrupt():
        with pytest.raises(NoRoomError), RoomWatch("the load", lambda: [tmp_path]):
            _work(disk)
        assert not interrupt.asked()
        interrupt.check()


def test_an_error_that_the_stop_causes_is_not_what_is_said(disk: Disk, tmp_path: Path) -> None:
    def fails() -> None:
        try:
            _work(disk)
        finally:
            raise InputError("the client was cut")

    with pytest.raises(NoRoomError), signals_as_interrupt(), RoomWatch("the load", lambda: [tmp_path]):
        fails()


def test_with_room_nothing_happens(disk: Disk, tmp_path: Path) -> None:
    with signals_as_interrupt(), RoomWatch("the load", lambda: [tmp_path, tmp_path / "missing"]):
        time.sleep(0.6)
