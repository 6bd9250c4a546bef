"""The end of the program, wanted or not: what users of the mount see of it, and what is there afterwards.

Crashes with running databases, hundreds of them, are `ztune crashtest`'s; here is what a file system owes
anybody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from mount_children import Child, Signal, fails
from mount_ground import LARGE, SMALL, Mounted, spec

from ztune.onhost.host.mounted import MountError, ask

pytestmark = pytest.mark.timeout(240)

# A call that was under way when the program died is aborted, later ones find nobody.
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}


def append_synced(path: Path, ready: Signal) -> tuple[int, int]:
    """Append numbered records, each synced, until it fails; return how many were acknowledged, and the
    error.
    """
    r, done = random.Random(path.name), 0
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    said = False
    while True:
        try:
            os.write(fd, done.to_bytes(8, "little") + r.randbytes(992))
            os.fsync(fd)
        except OSError as error:
            return done, error.errno or 0
        done += 1
        if done >= 20 and not said:
            ready.say()
            said = True


def records(path: Path) -> int:
    """Return how many whole records are there, each as it was written."""
    r, data = random.Random(path.name), path.read_bytes()
    whole = len(data) // 1000
    for n in range(whole):
        assert data[n * 1000 : n * 1000 + 8] == n.to_bytes(8, "little"), f"record {n}"
        assert data[n * 1000 + 8 : n * 1000 + 1000] == r.randbytes(992), f"record {n}"
    return whole


@pytest.mark.parametrize("cache", ["volatile", "none", "lazy"])
def test_killed_under_writers(own_mount: Callable[..., Mounted], cache: str) -> None:
    """Errors for everybody, no hang; after a new start all that fsync acknowledged is there."""
    mounted = own_mount(cache=cache)
    small, large = mounted.places[SMALL], mounted.places[LARGE]
    for round_ in range(2):
        ready = Signal()
        files = [top / f"log{round_}-{n}" for n in range(2) for top in (small, large)]
        children = [Child(partial(append_synced, path, ready)) for path in files]
        held = os.open(small, os.O_RDONLY)
        for _ in children:
            ready.wait()
        os.kill(mounted.mount.pid, signal.SIGKILL)
        done = [child.result() for child in children]
        for _, number in done:
            assert number in GONE, errno.errorcode[number]
        for call in (partial(os.listdir, small), partial(os.statvfs, large), files[0].read_bytes):
            with fails(errno.ENOTCONN):
                call()
        mounted.kill()  # it is gone: unmounts only
        assert os.listdir(small) == [], "the stale mount is off its directory"
        with fails(errno.ENOTCONN, errno.ECONNABORTED, errno.EIO):
            os.listdir(held)
        os.close(held)
        mounted.start()
        assert mounted.mount.ready["imported"] is True
        for path, (count, _) in zip(files, done, strict=True):
            found = records(path)
            # One more may have been on its way.
            assert count <= found <= count + 1, f"{path.name}: {found} of {count} acknowledged"
    for round_ in range(2):
        assert all(records(top / f"log{round_}-{n}") >= 20 for n in range(2) for top in (small, large))


def test_what_was_synced_survives_a_kill(own_mount: Callable[..., Mounted]) -> None:
    """Not only data: names, sizes, links and attributes that a database relies on after fsync."""
    mounted = own_mount()
    top = mounted.places[SMALL]
    blob = random.Random(1).randbytes(3 << 20)
    mounted.sync()

    def sync(path: Path) -> None:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    (top / "dir" / "sub").mkdir(parents=True)
    (top / "dir" / "file").write_bytes(blob)
    (top / "dir" / "file").chmod(0o4750)
    os.setxattr(top / "dir" / "file", "user.word", b"value")
    (top / "dir" / "temporary").write_bytes(b"control file")
    (top / "dir" / "temporary").rename(top / "dir" / "control")
    os.link(top / "dir" / "file", top / "hard")
    (top / "link").symlink_to("dir/file")
    with (top / "dir" / "sparse").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"middle")
    with (top / "dir" / "punched").open("w+b") as file:
        file.write(blob)
        file.truncate(1_000_000)
    (top / "dir" / "gone").write_bytes(b"x")
    (top / "dir" / "gone").unlink()
    (top / "dir" / "sub").rmdir()
    # ZFS' intent log keeps order per dataset: what came before what is synced is there with it.
    sync(top / "dir" / "punched")
    sync(top / "dir")
    sync(top)
    with (top / "late").open("wb") as file:
        file.write(b"late")
        file.flush()
        os.fdatasync(file.fileno())
    mounted.kill()
    mounted.start()
    assert sorted(os.listdir(top)) == ["dir", "hard", "late", "link"]
    assert sorted(os.listdir(top / "dir")) == ["control", "file", "punched", "sparse"]
    assert (top / "dir" / "file").read_bytes() == blob == (top / "hard").read_bytes()
    found = (top / "hard").stat()
    assert found.st_nlink == 2 and found.st_mode & 0o7777 == 0o4750
    assert os.getxattr(top / "hard", "user.word") == b"value"
    assert (top / "dir" / "control").read_bytes() == b"control file" and os.readlink(
        top / "link"
    ) == "dir/file"
    with (top / "dir" / "sparse").open("rb") as file:
        assert os.fstat(file.fileno()).st_size == 1 << 30
        assert os.pread(file.fileno(), 10, (1 << 29) - 2) == b"\0\0middle\0\0"
    assert (top / "dir" / "punched").read_bytes() == blob[:1_000_000]
    assert (top / "late").read_bytes() == b"late"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_a_clean_end_under_load(
    own_mount: Callable[..., Mounted], number: signal.Signals
) -> None:
    """Nothing is lost, synced or not: writers get errors, and what they had written before is in the pool."""
    mounted = own_mount()
    top, ready = mounted.places[LARGE], Signal()

    def append() -> tuple[int, int]:
        r, done = random.Random("log"), 0
        fd = os.open(top / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        while True:
            try:
                os.write(fd, done.to_bytes(8, "little") + r.randbytes(992))
            except OSError as error:
                return done, error.errno or 0
            done += 1
            if done == 50:
                ready.say()

    child = Child(append)
    ready.wait()
    os.kill(mounted.mount.pid, number)
    mounted.mount.stop()  # asks once more, and raises if it does not end with 0
    done, error = child.result()
    assert error in GONE, errno.errorcode[error]
    assert not os.path.ismount(top) and os.listdir(top) == []
    mounted.start()
    assert records(top / "log") in (done, done + 1)
    assert mounted.mount.ready["replayed"] == 0, "after a clean end there is no log to replay"


def test_who_asks_while_it_ends_does_not_disturb_it(own_mount: Callable[..., Mounted]) -> None:
    mounted = own_mount()

    def go_on() -> None:
        with contextlib.suppress(MountError):
            while True:
                ask(mounted.store, "stats", 30)

    for _ in range(3):
        with ThreadPoolExecutor(3) as askers:
            asked = [askers.submit(go_on) for _ in range(3)]
            (mounted.places[LARGE] / "file").write_bytes(random.Random(1).randbytes(1 << 20))
            mounted.stop()  # raises if it does not end with 0
        for one in asked:
            one.result()
        mounted.start()


def test_unsynced_data_survives_a_clean_end(own_mount: Callable[..., Mounted]) -> None:
    mounted = own_mount(cache="lazy")
    top = mounted.places[LARGE]
    blob = random.Random(1).randbytes(30 << 20)
    for round_ in range(3):
        (top / f"file{round_}").write_bytes(blob)
        mounted.restart()
        for n in range(round_ + 1):
            assert (top / f"file{n}").read_bytes() == blob


@pytest.mark.parametrize("disks", ["instant", "profile"])
@pytest.mark.parametrize(
    ("cache", "kept"), [("volatile", True), ("protected", True), ("ignores-flushes", False)]
)
def test_what_a_disk_does_with_flushes_decides_what_a_kill_takes(
    own_mount: Callable[..., Mounted], disks: str, cache: str, kept: bool
) -> None:
    table = spec()
    table["profiles"]["flash"] = {**table["profiles"]["flash"], "cache": cache, "cache_mb": 32}
    mounted = own_mount(table, disks=disks, cache="lazy")
    (mounted.places[LARGE] / "before").write_bytes(b"settled")
    mounted.restart()  # an end in order writes out what any cache has
    fd = os.open(mounted.places[LARGE] / "after", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"synced")
    os.fsync(fd)
    os.kill(mounted.mount.pid, signal.SIGKILL)
    os.close(fd)
    mounted.kill()
    mounted.start()
    found = {path.name: path.read_bytes() for path in mounted.places[LARGE].iterdir()}
    assert found == {"before": b"settled", **({"after": b"synced"} if kept else {})}


def test_a_file_that_was_unlinked_while_open_is_gone_after_a_kill(own_mount: Callable[..., Mounted]) -> None:
    """ZFS keeps it in the delete queue, and frees it at the next mount."""
    mounted = own_mount(cache="none")
    top = mounted.places[SMALL]
    mounted.sync()
    before = os.statvfs(top)
    fd = os.open(top / "gone", os.O_CREAT | os.O_RDWR)
    os.write(fd, random.Random(1).randbytes(24 << 20))
    (top / "gone").unlink()
    mounted.sync()
    mounted.kill()
    os.close(fd)
    mounted.start()
    assert os.listdir(top) == []
    for _ in range(30):
        mounted.sync()
        after = os.statvfs(top)
        if (before.f_bfree - after.f_bfree) * after.f_frsize < 6 << 20:
            break
    else:
        pytest.fail("the space of a file that nobody has any more did not come back")
