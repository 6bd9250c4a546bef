"""Space: what statfs says per dataset, what comes back, and a pool that is full."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from mount_children import Child, Died, Signal, fails
from mount_ground import LARGE, SMALL, Ground, Mounted, spec
from mount_libc import fallocate

pytestmark = pytest.mark.timeout(180)

MIB = 1 << 20


def used(path: Path) -> int:
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def comes_true(ground: Ground, what: Callable[[], bool]) -> bool:
    """Whether it does, within some transaction groups: ZFS frees blocks in the background."""
    for _ in range(60):
        ground.sync()
        if what():
            return True
        time.sleep(0.2)
    return False


def must_be_ours_alone(ground: Ground, path: Path) -> None:
    if not ground.zfs and path.stat().st_dev == os.stat("/var").st_dev:
        pytest.skip("others write to this file system meanwhile")


def test_each_dataset_counts_for_itself(ground: Ground, place: Path, other: Path) -> None:
    found = os.statvfs(place)
    assert found.f_bsize > 0 and 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
    assert found.f_files > 0 and found.f_ffree <= found.f_files and found.f_namemax == 255
    if not ground.zfs:
        pytest.skip("what an ordinary file system counts is shared")
    ground.sync()
    before = {path: (used(path), free(path)) for path in (place, other)}
    files = os.statvfs(place).f_files - os.statvfs(place).f_ffree
    (place / "file").write_bytes(random.Random(1).randbytes(16 * MIB))
    ground.sync()
    assert used(place) - before[place][0] >= 16 * MIB
    assert used(other) - before[other][0] < MIB, "what one dataset uses is not the other's"
    for path in (place, other):
        assert before[path][1] - free(path) >= 15 * MIB, "what is free is the pool's"
    assert os.statvfs(place).f_files - os.statvfs(place).f_ffree == files + 1
    total = {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in (place, other)}
    assert all(used(path) + free(path) <= size for path, size in total.items())


def test_space_comes_back_when_an_unlinked_file_is_closed(ground: Ground, each: Path) -> None:
    must_be_ours_alone(ground, each)
    size = 24 * MIB
    ground.sync()
    before = used(each)
    fd = os.open(each / "file", os.O_CREAT | os.O_RDWR)
    data = random.Random(1).randbytes(size)
    os.write(fd, data)
    os.unlink(each / "file")
    ground.sync()
    ground.sync()
    assert used(each) >= before + size - MIB, "an open file keeps its space"
    assert os.pread(fd, size, 0) == data
    os.close(fd)
    assert comes_true(ground, lambda: used(each) < before + size // 4)


def test_space_comes_back_from_truncation_and_holes(ground: Ground, each: Path) -> None:
    must_be_ours_alone(ground, each)
    size = 16 * MIB
    path = each / "file"
    path.write_bytes(random.Random(1).randbytes(size))
    ground.sync()
    full = used(each)
    with path.open("r+b") as file:
        fallocate(file.fileno(), 3, 0, size // 2)  # PUNCH_HOLE | KEEP_SIZE
        assert comes_true(ground, lambda: used(each) < full - size // 2 + MIB)
        assert path.stat().st_size == size
        file.truncate(0)
        assert comes_true(ground, lambda: used(each) < full - size + MIB)


@pytest.fixture
def tiny(own_mount: Callable[..., Mounted]) -> Mounted:
    """A pool of 192 MiB."""
    return own_mount(spec(disk=192 * MIB))


def fill(path: Path) -> int:
    """Write until there is no space; return how much there was."""
    done, r = 0, random.Random(path.name)
    with path.open("wb", buffering=0) as file:
        try:
            for _ in range(100_000):
                done += file.write(r.randbytes(256 << 10))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return done
    pytest.fail("the pool was never full")


def test_a_full_pool_says_so_and_recovers(tiny: Mounted) -> None:
    small, large = tiny.places[SMALL], tiny.places[LARGE]
    precious = small / "precious"
    precious.write_bytes(b"before it was full" * 1000)
    room = free(small)
    done = fill(small / "filler")
    tiny.sync()
    assert done > room // 2
    assert free(small) < 16 * MIB and free(large) < 16 * MIB
    # Nothing hangs and nothing that is there is lost.
    assert precious.read_bytes() == b"before it was full" * 1000
    blob = random.Random(2).randbytes(16 * MIB)
    with fails(errno.ENOSPC):  # ZFS may refuse even to make the file
        (large / "more").write_bytes(blob * 4)
    fd = os.open(small / "filler", os.O_RDWR)
    with fails(errno.ENOSPC):
        fallocate(fd, 0, 0, 300 * MIB)
    os.fsync(fd)
    size = os.fstat(fd).st_size
    os.ftruncate(fd, size - 8 * MIB)  # making it smaller goes
    os.close(fd)
    (small / "filler").unlink()
    (large / "more").unlink(missing_ok=True)
    assert comes_true(tiny, lambda: free(small) > room * 3 // 4)
    (small / "again").write_bytes(blob)
    tiny.restart()
    assert (small / "again").read_bytes() == blob and precious.read_bytes() == b"before it was full" * 1000
    assert sorted(os.listdir(small)) == ["again", "precious"]


def test_every_writer_to_a_full_pool_is_told(tiny: Mounted) -> None:
    """Several at once, with fsync, and through a map: an error or SIGBUS for each, no hang."""
    small, start = tiny.places[SMALL], Signal()

    def write(who: int) -> str:
        r = random.Random(who)
        with (small / f"file{who}").open("wb", buffering=0) as file:
            start.wait()
            try:
                for _ in range(4000):
                    file.write(r.randbytes(128 << 10))
                    os.fsync(file.fileno())
            except OSError as error:
                return errno.errorcode[error.errno or 0]
        return "never full"

    def through_map() -> str:
        r = random.Random(99)
        fd = os.open(small / "map", os.O_CREAT | os.O_RDWR)
        os.ftruncate(fd, 256 * MIB)
        memory = mmap.mmap(fd, 256 * MIB)
        start.wait()
        try:
            for n in range(256):
                memory[n * MIB : (n + 1) * MIB] = r.randbytes(MIB)
                memory.flush(n * MIB, MIB)
                os.fsync(fd)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "never full"

    children = [Child(partial(write, who)) for who in range(3)]
    mapper = Child(through_map)
    start.say(4)
    assert [child.result() for child in children] == ["ENOSPC"] * 3
    try:
        assert mapper.result() in ("ENOSPC", "EIO")  # Linux keeps only these two for later
    except Died as died:
        assert died.signal.name == "SIGBUS"
    assert tiny.mount.alive()
    for name in os.listdir(small):
        (small / name).unlink()
    tiny.sync()
    assert os.listdir(small) == []


def test_directories_and_names_on_a_full_pool(tiny: Mounted) -> None:
    """Making files fails with ENOSPC at the latest when not even metadata fits; removing always goes."""
    small = tiny.places[SMALL]
    (small / "dir").mkdir()
    fill(small / "filler")
    made = []
    try:
        for n in range(20_000):
            path = small / "dir" / (f"{n:06}" + "n" * 200)
            path.write_bytes(b"x" * 600)
            made.append(path)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    tiny.sync()
    # One more, empty, may have been made by the write that failed.
    assert {path.name for path in made} <= set(os.listdir(small / "dir"))
    shutil.rmtree(small / "dir")
    (small / "filler").unlink()
    assert os.listdir(small) == []
    assert comes_true(tiny, lambda: free(small) > 64 * MIB)
    (small / "file").write_bytes(b"works again")
    assert stat.S_ISREG((small / "file").stat().st_mode)
