"""What several processes share: locks, and memory mapped from files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from mount_children import Child, Died, Signal, fails, in_child
from mount_ground import Ground, Mounted, spec

pytestmark = pytest.mark.timeout(120)

PAGE = mmap.PAGESIZE
MIB = 1 << 20
OFD_SETLK = 37  # F_OFD_SETLK: Python names it from 3.9 on only where its C library does


@contextmanager
def opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def refused(path: Path, kind: int, length: int = 0, start: int = 0, how: str = "fcntl") -> bool:
    """Whether another process is refused a lock."""

    def attempt() -> bool:
        with opened(path, os.O_RDWR) as fd:
            try:
                if how == "fcntl":
                    fcntl.lockf(fd, kind | fcntl.LOCK_NB, length, start)
                else:
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except OSError as error:
                assert error.errno in (errno.EAGAIN, errno.EACCES), error
                return True
            return False

    return in_child(attempt)


# --- locks ----------------------------------------------------------------------------------------


def test_record_locks_between_processes(place: Path) -> None:
    """As SQLite takes them: bytes far beyond the end of the file."""
    path, pending = place / "ledger.db", 0x40000000
    with opened(path) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, pending)
        assert refused(path, fcntl.LOCK_EX, 1, pending)
        assert refused(path, fcntl.LOCK_SH, 1, pending)
        assert refused(path, fcntl.LOCK_EX, 0, 0), "the whole file"
        assert not refused(path, fcntl.LOCK_EX, 1, pending + 1)
        fcntl.lockf(fd, fcntl.LOCK_SH, 1, pending)
        assert not refused(path, fcntl.LOCK_SH, 1, pending)
        assert refused(path, fcntl.LOCK_EX, 1, pending)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, pending)
        assert not refused(path, fcntl.LOCK_EX, 1, pending)
        fcntl.lockf(fd, fcntl.LOCK_EX, 10, 100)
        fcntl.lockf(fd, fcntl.LOCK_UN, 2, 104)  # in the middle
        assert refused(path, fcntl.LOCK_EX, 4, 100) and refused(path, fcntl.LOCK_EX, 4, 106)
        assert not refused(path, fcntl.LOCK_EX, 2, 104)
        with opened(path):
            pass  # closing any descriptor of the file gives up the process' locks: POSIX
        assert not refused(path, fcntl.LOCK_EX, 0, 0)


def test_a_lock_names_its_owner(place: Path) -> None:
    path = place / "file"
    with opened(path) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX, 5, 10)
        me = os.getpid()

        def ask() -> tuple[int, int, int, int]:
            with opened(path) as mine:
                question = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
                kind, _, start, length, pid = struct.unpack(
                    "hhqqi4x", fcntl.fcntl(mine, fcntl.F_GETLK, question)
                )
                return kind, start, length, pid

        assert in_child(ask) == (fcntl.F_WRLCK, 10, 5, me)


def test_locks_go_with_their_process(place: Path) -> None:
    """A database that was killed must not lock out its successor."""
    path = place / "file"
    path.touch()
    locked = Signal()

    def hold() -> None:
        fd, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)
        locked.say()
        signal.pause()

    child = Child(hold)
    locked.wait()
    assert refused(path, fcntl.LOCK_EX) and refused(path, fcntl.LOCK_SH, how="flock")
    child.kill()
    assert not refused(path, fcntl.LOCK_EX) and not refused(path, fcntl.LOCK_EX, how="flock")


def test_whole_file_locks(place: Path) -> None:
    path = place / "lock"
    with opened(path) as fd, opened(path) as second:
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert not refused(path, fcntl.LOCK_SH, how="flock") and refused(path, fcntl.LOCK_EX, how="flock")
        with fails(errno.EAGAIN):  # it belongs to the open file, not to the process
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert refused(path, fcntl.LOCK_SH, how="flock")
        # A child that inherits it shares it: it is still held when one of both closes.
        held, over = Signal(), Signal()

        def inherit() -> None:
            held.say()
            over.wait()

        child = Child(inherit)
        held.wait()
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert refused(path, fcntl.LOCK_EX, how="flock")
        over.say()
        child.result()
        fcntl.flock(fd, fcntl.LOCK_UN)
        assert not refused(path, fcntl.LOCK_EX, how="flock")


def test_locks_of_open_files(place: Path) -> None:
    """F_OFD_SETLK, as LMDB and newer SQLite builds use it."""
    path = place / "file"
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with opened(path) as one, opened(path) as two:
        fcntl.fcntl(one, OFD_SETLK, lock)
        with fails(errno.EAGAIN):
            fcntl.fcntl(two, OFD_SETLK, lock)
        with opened(path):
            pass  # does not give it up, unlike a process' lock
        with fails(errno.EAGAIN):
            fcntl.fcntl(two, OFD_SETLK, lock)


def test_a_lock_is_waited_for(place: Path) -> None:
    path, started, order = place / "file", Signal(), place / "order"
    path.touch()
    with opened(path) as fd:
        fcntl.lockf(fd, fcntl.LOCK_EX)

        def wait() -> None:
            with opened(path) as mine:
                started.say()
                fcntl.lockf(mine, fcntl.LOCK_EX)
                with order.open("a") as file:
                    file.write("second")

        child = Child(wait)
        started.wait()
        with order.open("a") as file:
            file.write("first ")
        fcntl.lockf(fd, fcntl.LOCK_UN)
        child.result()
    assert order.read_text() == "first second"


def test_a_counter_behind_a_lock(place: Path) -> None:
    path, start = place / "counter", Signal()
    path.write_bytes(bytes(8))

    def count() -> None:
        with opened(path) as fd:
            start.wait()
            for _ in range(150):
                fcntl.lockf(fd, fcntl.LOCK_EX)
                value = int.from_bytes(os.pread(fd, 8, 0), "little") + 1
                os.pwrite(fd, value.to_bytes(8, "little"), 0)
                fcntl.lockf(fd, fcntl.LOCK_UN)

    children = [Child(count) for _ in range(4)]
    start.say(4)
    for child in children:
        child.result()
    assert int.from_bytes(path.read_bytes(), "little") == 600


# --- mapped files ---------------------------------------------------------------------------------


def test_mapped_memory_is_shared_between_processes(each: Path) -> None:
    path = each / "map"
    path.write_bytes(bytes(16 * PAGE))
    ready, changed = Signal(), Signal()

    def watch() -> tuple[bytes, bytes]:
        with opened(path) as fd, mmap.mmap(fd, 0) as memory:
            first = memory[5 * PAGE : 5 * PAGE + 5]
            ready.say()
            changed.wait()
            memory[9 * PAGE : 9 * PAGE + 6] = b"answer"
            return first, memory[5 * PAGE : 5 * PAGE + 5]

    child = Child(watch)
    ready.wait()
    with opened(path) as fd, mmap.mmap(fd, 0) as memory:
        memory[5 * PAGE : 5 * PAGE + 5] = b"hello"
        changed.say()
        assert child.result() == (bytes(5), b"hello")
        assert memory[9 * PAGE : 9 * PAGE + 6] == b"answer"
        memory.flush()
    assert path.read_bytes()[9 * PAGE : 9 * PAGE + 6] == b"answer"


def test_reads_see_what_was_written_to_memory(each: Path) -> None:
    """LMDB with MDB_WRITEMAP, RocksDB, SQLite's -shm: both ways to a file show the same, at once."""
    path, data = each / "map", bytearray(random.Random(1).randbytes(MIB))
    path.write_bytes(data)
    with opened(path) as fd, mmap.mmap(fd, 0) as memory:
        r = random.Random(2)
        for n in range(60):
            offset, piece = r.randrange(MIB - 9000), r.randbytes(r.choice([1, 100, 9000]))
            if n % 2:
                memory[offset : offset + len(piece)] = piece
            else:
                os.pwrite(fd, piece, offset)
            data[offset : offset + len(piece)] = piece
            at = r.randrange(MIB - 20_000)
            assert os.pread(fd, 20_000, at) == data[at : at + 20_000]
            assert memory[at : at + 20_000] == data[at : at + 20_000]
            assert os.pread(fd, len(piece), offset) == piece == memory[offset : offset + len(piece)]
            if n % 7 == 0:
                memory.flush()
    assert path.read_bytes() == data


def test_what_was_written_to_memory_is_in_the_file(ground: Ground, each: Path) -> None:
    """After msync, after munmap alone, and after the writer was killed: the memory was the file's."""
    files = {name: each / name for name in ("synced", "unmapped", "killed")}
    for path in files.values():
        path.write_bytes(bytes(MIB))

    def write(path: Path, how: str) -> None:
        fd = os.open(path, os.O_RDWR)
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        memory[123_456 : 123_456 + len(how)] = how.encode()
        if how == "synced":
            memory.flush(0, MIB)
        elif how == "unmapped":
            memory.close()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    for name, path in files.items():
        try:
            in_child(partial(write, path, name))
        except Died as died:
            assert name == "killed" and died.signal == signal.SIGKILL
        assert path.read_bytes()[123_450:123_470].strip(b"\0") == name.encode()
    ground.restart()
    for name, path in files.items():
        assert path.read_bytes()[123_450:123_470].strip(b"\0") == name.encode()


def test_a_mapped_file_that_grows(place: Path) -> None:
    path = place / "map"
    with opened(path) as fd:
        os.ftruncate(fd, PAGE)
        with mmap.mmap(fd, PAGE) as memory:
            memory[0:5] = b"first"
            os.ftruncate(fd, 50 * PAGE)
            memory.resize(50 * PAGE)
            memory[49 * PAGE : 49 * PAGE + 4] = b"last"
            assert memory[PAGE : 49 * PAGE] == bytes(48 * PAGE)
        assert os.pread(fd, 4, 49 * PAGE) == b"last" and os.pread(fd, 5, 0) == b"first"
        assert os.fstat(fd).st_size == 50 * PAGE


def test_writing_to_memory_moves_the_times(place: Path) -> None:
    """At msync at the latest: POSIX. Backups go by it."""
    path = place / "map"
    path.write_bytes(bytes(4 * PAGE))
    with opened(path) as fd, mmap.mmap(fd, 0) as memory:
        for n in range(2):
            os.utime(path, ns=(10**9, 10**9))
            memory[n * PAGE] = 1
            memory.flush()
            assert path.stat().st_mtime_ns > 10**9


def test_memory_beyond_the_end_of_the_file(place: Path) -> None:
    path = place / "map"
    path.write_bytes(b"x" * (PAGE + 10))

    def touch(offset: int, cut: int | None = None) -> bytes:
        with opened(path) as fd, mmap.mmap(fd, 0) as memory:
            if cut is not None:
                assert memory[offset : offset + 1] == b"x"
                os.ftruncate(fd, cut)
            return memory[offset : offset + 1]

    def far() -> bytes:
        with opened(path) as fd:
            os.ftruncate(fd, 3 * PAGE)
            with mmap.mmap(fd, 3 * PAGE) as memory:
                os.ftruncate(fd, PAGE + 10)
                assert memory[PAGE + 9 : PAGE + 11] == b"x\0", "the rest of the last page is zeros"
                return memory[2 * PAGE : 2 * PAGE + 1]

    assert in_child(lambda: touch(PAGE + 9)) == b"x"
    with pytest.raises(Died) as died:
        in_child(far)
    assert died.value.signal == signal.SIGBUS
    with pytest.raises(Died) as died:
        in_child(lambda: touch(PAGE, cut=PAGE))
    assert died.value.signal == signal.SIGBUS


def test_private_memory_stays_private(place: Path) -> None:
    path = place / "map"
    path.write_bytes(b"a" * PAGE)
    with opened(path) as fd, mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE) as memory:
        memory[0:3] = b"bbb"
        assert path.read_bytes() == b"a" * PAGE
    with opened(path, os.O_RDONLY) as fd, fails(errno.EACCES):
        mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE | mmap.PROT_READ)


def test_a_mapped_file_that_is_unlinked(place: Path) -> None:
    path = place / "map"
    path.write_bytes(b"a" * MIB)
    with opened(path) as fd:
        memory = mmap.mmap(fd, 0)
    path.unlink()
    memory[MIB - 3 :] = b"end"
    memory.flush()
    assert memory[:3] == b"aaa" and memory[MIB - 3 :] == b"end"
    memory.close()
    assert os.listdir(place) == []


def test_a_map_of_a_sparse_file(place: Path) -> None:
    path, size = place / "map", 4 << 30
    with opened(path) as fd:
        os.ftruncate(fd, size)
        with mmap.mmap(fd, size) as memory:
            for n in range(0, 4096, 97):
                memory[n * MIB : n * MIB + 4] = struct.pack("<I", n)
            assert memory[5 * MIB : 5 * MIB + 100] == bytes(100)
            memory.flush()
        for n in range(0, 4096, 97):
            assert os.pread(fd, 4, n * MIB) == struct.pack("<I", n)
        assert os.fstat(fd).st_blocks * 512 < 64 * MIB


def test_many_processes_write_to_one_map(each: Path) -> None:
    path, start, count = each / "map", Signal(), 5
    path.write_bytes(bytes(64 * PAGE))

    def write(who: int) -> None:
        with opened(path) as fd, mmap.mmap(fd, 0) as memory:
            start.wait()
            for n in range(64):  # neighbours on each page
                memory[n * PAGE + who * 100 : n * PAGE + who * 100 + 100] = bytes([who + 1]) * 100
                if n % 16 == who:
                    memory.flush()

    children = [Child(partial(write, who)) for who in range(count)]
    start.say(count)
    for child in children:
        child.result()
    page = b"".join(bytes([who + 1]) * 100 for who in range(count)) + bytes(PAGE - 100 * count)
    assert path.read_bytes() == page * 64


def test_attributes_are_set_while_memory_is_written_back(own_mount: Callable[..., Mounted]) -> None:
    """Pages go to the file system in the background: a transaction group is full, and what has to wait for
    the next one must hold nothing that this one needs.
    """
    mounted = own_mount(spec(tunables={"zfs_dirty_data_max": MIB, "zfs_delay_min_dirty_percent": 99}))
    file, size = mounted.small / "file", 64 * MIB
    file.touch()
    os.truncate(file, size)

    def store() -> None:
        with opened(file) as fd, mmap.mmap(fd, size) as memory:
            for n in range(3):
                for at in range(0, size, PAGE):
                    memory[at] = n + 1
                memory.flush()

    def name() -> None:
        for n in itertools.count():
            os.setxattr(file, "user.n", str(n).encode())

    children = [Child(store), Child(name), Child(name)]
    impatient = threading.Timer(60, mounted.kill)  # nobody comes out of it otherwise
    impatient.start()
    try:
        children[0].result()
    finally:
        impatient.cancel()
        for child in children:
            child.kill()
    assert os.getxattr(file, "user.n")


# --- signals ----------------------------------------------------------------------------------------


def test_signals_do_not_interrupt_calls(each: Path) -> None:
    """PostgreSQL's processes send each other signals all the time; EINTR or half a write is no
    answer of a file.
    """

    def work() -> list[str]:
        heard = 0

        def hear(*_: object) -> None:
            nonlocal heard
            heard += 1

        signal.signal(signal.SIGALRM, hear)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
        libc = ctypes.CDLL(None, use_errno=True)
        block, back = os.urandom(256 << 10), ctypes.create_string_buffer(256 << 10)
        wrong: list[str] = []

        def call(name: str, wanted: int | None, *arguments: object) -> int:
            # Not by Python's own functions: those would call again.
            got = int(getattr(libc, name)(*arguments))
            if got < 0 or (wanted is not None and got != wanted):
                wrong.append(f"{name}: {got}, {errno.errorcode.get(ctypes.get_errno(), '-')}")
            return got

        def name_of(number: int) -> bytes:
            return os.fsencode(each / f"file{number % 7}")

        for n in range(150):
            fd = call("open", None, name_of(n), os.O_RDWR | os.O_CREAT, 0o644)
            call("pwrite64", len(block), fd, block, len(block), ctypes.c_int64(n * 5000))
            call("pread64", len(block), fd, back, len(block), ctypes.c_int64(n * 5000))
            if back.raw != block:
                wrong.append(f"round {n}: other bytes")
            if n % 5 == 0:
                call("fsync", 0, fd)
            call("close", 0, fd)
            call("rename", 0, name_of(n), name_of(n + 1))
        signal.setitimer(signal.ITIMER_REAL, 0)
        return wrong if heard > 20 else ["too few signals"]

    assert in_child(work) == []
