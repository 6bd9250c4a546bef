"""Programs that count their own I/O, or whose I/O is known: fio, SQLite, a JVM."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from recording import Seen, run_python

from ztune.trace.record import Recording, record
from ztune.trace.schema import Via

SIZE = 1 << 20


def fio(
    work: Path, recorder: str, engine: str, *options: str
) -> tuple[Seen, dict[str, tuple[int, int]], int]:
    """Record a fio job; return the trace, what fio says it read and wrote (count, bytes), and its syncs."""
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    (work / "f.dat").write_bytes(bytes(SIZE))  # so that fio need not lay it out
    report = work.parent / "fio.json"
    command = ["fio", "--name=j", f"--filename={work / 'f.dat'}", f"--size={SIZE}", "--randseed=7"]
    command += [f"--ioengine={engine}", "--output-format=json", f"--output={report}", *options]
    out = work.parent / f"{engine}-{recorder}.trace"
    seen = Seen(record(Recording(out, command=command, recorder=recorder, paths=[work])))
    job = json.loads(report.read_text())["jobs"][0]
    assert seen.trace.manifest.complete and seen.trace.manifest.dropped == 0
    said = {rw.upper(): (job[rw]["total_ios"], job[rw]["io_bytes"]) for rw in ("read", "write")}
    return seen, said, job["sync"]["total_ios"]


@pytest.mark.parametrize("engine", ["psync", "sync", "pvsync", "pvsync2", "libaio", "io_uring"])
def test_counts_and_bytes_are_those_of_fio(work: Path, recorder: str, engine: str) -> None:
    if engine == "io_uring" and recorder == "strace":
        pytest.skip("strace can't see io_uring")
    seen, said, syncs = fio(
        work, recorder, engine, "--rw=randrw", "--bsrange=1k-16k", "--fsync=10", "--iodepth=4"
    )
    totals = seen.totals("f.dat")
    assert {op: totals[op] for op in ("READ", "WRITE")} == said
    assert totals["FSYNC"] == (syncs, 0)
    assert set(totals) == {"READ", "WRITE", "FSYNC"}
    via = {"libaio": Via.AIO, "io_uring": Via.URING}.get(engine, Via.SYSCALL)
    assert {e["via"] for e in seen.rows("f.dat") if e["op"] != 3} == {via}
    assert all(e["offset"] + e["size"] <= SIZE for e in seen.rows("f.dat"))


def test_fdatasync_and_direct_io_of_fio(work: Path, recorder: str) -> None:
    seen, said, _ = fio(
        work, recorder, "psync", "--rw=write", "--bs=8k", "--fdatasync=4", "--direct=1", "--fallocate=none"
    )
    # fio counts no fdatasyncs; it makes one after each 4 writes, but none after the last.
    assert seen.totals("f.dat") == {"WRITE": said["WRITE"], "FDATASYNC": (SIZE // 8192 // 4 - 1, 0)}
    offsets = [offset for op, offset, _ in seen.of("f.dat") if op == "WRITE"]
    assert offsets == list(range(0, SIZE, 8192))
    assert {e["flags"] & 4 for e in seen.rows("f.dat") if e["op"] == 2} == {4}


def test_registered_files_of_io_uring(work: Path, ebpf: str) -> None:
    seen, said, _ = fio(
        work, ebpf, "io_uring", "--rw=randwrite", "--bs=4k", "--iodepth=8", "--registerfiles=1"
    )
    assert seen.totals("f.dat") == {"WRITE": said["WRITE"]}
    assert seen.file("f.dat").size_start == SIZE


@pytest.mark.parametrize("how", [("--sqthread_poll=1", "--registerfiles=1"), ("--force_async=1",)])
def test_io_uring_by_its_own_kernel_thread_and_by_workers(
    work: Path, ebpf: str, how: tuple[str, ...]
) -> None:
    seen, said, _ = fio(work, ebpf, "io_uring", "--rw=randrw", "--bs=4k", "--iodepth=4", *how)
    assert {op: n for op, n in seen.totals("f.dat").items() if op in said} == said


def test_mapped_io_of_fio_is_warned_of(work: Path, recorder: str) -> None:
    seen, _, _ = fio(work, recorder, "mmap", "--rw=randwrite", "--bs=4k", "--fsync=64")
    assert "MMAP" in seen.totals("f.dat")
    assert [w.code for w in seen.trace.manifest.warnings] == ["shared-mmap"]


def test_several_jobs_of_fio_at_once(work: Path, recorder: str) -> None:
    seen, said, syncs = fio(
        work,
        recorder,
        "psync",
        *["--rw=randrw", "--bs=4k", "--numjobs=3", "--group_reporting", "--fsync=20", "--thread"],
    )
    totals = seen.totals("f.dat")
    assert {op: totals[op] for op in said} == said
    assert totals["FSYNC"] == (syncs, 0)
    assert len({e["tid"] for e in seen.rows("f.dat")}) == 3


def test_sqlite_commits(work: Path, recorder: str) -> None:
    program = """
import sqlite3
for name, mode in (("rollback.db", "delete"), ("ahead.db", "wal")):
    c = sqlite3.connect(name, isolation_level=None)
    c.execute(f"PRAGMA journal_mode={mode}"); c.execute("PRAGMA synchronous=FULL")
    c.execute("PRAGMA wal_autocheckpoint=0")
    c.execute("CREATE TABLE t (x)")
    for i in range(10):
        c.execute("INSERT INTO t VALUES (?)", (i,))
    if mode == "delete":
        c.close()
os._exit(0)
"""
    seen = run_python(program, work, recorder)
    # WAL mode, synchronous=FULL: one sync of the WAL for each of 11 transactions, none of the database
    # (https://www.sqlite.org/wal.html); the first also syncs the WAL's header.
    wal = seen.totals("ahead.db-wal")
    assert wal["FDATASYNC"][0] + wal.get("FSYNC", (0, 0))[0] == 12
    assert wal["WRITE"][1] == seen.file("ahead.db-wal").size_end
    assert seen.file("ahead.db").role == "data" and seen.file("ahead.db-wal").role == "wal"
    # Rollback journal: made and removed by each transaction.
    journals = [f for f in seen.files if f.path.endswith("rollback.db-journal")]
    assert len(journals) == 11 and all(f.created and f.deleted for f in journals)
    assert not [w for w in seen.trace.manifest.warnings if w.code == "shared-mmap"]
    assert sqlite3.connect(work / "ahead.db").execute("SELECT count(*) FROM t").fetchone() == (10,)
    compressed = {(c.role, c.recordsize) for c in seen.trace.manifest.compressibility}
    assert ("data", 8192) in compressed and ("wal", 8192) in compressed


JAVA = """
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.*;
import static java.nio.file.StandardOpenOption.*;

public class Program {
    public static void main(String[] a) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(a[0] + "/raf", "rw")) {
            f.write(new byte[100]); f.seek(4096); f.write(new byte[200]); f.getFD().sync();
            f.seek(50); f.readFully(new byte[60]); f.setLength(4096);
        }
        Path p = Paths.get(a[0], "channel");
        try (FileChannel c = FileChannel.open(p, CREATE, WRITE, READ)) {
            c.write(ByteBuffer.allocate(1000)); c.write(ByteBuffer.allocate(24), 8192);
            c.write(new ByteBuffer[] {ByteBuffer.allocate(3), ByteBuffer.allocate(4)});
            c.force(false); c.force(true);
            c.read(ByteBuffer.allocate(500), 0);
            FileChannel d = FileChannel.open(Paths.get(a[0], "mapped"), CREATE, WRITE, READ);
            d.map(FileChannel.MapMode.READ_WRITE, 0, 4096).put(0, (byte) 1);
        }
        Files.move(p, Paths.get(a[0], "moved"));
    }
}
"""


def test_a_jvm(work: Path, recorder: str) -> None:
    if shutil.which("java") is None:
        pytest.skip("java is not installed")
    source = work.parent / "Program.java"
    source.write_text(JAVA)
    command = ["java", "-XX:TieredStopAtLevel=1", str(source), str(work)]
    seen = Seen(
        record(Recording(work.parent / "jvm.trace", command=command, recorder=recorder, paths=[work]))
    )
    raf = [event for event in seen.of("raf") if event[0] != "CREATE"]
    assert raf == [
        ("WRITE", 0, 100),
        ("WRITE", 4096, 200),
        ("FSYNC", -1, 0),
        ("READ", 50, 60),
        ("TRUNCATE", -1, 4096),
    ]
    assert seen.of("moved") == [
        ("CREATE", -1, 0),
        ("WRITE", 0, 1000),
        ("WRITE", 8192, 24),
        ("WRITE", 1000, 7),
        ("FDATASYNC", -1, 0),
        ("FSYNC", -1, 0),
        ("READ", 0, 500),
        ("RENAME", -1, 0),
    ]
    warnings = {w.code: w for w in seen.trace.manifest.warnings}
    assert str(work / "mapped") in warnings["shared-mmap"].message
    assert "hsperfdata" not in warnings["shared-mmap"].message


def test_a_forking_writer_is_counted_whole(work: Path, ebpf: str) -> None:
    """Many processes at once: nothing lost, nothing counted twice."""
    program = """
f = os.open("a", os.O_RDWR | os.O_CREAT)
for i in range(20):
    if os.fork() == 0:
        for j in range(200):
            os.pwrite(f, bytes(512), 512 * (200 * i + j))
        os.fsync(f); os._exit(0)
for i in range(20):
    os.wait()
"""
    seen = run_python(program, work, ebpf)
    totals = seen.totals("a")
    assert totals["WRITE"] == (4000, 4000 * 512) and totals["FSYNC"] == (20, 0)
    offsets = sorted(offset for op, offset, _ in seen.of("a") if op == "WRITE")
    assert offsets == list(range(0, 4000 * 512, 512))
