"""``ztune mount`` with OpenZFS itself: what was written is there again, after a clean end and after a cut."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import mount_libc
import pytest
from mount_commands import CODE, bad, end_all, fuse_problem, good, ztune

from ztune import native
from ztune.onhost.host import mounted
from ztune.onhost.host.mounted import Mount, MountError, MountOptions
from ztune.places.engine_spec import mount_spec
from ztune.runs.asked import layout_of

INSTANT = MountOptions(disks="instant")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return where to mount; the state directory is the test's own."""
    reason = fuse_problem()
    if reason is not None:
        pytest.skip(reason)
    try:
        native.MOUNT.find()
    except Exception as error:
        pytest.skip(str(error))
    # Short, as a mount's socket lies below: a path of one has at most 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="h-"))
    monkeypatch.setenv("ZTUNE_HOME", str(home))
    yield tmp_path / "m"
    for folder in (tmp_path, home):
        end_all(folder)
    shutil.rmtree(home)


def spec_of(profile: str | None = None) -> dict[str, object]:
    study, layout = layout_of("postgres-oltp", None, profile, None)
    return mount_spec(study, layout, 1)


def begin(folder: Path, options: MountOptions = INSTANT, spec: dict[str, object] | None = None) -> Mount:
    places = {"tank/data": folder / "m" / "data", "tank/wal": folder / "m" / "wal"}
    return Mount.start(native.MOUNT.find(), spec or spec_of(), folder / "s", places, options)


def write(path: Path, data: bytes, sync: bool = True) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_what_was_written_is_there_again(place: Path) -> None:
    good("mount", "postgres-oltp", place, "--disks", "instant")
    data = os.urandom(300_000)
    write(place / "data" / "table", data, sync=False)
    write(place / "wal" / "segment", b"log")
    os.chown(place / "data", 65534, 65534)
    assert (place / "data").stat().st_dev != (place / "wal").stat().st_dev
    assert os.statvfs(place / "data").f_blocks * os.statvfs(place / "data").f_frsize > 1 << 40
    stats = json.loads(good("mount", "--stats", place, "--json"))
    assert stats["causes"]["zil"]["writes"] > 0 and stats["datasets"][1]["commits"] >= 1
    assert "tank/wal" in good("mount", "--stats", place)
    good("umount", place)
    assert not place.exists()

    again = json.loads(good("mount", "postgres-oltp", place, "--cache", "lazy", "--page-cache", "--json"))
    assert again["imported"] is True and again["replayed"] == 0 and again["page_cache"] is True
    assert (place / "data" / "table").read_bytes() == data
    assert (place / "wal" / "segment").read_bytes() == b"log"
    assert (place / "data").stat().st_uid == 65534
    assert "holds" not in bad(2, "mount", "postgres-oltp", place)
    good("umount", "--destroy", place)
    assert "Nothing is mounted" in good("mount", "--list")


def test_after_a_power_cut_what_was_synced_is_there(place: Path) -> None:
    pid = json.loads(good("mount", "postgres-oltp", place, "--disks", "instant", "--json"))["pid"]
    for number in range(20):
        write(place / "data" / f"file{number}", bytes([number]) * 9000)
    os.kill(pid, signal.SIGKILL)
    while not mounted.dead(place / "data"):
        time.sleep(0.01)
    [shown] = json.loads(good("mount", "--list", "--json"))
    assert shown["state"] == "dead"
    again = json.loads(good("mount", "postgres-oltp", place, "--disks", "instant", "--json"))
    assert again["replayed"] >= 20
    for number in range(20):
        assert (place / "data" / f"file{number}").read_bytes() == bytes([number]) * 9000
    good("umount", "--destroy", place)


def test_the_signal_of_the_foreground_is_a_clean_end(place: Path) -> None:
    arguments = ["mount", "postgres-oltp", str(place), "--foreground", "--disks", "instant"]
    process = subprocess.Popen([sys.executable, "-c", CODE, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "--destroy deletes" not in process.stdout.readline():
        assert process.poll() is None
    write(place / "wal" / "segment", b"log", sync=False)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 0
    good("mount", "postgres-oltp", place, "--disks", "instant")
    assert (place / "wal" / "segment").read_bytes() == b"log"
    good("umount", "--destroy", place)


def test_what_stays_open_is_told(place: Path) -> None:
    good("mount", "postgres-oltp", place, "--disks", "instant")
    with (place / "wal" / "segment").open("wb") as file:
        file.write(b"log")
        file.flush()
        # This very process is the one that uses it, which does not count.
        done = ztune("umount", place)
        assert done.returncode == 0 and "was in use" in done.stderr, done.stderr
        with pytest.raises(OSError):
            os.write(file.fileno(), b"more")
    good("umount", "--destroy", place)


def test_counters_begin_anew(place: Path) -> None:
    mount = begin(place.parent)
    write(place / "data" / "table", os.urandom(100_000))
    before = mount.stats()
    assert before["disks"][0]["writes"] > 0 and before["seconds"] > 0
    mount.sync()
    mount.reset()
    after = mount.stats()
    assert after["disks"][0]["write_bytes"] < before["disks"][0]["write_bytes"]
    assert after["datasets"][0]["commits"] == 0
    assert before["datasets"][0]["calls"]["write"]["ns"] and not after["datasets"][0]["calls"]["write"]["ns"]
    mount.stop()
    assert mount.code == 0 and mount.said == ""


def test_what_calls_take_is_counted_one_by_one(place: Path) -> None:
    mount = begin(place.parent)
    mount.reset()
    with open(place / "data" / "table", "w+b", buffering=0) as file:
        for _ in range(40):
            os.pwrite(file.fileno(), os.urandom(8192), 0)
            os.fdatasync(file.fileno())
        for _ in range(70):
            os.pread(file.fileno(), 8192, 0)
        # Of this /proc/PID/io says nothing.
        queue = mount_libc.Asynchronous()
        assert queue.pwrite(file.fileno(), bytes(4096), 8192) == 4096
        queue.close()
    calls = mount.stats()["datasets"][0]["calls"]
    assert [calls[kind]["bytes"] for kind in ("sync", "write", "read")] == [0, 41 * 8192 - 4096, 70 * 8192]
    for kind, count in {"write": 41, "sync": 40, "read": 70}.items():
        times = {int(ns): n for ns, n in calls[kind]["ns"].items()}
        assert sum(times.values()) == count, kind
        # Each time is known within 1/32, so their sum is.
        together = sum(ns * n for ns, n in times.items()) / 1e9
        assert together == pytest.approx(calls[kind]["seconds"], rel=1 / 32)
    mount.stop()


def test_the_program_refuses_another_layout_itself(place: Path) -> None:
    begin(place.parent).stop()
    with pytest.raises(MountError, match="holds another layout") as caught:
        begin(place.parent, spec=spec_of("nvme"))
    assert caught.value.exit_code == 2
    begin(place.parent).kill()
    begin(place.parent).stop()


def test_the_program_refuses_a_disk_that_was_cut_short(place: Path) -> None:
    begin(place.parent).stop()
    [disk] = (place.parent / "s").glob("disk-*.img")
    os.truncate(disk, 1 << 20)
    with pytest.raises(MountError, match=r"has 1048576 bytes, not the disk's"):
        begin(place.parent)
    assert mounted.on_top(place / "data") is None


def test_a_damaged_disk_is_an_error(place: Path) -> None:
    begin(place.parent).stop()
    [disk] = (place.parent / "s").glob("disk-*.img")
    size = disk.stat().st_size
    os.truncate(disk, 0)
    os.truncate(disk, size)
    with pytest.raises(MountError) as caught:
        begin(place.parent)
    assert caught.value.exit_code == 1 and str(caught.value).endswith(".")
    assert mounted.on_top(place / "data") is None
