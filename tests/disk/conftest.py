"""What the tests of shaped disks share: the programs under sanitizers, a disk that is fast."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disk_started import SIZE, Start
from made import make

from ztune.disk import server
from ztune.study.profile import FlashProfile, HddProfile

SOURCE = Path(__file__).parents[2] / "disk"


@pytest.fixture(scope="session")
def checked() -> Path:
    """The folder of the programs that run under the address and undefined-behaviour sanitizers."""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("no C compiler to build the disk with")
    make(SOURCE, "check")
    return SOURCE / "build"


@pytest.fixture
def flash() -> FlashProfile:
    return FlashProfile(
        name="quick",
        kind="flash",
        size=SIZE,
        read_mb_s=5000,
        write_mb_s=5000,
        channels=4,
        read_us=20,
        write_us=20,
        flush_us=50,
        cache_mb=16,
    )


@pytest.fixture
def hdd() -> HddProfile:
    return HddProfile(
        name="turns",
        kind="hdd",
        size=SIZE,
        read_mb_s=2000,
        write_mb_s=2000,
        rpm=60000,
        seek_track_ms=0.1,
        seek_avg_ms=0.5,
        seek_full_ms=1.0,
        overhead_us=10,
        cache_mb=16,
    )


@pytest.fixture(params=["flash", "hdd"])
def profile(request: pytest.FixtureRequest) -> FlashProfile | HddProfile:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, FlashProfile | HddProfile)
    return found


@pytest.fixture
def start(checked: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts checked servers; the sanitizers' complaints are errors at their end."""
    running: list[server.DiskServer] = []

    def begin(
        profile: FlashProfile | HddProfile, size: int | None = None, **options: Any
    ) -> server.DiskServer:
        name = f"d{len(running)}"
        disk = server.start(
            profile,
            size,
            options.pop("backing", tmp_path / f"{name}.img"),
            tmp_path / name,
            program=checked / "ztune-disk-checked",
            **options,
        )
        running.append(disk)
        return disk

    yield begin
    for disk in running:
        disk.stop()
