"""What is in files: opening, writing, lengths, holes, reserving, copying, syncing."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from mount_children import Child, Signal, fails, in_child
from mount_ground import SMALL_RECORD, Ground, Mounted, spec
from mount_libc import (
    COLLAPSE_RANGE,
    INSERT_RANGE,
    KEEP_SIZE,
    PUNCH_HOLE,
    UNSHARE_RANGE,
    ZERO_RANGE,
    Asynchronous,
    fallocate,
)

pytestmark = pytest.mark.timeout(120)

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o644) -> Iterator[int]:
    fd = os.open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def aligned(data: bytes) -> mmap.mmap:
    """Memory that begins on a page, as O_DIRECT needs it."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


# --- opening --------------------------------------------------------------------------------------


def test_open_flags(place: Path) -> None:
    path = place / "file"
    with fails(errno.ENOENT):
        os.open(path, os.O_RDWR)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        os.write(fd, b"0123456789")
    with fails(errno.EEXIST):
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    (place / "link").symlink_to("nowhere")
    with fails(errno.EEXIST):  # a link that leads nowhere counts as there
        os.open(place / "link", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    with fails(errno.EISDIR):
        os.open(place, os.O_WRONLY)
    with fails(errno.EISDIR):
        os.open(place, os.O_WRONLY | os.O_CREAT)
    with fails(errno.ENOTDIR):
        os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with opened(path, os.O_RDONLY) as fd, fails(errno.EBADF):
        os.write(fd, b"x")
    with opened(path, os.O_WRONLY) as fd, fails(errno.EBADF):
        os.read(fd, 1)
    assert path.read_bytes() == b"0123456789"


def test_truncation_at_open(place: Path) -> None:
    path = place / "file"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(10**9, 10**9))
    inode = path.stat().st_ino
    with path.open() as before:
        with opened(path, os.O_WRONLY | os.O_TRUNC):
            assert path.stat().st_size == 0 and path.stat().st_ino == inode
        assert before.read() == ""
    assert path.stat().st_mtime_ns > 10**9
    with opened(path, os.O_WRONLY | os.O_TRUNC | os.O_APPEND) as fd:
        os.write(fd, b"abc")
    assert path.read_bytes() == b"abc"


def test_only_one_of_many_creates_a_file(place: Path) -> None:
    """A lock file as PostgreSQL's postmaster.pid."""
    start = Signal()

    def create() -> int:
        start.wait()
        won = 0
        for n in range(50):
            try:
                os.close(os.open(place / f"lock{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                won += 1
            except FileExistsError:
                pass
        return won

    children = [Child(create) for _ in range(6)]
    start.say(6)
    assert sum(child.result() for child in children) == 50


def test_a_file_without_a_name(place: Path) -> None:
    """O_TMPFILE, where the mount has it; linked in later."""
    try:
        fd = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error
        pytest.skip("no O_TMPFILE here, and EOPNOTSUPP as programs expect it")
    os.write(fd, b"unnamed")
    assert os.listdir(place) == [] and os.fstat(fd).st_nlink == 0
    with opened(place, os.O_RDONLY) as here:  # with a directory Python uses linkat(2), which can follow
        os.link(f"/proc/self/fd/{fd}", "named", src_dir_fd=here, dst_dir_fd=here, follow_symlinks=True)
    os.close(fd)
    assert (place / "named").read_bytes() == b"unnamed"


def test_many_open_files(place: Path) -> None:
    count = 2500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 500:
        pytest.skip("fewer open files are allowed here")

    def work() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 500, hard))
        fds = [os.open(place / f"file{n}", os.O_CREAT | os.O_RDWR) for n in range(count)]
        for n, fd in enumerate(fds):
            os.pwrite(fd, str(n).encode(), n)
        good = sum(os.pread(fd, 20, n) == str(n).encode() for n, fd in enumerate(fds))
        for n in range(0, count, 2):
            os.unlink(place / f"file{n}")
        return good + sum(os.fstat(fd).st_nlink for fd in fds)

    assert in_child(work) == count + count // 2
    assert len(os.listdir(place)) == count // 2
    assert soft == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# --- reading and writing --------------------------------------------------------------------------


def test_writes_at_any_offset_and_size(each: Path) -> None:
    """Against a model in memory: within records, over their edges, over many of them."""
    path, r = each / "file", random.Random(7)
    model = bytearray()
    with opened(path) as fd:
        for n in range(150):
            size = r.choice(
                [1, 3, 511, 4096, 8191, 8192, 8193, 131072, 131073, 300_001, r.randrange(1, 200_000)]
            )
            offset = r.randrange(0, max(1, min(len(model) + 50_000, 3 << 20)))
            data = noise(size, n)
            assert os.pwrite(fd, data, offset) == size
            model.extend(bytes(max(0, offset + size - len(model))))
            model[offset : offset + size] = data
            at, length = r.randrange(len(model)), r.randrange(1, 400_000)
            assert os.pread(fd, length, at) == model[at : at + length]
        assert os.fstat(fd).st_size == len(model)
    assert path.read_bytes() == model


def test_vectors(place: Path) -> None:
    with opened(place / "file") as fd:
        parts = [noise(size, size) for size in (1, 0, 8192, 5000, 17, 70_000)]
        assert os.writev(fd, parts) == sum(map(len, parts))
        assert os.pwritev(fd, [b"aa", b"bb"], 3) == 4
        whole = bytearray(b"".join(parts))
        whole[3:7] = b"aabb"
        buffers = [bytearray(10), bytearray(60_000), bytearray(100_000)]
        assert os.preadv(fd, buffers, 1) == len(whole) - 1
        assert b"".join(buffers)[: len(whole) - 1] == whole[1:]
        assert os.pread(fd, 10, len(whole)) == b"" and os.pread(fd, 10, 1 << 50) == b""
        with fails(errno.EINVAL):
            os.pread(fd, 1, -1)
        with fails(errno.EINVAL):
            os.pwrite(fd, b"x", -1)


def test_one_call_of_many_megabytes(each: Path) -> None:
    data = noise(20 * MIB)
    with opened(each / "file") as fd:
        assert os.write(fd, data) == len(data)
        assert os.pread(fd, len(data) + 5, 0) == data


def test_memory_for_reads_is_not_kept(own_mount: Callable[..., Mounted]) -> None:
    """libfuse has a thread for each call that waits, and ends most of them when there is less to do."""
    table = spec()
    table["profiles"]["flash"] = {**table["profiles"]["flash"], "read_us": 20_000}
    table["datasets"][1]["properties"]["primarycache"] = "metadata"
    mounted = own_mount(table, disks="profile")
    file = mounted.large / "file"
    file.write_bytes(noise(8 * MIB))
    mounted.sync()
    for _ in range(12):
        with opened(file, os.O_RDONLY) as fd, ThreadPoolExecutor(100) as readers:
            for got in [readers.submit(os.pread, fd, MIB, n % 8 * MIB) for n in range(100)]:
                assert len(got.result()) == MIB
    status = Path(f"/proc/{mounted.mount.pid}/status").read_text()
    # The ARC has 64 MiB, 128 threads have 1 MiB each; what is kept for 60 that end in each round is 720 MiB.
    assert int(status.split("VmRSS:")[1].split()[0]) * KIB < 500 * MIB


def test_append(place: Path) -> None:
    path = place / "file"
    with opened(path, os.O_CREAT | os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, b"one ")
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"two ")
        os.pwrite(fd, b"three ", 0)  # Linux appends here, whatever the offset: pwrite(2), BUGS
        with opened(path, os.O_WRONLY) as second:
            os.pwrite(second, b"ONE", 0)
            os.ftruncate(second, 8)
        os.write(fd, b"end")
        assert os.lseek(fd, 0, os.SEEK_CUR) == 11
    assert path.read_bytes() == b"ONE two end"


def test_several_writers_append_whole_records(each: Path) -> None:
    path, start = each / "log", Signal()
    path.touch()

    def write(who: int) -> None:
        with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
            start.wait()
            for n in range(250):
                record = f"{who}:{n:05}:".encode() + bytes([65 + who]) * (who * 1500 + n) + b"\n"
                assert os.write(fd, record) == len(record)

    children = [Child(partial(write, who)) for who in range(4)]
    start.say(4)
    for child in children:
        child.result()
    counts = [0] * 4
    for line in path.read_bytes().splitlines():
        left, number, filling = line.split(b":")
        who = int(left)
        assert int(number) == counts[who], "records of one writer are in order"
        assert filling == bytes([65 + who]) * (who * 1500 + counts[who])
        counts[who] += 1
    assert counts == [250] * 4


def test_writers_of_parts_of_one_file_do_not_disturb_each_other(each: Path) -> None:
    """Unaligned neighbours share records: none may write back an old half of the other's."""
    path, start = each / "file", Signal()
    piece, rounds = 1000, 40
    path.write_bytes(bytes(piece * 4 * rounds))

    def write(who: int) -> None:
        with opened(path, os.O_RDWR) as fd:
            start.wait()
            for n in range(rounds):
                os.pwrite(fd, bytes([who + 1]) * piece, (n * 4 + who) * piece)

    children = [Child(partial(write, who)) for who in range(4)]
    start.say(4)
    for child in children:
        child.result()
    assert path.read_bytes() == b"".join(bytes([who + 1]) * piece for who in range(4)) * rounds


def test_a_file_ends_where_an_asynchronous_write_does(other: Path) -> None:
    """The kernel sends both parts at the same time. The first must not shorten the file again when it is done
    last: without care that is once in ten thousand writes, so this test finds it in some runs only.
    """
    data, asynchronous = noise(2 * MIB), Asynchronous()
    with opened(other / "file") as fd:
        os.pwrite(fd, data[:MIB], 0)  # a file of one block is locked as a whole
        for _ in range(2000):
            os.ftruncate(fd, MIB)
            assert asynchronous.pwrite(fd, data, MIB) == len(data)
            assert os.pread(fd, 10, MIB + len(data) - 1) == data[-1:]
    asynchronous.close()


def test_a_write_is_seen_whole_by_other_processes(ground: Ground, place: Path) -> None:
    """POSIX: a read sees all of a write or nothing. ZFS locks the range; others are less strict.

    PostgreSQL's pages on ZFS count on it: a backup that reads one while it is written sees no torn page.
    """
    if not ground.zfs:
        pytest.skip("ZFS' own way")
    path, ready = place / "page", Signal()
    path.write_bytes(b"a" * SMALL_RECORD)

    def write(who: int) -> None:
        with opened(path, os.O_RDWR) as fd:
            ready.say()
            for n in itertools.count():
                os.pwrite(fd, bytes([97 + (3 * n + who) % 26]) * SMALL_RECORD, 0)

    writers = [Child(partial(write, who)) for who in range(3)]
    seen = set()
    try:
        for _ in writers:
            ready.wait()
        with opened(path, os.O_RDONLY) as fd:
            for _ in range(1500):
                page = os.pread(fd, SMALL_RECORD, 0)
                assert page == page[:1] * SMALL_RECORD
                seen.add(page[:1])
    finally:
        for writer in writers:
            writer.kill()
    assert len(seen) > 1


# --- lengths --------------------------------------------------------------------------------------


def test_truncate_and_extend(each: Path) -> None:
    path, data = each / "file", noise(300_000)
    path.write_bytes(data)
    with opened(path, os.O_RDWR) as fd:
        for size in (299_999, 131_073, 131_072, 131_071, 8193, 8192, 8191, 1):
            os.ftruncate(fd, size)
            assert os.fstat(fd).st_size == size
            os.ftruncate(fd, 400_000)
            # What was cut off must not come back.
            assert os.pread(fd, 500_000, 0) == data[:size] + bytes(400_000 - size)
        os.ftruncate(fd, 0)
        os.ftruncate(fd, 10)
        assert os.pread(fd, 20, 0) == bytes(10)
        with fails(errno.EINVAL):
            os.ftruncate(fd, -1)
    os.truncate(path, 5)
    assert path.read_bytes() == bytes(5)
    with fails(errno.EISDIR):
        os.truncate(each, 0)
    with opened(path, os.O_RDONLY) as fd, fails(errno.EINVAL):
        os.ftruncate(fd, 0)


def test_truncation_moves_the_times(place: Path) -> None:
    path = place / "file"
    path.write_bytes(b"12345")
    for size in (3, 10):
        os.utime(path, ns=(10**9, 10**9))
        os.truncate(path, size)
        assert path.stat().st_mtime_ns > 10**9


def test_a_write_beyond_the_end_leaves_zeros_between(each: Path) -> None:
    path = each / "file"
    with opened(path) as fd:
        os.pwrite(fd, b"start", 0)
        os.pwrite(fd, b"end", 1_000_003)
        assert os.fstat(fd).st_size == 1_000_006
        assert os.pread(fd, 2_000_000, 0) == b"start" + bytes(999_998) + b"end"


# --- holes ----------------------------------------------------------------------------------------


def test_holes_are_found(ground: Ground, each: Path) -> None:
    piece = 256 * KIB  # of whole records on both datasets
    with opened(each / "file") as fd:
        os.ftruncate(fd, 10 * piece)
        for n in (2, 3, 7):
            os.pwrite(fd, noise(piece, n), n * piece)
        for synced in (False, True):
            if synced:
                ground.sync()
            assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
            assert os.lseek(fd, 0, os.SEEK_DATA) == 2 * piece
            assert os.lseek(fd, 2 * piece + 5, os.SEEK_DATA) == 2 * piece + 5
            assert os.lseek(fd, 2 * piece, os.SEEK_HOLE) == 4 * piece
            assert os.lseek(fd, 4 * piece, os.SEEK_DATA) == 7 * piece
            assert os.lseek(fd, 7 * piece + 1, os.SEEK_HOLE) == 8 * piece
            with fails(errno.ENXIO):
                os.lseek(fd, 8 * piece, os.SEEK_DATA)
            assert os.lseek(fd, 9 * piece, os.SEEK_HOLE) == 9 * piece
            for whence in (os.SEEK_HOLE, os.SEEK_DATA):
                with fails(errno.ENXIO):
                    os.lseek(fd, 10 * piece, whence)
        assert 3 * piece <= os.fstat(fd).st_blocks * 512 < 4 * piece
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 3 * piece, piece)
        ground.sync()
        assert os.lseek(fd, 2 * piece, os.SEEK_HOLE) == 3 * piece
        assert piece * 2 <= os.fstat(fd).st_blocks * 512 < 3 * piece


def test_the_end_of_a_file_is_a_hole(place: Path) -> None:
    with opened(place / "file") as fd:
        os.write(fd, noise(100_001))
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 100_001
        assert os.lseek(fd, 100_000, os.SEEK_HOLE) == 100_001
        assert os.lseek(fd, 100_000, os.SEEK_DATA) == 100_000
        assert os.lseek(fd, -1, os.SEEK_END) == 100_000
    (place / "empty").touch()
    with opened(place / "empty") as fd:
        for whence in (os.SEEK_HOLE, os.SEEK_DATA):
            with fails(errno.ENXIO):
                os.lseek(fd, 0, whence)


def test_zeros_are_stored_by_compression_only(ground: Ground, place: Path, other: Path) -> None:
    """ZFS: a record of zeros is a hole where compression is on, and a record where it is off."""
    if not ground.zfs:
        pytest.skip("ZFS' own way")
    sizes = {}
    for folder in (place, other):
        (folder / "zeros").write_bytes(bytes(4 * MIB))
        ground.sync()
        sizes[folder] = (folder / "zeros").stat().st_blocks * 512
        assert (folder / "zeros").read_bytes() == bytes(4 * MIB)
    assert sizes[place] >= 4 * MIB and sizes[other] < 64 * KIB


def test_compressed_files_take_fewer_blocks(ground: Ground, place: Path, other: Path) -> None:
    if not ground.zfs:
        pytest.skip("ZFS' own way")
    data = b"".join(noise(64, n) * 16 for n in range(4096))
    sizes = {}
    for folder in (place, other):
        (folder / "text").write_bytes(data)
        ground.sync()
        sizes[folder] = (folder / "text").stat().st_blocks * 512
    assert sizes[place] >= len(data) and sizes[other] < len(data) // 4


def test_a_file_far_larger_than_memory(ground: Ground, each: Path) -> None:
    path, r = each / "large", random.Random(3)
    places = sorted(r.sample(range(TIB // MIB), 30))
    with opened(path) as fd:
        os.ftruncate(fd, TIB)
        for n in places:
            os.pwrite(fd, noise(300, n), n * MIB + 12345)
        os.pwrite(fd, b"last", TIB - 4)
    ground.restart()
    with opened(path, os.O_RDONLY) as fd:
        found = os.fstat(fd)
        assert found.st_size == TIB and found.st_blocks * 512 < 64 * MIB
        for n in places:
            assert os.pread(fd, 400, n * MIB + 12345 - 50) == bytes(50) + noise(300, n) + bytes(50)
        for _ in range(50):
            offset = r.randrange(TIB // MIB)
            if offset not in places:
                assert os.pread(fd, 1000, offset * MIB + 12345) == bytes(1000)
        assert os.pread(fd, 100, TIB - 8) == bytes(4) + b"last"
        assert os.lseek(fd, 0, os.SEEK_DATA) <= places[0] * MIB + 12345
        data, ranges = 0, 0
        while ranges < 100:
            try:
                begin = os.lseek(fd, data, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                break
            data = os.lseek(fd, begin, os.SEEK_HOLE)
            ranges += 1
        # SEEK_DATA at each: no more, no fewer than were written.
        assert ranges == len(places) + 1


def test_the_largest_offsets(ground: Ground, place: Path) -> None:
    """ZFS goes to 2^63 - 1; other file systems stop earlier, with EFBIG too."""
    top = (1 << 63) - 1
    with opened(place / "file") as fd:
        with fails(errno.EFBIG, errno.EINVAL):  # EINVAL: the end is no number any more
            os.pwrite(fd, b"xx", top)
        if not ground.zfs:
            return
        os.ftruncate(fd, 1 << 62)
        os.pwrite(fd, b"far", (1 << 62) - 3)
        assert os.pread(fd, 10, (1 << 62) - 5) == b"\0\0far"
        assert os.fstat(fd).st_size == 1 << 62
        ground.sync()
        assert os.fstat(fd).st_blocks * 512 < 2 * MIB
        os.ftruncate(fd, 5)
        assert os.pread(fd, 10, 0) == bytes(5)


def test_the_limit_of_a_process(place: Path) -> None:
    """RLIMIT_FSIZE: a short write up to it, then EFBIG."""

    def work() -> tuple[int, list[int | None]]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        errors: list[int | None] = []
        with opened(place / "file") as fd:
            written = os.pwrite(fd, b"x" * 20_000, 0)
            calls: list[Callable[[], object]] = [
                lambda: os.pwrite(fd, b"x", 10_000),
                lambda: os.ftruncate(fd, 10_001),
                lambda: fallocate(fd, 0, 0, 20_000),
            ]
            for call in calls:
                try:
                    call()
                    errors.append(None)
                except OSError as error:
                    errors.append(error.errno)
        return written, errors

    written, errors = in_child(work)
    assert written == 10_000 and errors == [errno.EFBIG] * 3
    assert (place / "file").stat().st_size == 10_000


# --- fallocate: zpl_fallocate_common() in OpenZFS's module/os/linux/zfs/zpl_file.c ----------------


def test_reserving_extends_and_reserves_nothing(ground: Ground, place: Path) -> None:
    with opened(place / "file") as fd:
        os.write(fd, b"data")
        fallocate(fd, 0, 0, MIB)
        assert os.fstat(fd).st_size == MIB
        assert os.pread(fd, 2 * MIB, 0) == b"data" + bytes(MIB - 4)
        fallocate(fd, 0, 0, 100)
        assert os.fstat(fd).st_size == MIB
        fallocate(fd, KEEP_SIZE, 0, 4 * MIB)
        assert os.fstat(fd).st_size == MIB
        if ground.zfs:
            ground.sync()
            assert os.fstat(fd).st_blocks * 512 < 64 * KIB
        os.posix_fallocate(fd, MIB, MIB)
        assert os.fstat(fd).st_size == 2 * MIB


def test_what_fallocate_refuses(ground: Ground, place: Path) -> None:
    with opened(place / "file") as fd:
        os.write(fd, bytes(MIB))
        for offset, length in ((0, 0), (0, -1), (-1, 10)):
            with fails(errno.EINVAL):
                fallocate(fd, 0, offset, length)
        with fails(errno.EOPNOTSUPP):
            fallocate(fd, PUNCH_HOLE, 0, 4096)  # Linux wants KEEP_SIZE with it
        if ground.zfs:
            for mode in (COLLAPSE_RANGE, INSERT_RANGE, UNSHARE_RANGE):
                with fails(errno.EOPNOTSUPP):
                    fallocate(fd, mode, 0, SMALL_RECORD)
            space = os.statvfs(place)
            with fails(errno.ENOSPC):
                fallocate(fd, 0, 0, space.f_blocks * space.f_frsize * 2)
        assert os.fstat(fd).st_size == MIB
    with opened(place / "file", os.O_RDONLY) as fd, fails(errno.EBADF):
        fallocate(fd, 0, 0, 10)


def test_punching_holes(each: Path) -> None:
    """Also where they begin and end within records."""
    r, data = random.Random(5), bytearray(noise(MIB))
    with opened(each / "file") as fd:
        os.write(fd, data)
        for n in range(40):
            offset, length = r.randrange(MIB), r.choice([1, 100, 4096, 8192, 50_000, 200_000])
            fallocate(fd, PUNCH_HOLE | KEEP_SIZE, offset, length)
            length = min(length, MIB - offset)
            data[offset : offset + length] = bytes(length)
            assert os.pread(fd, 2 * MIB, 0) == data, f"after hole {n} of {length} at {offset}"
            if n % 4 == 0:
                piece = noise(3000, n)
                at = r.randrange(MIB - 3000)
                os.pwrite(fd, piece, at)
                data[at : at + 3000] = piece
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 2 * MIB, 4096)  # beyond the end: nothing to do
        assert os.fstat(fd).st_size == MIB and os.pread(fd, 2 * MIB, 0) == data


def test_zeroing_a_range(place: Path) -> None:
    data = bytearray(noise(200_000))
    with opened(place / "file") as fd:
        os.write(fd, data)
        for mode, offset, length in ((ZERO_RANGE, 5000, 60_000), (ZERO_RANGE | KEEP_SIZE, 100_000, 1)):
            try:
                fallocate(fd, mode, offset, length)
            except OSError as error:
                # OpenZFS before 2.2 has no ZERO_RANGE; tmpfs, where a developer tries the tests, neither.
                assert error.errno == errno.EOPNOTSUPP, error
                pytest.skip("no ZERO_RANGE here, and EOPNOTSUPP as it should be")
            data[offset : offset + length] = bytes(length)
            assert os.pread(fd, 300_000, 0) == data
        fallocate(fd, ZERO_RANGE | KEEP_SIZE, 199_000, 50_000)
        data[199_000:] = bytes(1000)
        assert os.fstat(fd).st_size == 200_000 and os.pread(fd, 300_000, 0) == data


# --- copying within the kernel --------------------------------------------------------------------


def test_copy_file_range(place: Path, other: Path) -> None:
    """The copy is a copy, also where blocks are cloned: changing one leaves the other."""
    data = noise(700_001)
    source, target = place / "source", place / "target"
    source.write_bytes(data)
    with opened(source, os.O_RDWR) as a, opened(target) as b:
        done = 0
        while done < len(data) - 1000:
            done += os.copy_file_range(a, b, len(data) - 1000 - done, 1000 + done, 500 + done)
        assert os.pread(b, MIB, 0) == bytes(500) + data[1000:]
        os.pwrite(a, b"changed", 300_000)
        assert os.pread(b, MIB, 0) == bytes(500) + data[1000:]
        os.pwrite(b, b"CHANGED", 299_500)
        assert os.pread(a, 7, 300_000) == b"changed"
        assert os.copy_file_range(a, b, 100, len(data), 0) == 0
        with fails(errno.EINVAL):
            os.copy_file_range(a, a, 1000, 0, 500)  # the ranges overlap
        done = os.copy_file_range(a, a, 4096, 0, 800_000)
        assert os.pread(a, done, 800_000) == data[:done]
    # Between datasets the kernel copies itself, or says EXDEV and programs do.
    with opened(source, os.O_RDONLY) as a, opened(other / "target") as b:
        try:
            done = os.copy_file_range(a, b, 5000)
        except OSError as error:
            assert error.errno == errno.EXDEV, error
        else:
            assert os.pread(b, done, 0) == data[:done]


def test_sendfile_and_splice(place: Path) -> None:
    data = noise(300_000)
    (place / "source").write_bytes(data)
    with opened(place / "source", os.O_RDONLY) as a, opened(place / "target") as b:
        done = 0
        while done < len(data):
            done += os.sendfile(b, a, done, len(data) - done)
        assert os.pread(b, MIB, 0) == data
        out, into = os.pipe()
        moved = os.splice(a, into, 50_000, offset_src=1000)
        assert os.splice(out, b, moved, offset_dst=10) == moved
        assert os.pread(b, moved, 10) == data[1000 : 1000 + moved]
        os.close(out)
        os.close(into)


# --- syncing and direct I/O -----------------------------------------------------------------------


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC, os.O_RSYNC], ids=["O_SYNC", "O_DSYNC", "O_RSYNC"])
def test_synchronous_writes(each: Path, flag: int) -> None:
    data = noise(100_000)
    with opened(each / "file", os.O_CREAT | os.O_RDWR | flag) as fd:
        for offset in range(0, len(data), 12_345):
            os.pwrite(fd, data[offset : offset + 12_345], offset)
        assert os.pread(fd, MIB, 0) == data
        os.ftruncate(fd, 50_000)
    assert (each / "file").read_bytes() == data[:50_000]


def test_every_way_to_sync(place: Path) -> None:
    with opened(place / "file") as fd:
        os.write(fd, noise(50_000))
        os.fsync(fd)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.sync()
        assert os.pread(fd, MIB, 0) == noise(50_000)
    with opened(place / "file", os.O_RDONLY) as fd:
        os.fsync(fd)  # PostgreSQL syncs what others wrote, through descriptors of its own


def test_direct_io(each: Path) -> None:
    data = noise(512 * KIB)
    path = each / "file"
    with opened(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT) as fd:
        assert os.pwritev(fd, [aligned(data)], 0) == len(data)
        page = aligned(noise(SMALL_RECORD, 9))
        os.pwritev(fd, [page], 3 * SMALL_RECORD)
        back = aligned(bytes(len(data)))
        assert os.preadv(fd, [back], 0) == len(data)
        wanted = bytearray(data)
        wanted[3 * SMALL_RECORD : 4 * SMALL_RECORD] = page[:]
        assert back[:] == wanted
        with opened(path, os.O_RDWR) as plain:  # both ways see the same
            assert os.pread(plain, MIB, 0) == wanted
            os.pwrite(plain, b"plain", 100)
            wanted[100:105] = b"plain"
            assert os.preadv(fd, [back], 0) == len(data) and back[:] == wanted
    with opened(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) as fd:
        os.pwritev(fd, [page], 0)
    assert path.read_bytes() == page[:] + wanted[SMALL_RECORD:]


def test_direct_io_that_is_not_aligned(place: Path) -> None:
    """Refused, or done right."""
    path = place / "file"
    path.write_bytes(noise(20_000))
    with opened(path, os.O_RDWR | os.O_DIRECT) as fd:
        try:
            os.pwrite(fd, b"unaligned", 4321)
        except OSError as error:
            assert error.errno == errno.EINVAL, error
            assert path.read_bytes() == noise(20_000)
        else:
            assert path.read_bytes()[4321:4330] == b"unaligned"


# --- what stat says -------------------------------------------------------------------------------


def test_stat_of_a_file(ground: Ground, place: Path) -> None:
    path = place / "file"
    with opened(path, os.O_CREAT | os.O_RDWR, 0o640) as fd:
        os.write(fd, noise(100_000))
        found = os.fstat(fd)
        assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640
        assert found.st_size == 100_000 and found.st_nlink == 1
        assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
        assert found.st_blksize >= 512 and found.st_blksize & (found.st_blksize - 1) == 0
        ground.sync()
        # The kernel asks a FUSE file system again only when its answer is a second old.
        deadline = time.monotonic() + 30
        while os.fstat(fd).st_blocks * 512 < 100_000 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert os.fstat(fd).st_blocks * 512 >= 100_000
    assert path.stat().st_dev == place.stat().st_dev
    (place / "second").touch()
    assert (place / "second").stat().st_ino != found.st_ino


def test_a_program_runs_from_the_mount(place: Path) -> None:
    path = place / "program"
    path.write_bytes(Path("/bin/sh").read_bytes())
    path.chmod(0o755)
    pid = os.spawnv(os.P_NOWAIT, path, ["sh", "-c", "read line; exit 7"])
    assert os.waitpid(pid, 0)[1] in (7 << 8, 1 << 8)
    assert os.spawnv(os.P_WAIT, path, ["sh", "-c", "exit 7"]) == 7
