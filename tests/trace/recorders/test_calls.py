"""Each kind of call once, with the events that must come of it; the same for both recorders."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import Seen, run_python

from ztune.trace.schema import Flag, Op, Via

LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\noff = ctypes.c_long\n"


def test_reads_and_writes_by_position_and_offset(work: Path, recorder: str) -> None:
    (work / "a").write_bytes(bytes(10000))
    seen = run_python(
        """
f = os.open("a", os.O_RDWR)
os.read(f, 100); os.write(f, b"x" * 50); os.lseek(f, 1000, 0)
os.readv(f, [bytearray(10), bytearray(20)]); os.writev(f, [b"ab", b"cde"])
os.pread(f, 7, 5000); os.pwrite(f, b"12345678", 6000)
os.preadv(f, [bytearray(4), bytearray(5)], 7000); os.pwritev(f, [b"xy", b"z"], 8000)
os.preadv(f, [bytearray(6)], 9000)
os.read(f, 2)
os.pread(f, 100, 9990); os.pread(f, 100, 20000)
""",
        work,
        recorder,
    )
    assert seen.of("a") == [
        ("READ", 0, 100),
        ("WRITE", 100, 50),
        ("READ", 1000, 30),
        ("WRITE", 1030, 5),
        ("READ", 5000, 7),
        ("WRITE", 6000, 8),
        ("READ", 7000, 9),
        ("WRITE", 8000, 3),
        ("READ", 9000, 6),
        ("READ", 1035, 2),
        ("READ", 9990, 10),
        ("READ", 20000, 0),
    ]
    file = seen.file("a")
    assert (file.size_start, file.size_end, file.created, file.deleted) == (10000, 10000, False, False)
    assert {e["via"] for e in seen.rows("a")} == {Via.SYSCALL}
    named = [bool(e["flags"] & Flag.POSITIONED) for e in seen.rows("a")]
    assert named == [offset in (5000, 6000, 7000, 8000, 9000, 9990, 20000) for _, offset, _ in seen.of("a")]
    assert all(e["dur"] > 0 and e["t"] + e["dur"] <= seen.trace.manifest.duration_ns for e in seen.rows("a"))


def test_append_flags_and_synchronous_writes(work: Path, recorder: str) -> None:
    (work / "log").write_bytes(bytes(300))
    seen = run_python(
        """
f = os.open("log", os.O_WRONLY | os.O_APPEND)
os.write(f, b"a" * 10); os.pwrite(f, b"b" * 20, 0); os.write(f, b"c")
g = os.open("sync", os.O_RDWR | os.O_CREAT | os.O_SYNC); os.write(g, b"s")
h = os.open("dsync", os.O_RDWR | os.O_CREAT | os.O_DSYNC); os.write(h, b"d")
os.pwritev(os.open("flags", os.O_RDWR | os.O_CREAT), [b"12"], 5, os.RWF_DSYNC)
os.pwritev(os.open("flags", os.O_RDWR), [b"123"], 5, os.RWF_SYNC)
import mmap
m = mmap.mmap(-1, 4096)
d = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT); os.pwrite(d, m, 4096)
""",
        work,
        recorder,
    )
    assert seen.of("log") == [("WRITE", 300, 10), ("WRITE", 310, 20), ("WRITE", 330, 1)]
    assert seen.file("log").size_start == 300

    def flags(name: str) -> list[int]:
        return [e["flags"] for e in seen.rows(name) if e["op"] == Op.WRITE]

    positioned = Flag.POSITIONED
    assert flags("log") == [Flag.APPEND, Flag.APPEND | positioned, Flag.APPEND]
    assert flags("sync") == [Flag.SYNC]
    assert flags("dsync") == [Flag.DSYNC]
    assert flags("flags") == [Flag.DSYNC | positioned, Flag.SYNC | positioned]
    assert flags("direct") == [Flag.DIRECT | positioned]
    assert seen.of("direct")[-1] == ("WRITE", 4096, 4096)


def test_syncs_and_space(work: Path, recorder: str) -> None:
    seen = run_python(
        LIBC
        + """
f = os.open("a", os.O_RDWR | os.O_CREAT, 0o600)
os.write(f, bytes(8192)); os.fsync(f); os.fdatasync(f)
libc.sync_file_range(f, off(4096), off(4096), 2)
libc.fallocate(f, 0, off(8192), off(4096))
libc.fallocate(f, 1, off(65536), off(4096))
libc.fallocate(f, 3, off(0), off(4096))
libc.fallocate(f, 0x10, off(4096), off(4096))
os.ftruncate(f, 100); os.truncate("a", 50)
libc.syncfs(f); os.sync()
g = os.open("a", os.O_RDWR | os.O_TRUNC)
try:
    os.fsync(9999)
except OSError:
    pass
""",
        work,
        recorder,
    )
    assert seen.of("a") == [
        ("CREATE", -1, 0),
        ("WRITE", 0, 8192),
        ("FSYNC", -1, 0),
        ("FDATASYNC", -1, 0),
        ("SYNC_RANGE", 4096, 4096),
        ("FALLOCATE", 8192, 4096),
        ("FALLOCATE", 65536, 4096),
        ("FALLOCATE", 0, 4096),
        ("FALLOCATE", 4096, 4096),
        ("TRUNCATE", -1, 100),
        ("TRUNCATE", -1, 50),
        ("TRUNCATE", -1, 0),
    ]
    flags = [e["flags"] for e in seen.rows("a") if e["op"] == Op.FALLOCATE]
    assert flags == [0, Flag.KEEP_SIZE, Flag.KEEP_SIZE | Flag.PUNCH, Flag.ZERO]
    assert [e["file"] for e in seen.events if e["op"] == Op.SYNC] == [-1, -1]
    assert seen.file("a").created and seen.file("a").size_start == 0 and seen.file("a").size_end == 0


def test_what_is_asked_to_be_read_ahead(work: Path, recorder: str) -> None:
    (work / "table").write_bytes(bytes(100_000))
    seen = run_python(
        LIBC
        + """
f = os.open("table", os.O_RDONLY)
os.posix_fadvise(f, 8192, 16384, os.POSIX_FADV_WILLNEED)
os.posix_fadvise(f, 65536, 0, os.POSIX_FADV_WILLNEED)
os.posix_fadvise(f, 98304, 8192, os.POSIX_FADV_WILLNEED)
os.posix_fadvise(f, 106496, 8192, os.POSIX_FADV_WILLNEED)
for advice in (os.POSIX_FADV_DONTNEED, os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL):
    os.posix_fadvise(f, 0, 8192, advice)
assert libc.readahead(f, off(4096), ctypes.c_size_t(4096)) == 0
try:
    os.posix_fadvise(f, -8192, 0, os.POSIX_FADV_WILLNEED)  # Linux takes it
except OSError:
    pass
os.ftruncate(w := os.open("large", os.O_RDWR | os.O_CREAT), 1 << 42)
os.posix_fadvise(w, 4096, 0, os.POSIX_FADV_WILLNEED)
""",
        work,
        recorder,
    )
    assert seen.of("table") == [
        ("READ_AHEAD", 8192, 16384),
        ("READ_AHEAD", 65536, 100_000 - 65536),
        ("READ_AHEAD", 98304, 100_000 - 98304),  # no further than the file goes
        ("READ_AHEAD", 4096, 4096),
    ]
    # All of a large file would be loaded, and of more than a TiB a replay refuses the trace.
    assert ("READ_AHEAD", 4096, 128 << 20) in seen.of("large")


def test_names(work: Path, recorder: str) -> None:
    (work / "old").write_bytes(bytes(7))
    (work / "kept").write_bytes(bytes(11))
    (work / "sub").mkdir()
    (work / "link").symlink_to("sub")
    seen = run_python(
        """
f = os.open("new", os.O_WRONLY | os.O_CREAT | os.O_EXCL); os.write(f, b"1234")
os.read(os.open("old", os.O_RDONLY), 7)
os.rename("new", "old")                       # over a file that is open
os.write(f, b"56")
os.unlink("old"); os.write(f, b"7")           # still open, no name left
sub = os.open("sub", os.O_RDONLY | os.O_DIRECTORY)
g = os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=sub); os.write(g, b"x")
os.rename("x", "y", src_dir_fd=sub, dst_dir_fd=sub)
os.rename("link/y", "z")                      # by way of a symbolic link
os.link("z", "z2"); os.unlink("z")
t = os.open(".", os.O_WRONLY | os.O_TMPFILE); os.write(t, b"nameless")
os.link(f"/proc/self/fd/{t}", "named", src_dir_fd=sub, follow_symlinks=True); os.write(t, b"!")
os.unlink("kept")                             # never opened
h = os.open("new", os.O_WRONLY | os.O_CREAT); os.write(h, b"again")   # the name is used again
""",
        work,
        recorder,
    )
    first, second = (f for f in seen.files if any(Path(n.path).name == "new" for n in f.names))
    old = next(f for f in seen.files if [Path(n.path).name for n in f.names] == ["old"])
    assert [Path(n.path).name for n in first.names] == ["new", "old"]
    assert first.created and first.deleted and old.deleted and not old.created
    if recorder == "ebpf":  # strace looks at a file a moment later: it was replaced by then
        assert old.size_start == 7
    events = [(Op(e["op"]).name, e["offset"], e["size"]) for e in seen.events if e["file"] == first.id]
    assert events == [
        ("CREATE", -1, 0),
        ("WRITE", 0, 4),
        ("RENAME", -1, 0),
        ("WRITE", 4, 2),
        ("UNLINK", -1, 0),
        ("WRITE", 6, 1),
    ]
    rename = next(e for e in seen.events if e["op"] == Op.RENAME and e["file"] == first.id)
    assert rename["file2"] == old.id
    z = seen.file("z2")
    assert [str(Path(n.path).relative_to(work)) for n in z.names] == ["sub/x", "sub/y", "z", "z2"]
    assert (z.path, z.deleted, z.size_end) == (str(work / "z2"), False, 1)
    if recorder == "ebpf":  # strace does not say which inode the nameless file has
        named = seen.file("named")
        assert (named.path, named.created, named.deleted) == (str(work / "named"), True, False)
        assert named.size_end == 9
        assert seen.of("named") == [("CREATE", -1, 0), ("WRITE", 0, 8), ("WRITE", 8, 1)]
    assert seen.of("kept") == [("UNLINK", -1, 0)] and seen.file("kept").deleted
    assert (second.created, second.deleted, second.size_end) == (True, False, 5)
    assert second.id != first.id


def test_copies_between_files(work: Path, recorder: str) -> None:
    (work / "a").write_bytes(bytes(1000))
    seen = run_python(
        """
a = os.open("a", os.O_RDONLY); b = os.open("b", os.O_RDWR | os.O_CREAT)
os.copy_file_range(a, b, 100, 200, 5000)
os.sendfile(b, a, 0, 300)                     # at b's position: 0
r, w = os.pipe()
os.splice(a, w, 50, offset_src=10); os.splice(r, b, 50, offset_dst=9000)
import socket
s, t = socket.socketpair()
os.sendfile(s.fileno(), a, 400, 60)
""",
        work,
        recorder,
    )
    assert seen.of("b") == [("CREATE", -1, 0), ("COPY", 5000, 100), ("COPY", 0, 300), ("WRITE", 9000, 50)]
    assert seen.of("a") == [("READ", 10, 50), ("READ", 400, 60)]
    assert {e["file2"] for e in seen.rows("b") if e["op"] == Op.COPY} == {seen.file("a").id}


def test_shared_mappings_are_named_in_a_warning(work: Path, recorder: str) -> None:
    (work / "a").write_bytes(bytes(16384))
    (work / "r.sst").write_bytes(bytes(16384))
    (work / "t-shm").write_bytes(bytes(16384))
    (work / "lock.mdb").write_bytes(bytes(16384))
    (work / "old.unknown").write_bytes(bytes(16384))
    seen = run_python(
        """
import mmap
f = os.open("a", os.O_RDWR); m = mmap.mmap(f, 8192, offset=4096); m[0] = 1
m.flush(4096, 4096)
mmap.mmap(f, 4096, flags=mmap.MAP_PRIVATE)
mmap.mmap(os.open("r.sst", os.O_RDONLY), 4096, prot=mmap.PROT_READ)
mmap.mmap(os.open("t-shm", os.O_RDWR), 4096)
mmap.mmap(os.open("lock.mdb", os.O_RDWR), 4096)
n = os.open("new.unknown", os.O_RDWR | os.O_CREAT); os.write(n, b"x" * 4096)
mmap.mmap(n, 4096, prot=mmap.PROT_READ)
o = os.open("old.unknown", os.O_RDONLY); os.read(o, 100)
mmap.mmap(o, 4096, prot=mmap.PROT_READ)
""",
        work,
        recorder,
    )
    assert seen.of("a") == [("MMAP", 4096, 8192), ("MSYNC", 8192, 4096)]
    warnings = {warning.code: warning for warning in seen.trace.manifest.warnings}
    assert warnings["shared-mmap"].count == 1 and str(work / "a") in warnings["shared-mmap"].message
    assert str(work / "r.sst") in warnings["mmap-reads"].message
    # It may get a role later; what was there, and no rule knows, may be a program or a library.
    assert str(work / "new.unknown") in warnings["mmap-reads"].message
    assert "old.unknown" not in warnings["mmap-reads"].message
    assert "t-shm" not in warnings["shared-mmap"].message
    assert "lock.mdb" not in warnings["shared-mmap"].message


def test_children_threads_and_shared_positions(work: Path, recorder: str) -> None:
    seen = run_python(
        """
import threading, subprocess
f = os.open("a", os.O_RDWR | os.O_CREAT); os.set_inheritable(f, True)
os.write(f, b"1")
t = threading.Thread(target=lambda: os.write(f, b"22")); t.start(); t.join()
if os.fork() == 0:
    os.write(f, b"333"); os._exit(0)
os.wait()
d = os.dup(f); os.write(d, b"4444")
os.dup2(f, 50); os.lseek(50, 100, 0); os.write(f, b"55555")
subprocess.run(["sh", "-c", f"printf 666666 >&{f}; sh -c 'printf 1234567 > b'"], close_fds=False)
""",
        work,
        recorder,
    )
    assert seen.of("a") == [
        ("CREATE", -1, 0),
        ("WRITE", 0, 1),
        ("WRITE", 1, 2),
        ("WRITE", 3, 3),
        ("WRITE", 6, 4),
        ("WRITE", 100, 5),
        ("WRITE", 105, 6),
    ]
    rows = seen.rows("a")
    main = rows[0]["pid"]
    assert [e["pid"] == main for e in rows] == [True, True, True, False, True, True, False]
    assert rows[2]["tid"] != rows[2]["pid"] and rows[3]["tid"] == rows[3]["pid"]
    assert seen.of("b")[-1] == ("WRITE", 0, 7)


def test_what_is_no_storage_is_left_out(work: Path, recorder: str) -> None:
    (work / "program.py").write_text(
        f"""
import os
open("/proc/self/status").read(); open("/sys/kernel/mm/transparent_hugepage/enabled").read()
name = "/dev/shm/ztune-test-%d" % os.getpid()
f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, b"x"); os.unlink(name)
os.write(os.memfd_create("m"), b"y")
r, w = os.pipe(); os.write(w, b"z")
os.write(os.open({str(work / "a")!r}, os.O_RDWR | os.O_CREAT), b"w")
"""
    )
    import sys

    from ztune.trace.record import Recording, record

    out = work.parent / "all.trace"
    seen = Seen(
        record(Recording(out, command=[sys.executable, "-I", str(work / "program.py")], recorder=recorder))
    )
    assert not [f.path for f in seen.files if f.path.startswith(("/proc", "/sys", "/dev", "/memfd"))]
    assert seen.of("a") == [("CREATE", -1, 0), ("WRITE", 0, 1)]


def test_a_deleted_and_reused_inode_is_another_file(work: Path, recorder: str) -> None:
    seen = run_python(
        """
for i in range(5):
    f = os.open(f"t{i}", os.O_RDWR | os.O_CREAT); os.write(f, bytes(i + 1)); os.close(f); os.unlink(f"t{i}")
""",
        work,
        recorder,
    )
    for i in range(5):
        assert seen.of(f"t{i}") == [("CREATE", -1, 0), ("WRITE", 0, i + 1), ("UNLINK", -1, 0)]


@pytest.mark.skipif(not Path("/proc/sys/kernel/io_uring_disabled").exists(), reason="no io_uring here")
def test_strace_says_that_it_cannot_see_io_uring(work: Path, strace: str) -> None:
    # io_uring_setup(2) is number 425 everywhere.
    seen = run_python(
        LIBC + "params = ctypes.create_string_buffer(120)\nassert libc.syscall(425, 4, params) >= 0\n",
        work,
        strace,
    )
    assert [warning.code for warning in seen.trace.manifest.warnings] == ["uring-unseen"]
