"""Observing live: what the kernel adds up equals what fio, strace and the calls themselves say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from waiting import until

from ztune.advice.findings import unknown_roles
from ztune.errors import InputError, MissingError
from ztune.observe import live_kernel, roles_by_use, subjects
from ztune.observe.live import LiveObservation
from ztune.observe.model import Group, Observation
from ztune.observe.subjects import choose
from ztune.onhost.host import mounts
from ztune.onhost.probes import procfs
from ztune.trace.recorders import kernel
from ztune.trace.roles import RoleRules

REASON = "needs root" if os.geteuid() != 0 else kernel.OBSERVER.problem()
in_kernel = pytest.mark.skipif(REASON is not None, reason=f"no eBPF: {REASON}")


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


@pytest.fixture
def work() -> Iterator[Path]:
    # Not tmp_path: that may be on tmpfs, which knows no O_DIRECT.
    folder = Path(tempfile.mkdtemp(prefix="ztune-live-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


class Waiting:
    """A shell that becomes a command when told."""

    def __init__(self, *command: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", 'echo ready >&2; read line && exec "$@"', "sh", *command],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        # Whoever looks at it from now on sees none of its own start, only its wait for a line.
        assert self.process.stderr is not None and self.process.stderr.readline() == "ready\n"
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)

    def go(self) -> None:
        _, errors = self.process.communicate("go\n", timeout=120)
        assert self.process.returncode == 0, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def observed(
    *command: str,
    folder: Path,
    rules: RoleRules | None = None,
    all_calls: bool = False,
    sample: int = 1,
) -> Observation:
    """Observe a command from its beginning to its end."""
    waiting = Waiting(*command, folder=folder)
    try:
        with LiveObservation(choose(pid=waiting.pid), rules, all_calls, sample) as live:
            assert live.in_kernel
            waiting.go()
            return live.finish()
    finally:
        waiting.kill()


def python(text: str, folder: Path, **options: Any) -> Observation:
    (folder / "program.py").write_text("import ctypes, mmap, os\n" + textwrap.dedent(text))
    return observed(sys.executable, "-I", "program.py", folder=folder, **options)


def of(seen: Observation, kind: str, name: str) -> Group:
    found = [g for g in seen.groups if g.kind == kind and g.name == name]
    assert len(found) == 1, [(g.kind, g.name) for g in seen.groups]
    return found[0]


@in_kernel
@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring", "pvsync2"])
def test_counts_equal_fios(work: Path, engine: str) -> None:
    fio = need("fio")
    for name in ("a", "b"):
        (work / name).write_bytes(os.urandom(1 << 20) * 8)
    jobs = work / "jobs"
    common = "ioengine={}\nfilesize=8m\nrandrepeat=1\niodepth=8\n"
    jobs.write_text(
        f"[global]\n{common.format(engine)}"
        "[a]\nfilename=a\nrw=randrw\nrwmixread=40\nbssplit=4k/30:8k/40:16k/30\nio_size=6m\nfsync=7\n"
        "[b]\nfilename=b\nrw=write\nbs=32k\nio_size=4m\nfdatasync=4\ndirect=1\n"
    )
    seen = observed(fio, "--output-format=json", "--output=out.json", str(jobs), folder=work)
    text = (work / "out.json").read_text()
    told = {job["jobname"]: job for job in json.loads(text[text.index("{") :])["jobs"]}
    for name in ("a", "b"):
        group = of(seen, "file", str(work / name))
        job = told[name]
        assert job["error"] == 0
        assert group.reads.calls == job["read"]["total_ios"]
        assert group.reads.bytes == job["read"]["io_bytes"]
        assert group.writes.calls == job["write"]["total_ios"]
        assert group.writes.bytes == job["write"]["io_bytes"]
        assert group.syncs.calls == job["sync"]["lat_ns"]["N"]
        for part in (group.reads, group.writes):
            assert sum(part.sizes.values()) == sum(part.latency.values()) == part.calls
        assert group.writes.overwritten == group.writes.bytes  # the files were there
    a, b = of(seen, "file", str(work / "a")), of(seen, "file", str(work / "b"))
    assert a.reads.calls and set(a.writes.sizes) == {4096, 8192, 16384} and not a.writes.direct
    assert set(b.writes.sizes) == {32768} and b.writes.direct == b.writes.calls
    assert b.writes.sequential == b.writes.calls - 1
    # fio names the mean of what it measured itself, a little around the call.
    mean = told["b"]["write"]["clat_ns"]["mean"] if engine == "psync" else None
    if mean is not None:
        assert b.writes.latency_total is not None
        assert b.writes.latency_total / b.writes.calls <= mean * 1.02
    assert not [limit for limit in seen.limits if "could not be counted" in limit]


@in_kernel
@pytest.mark.parametrize("call_after", [True, False])
def test_a_file_is_what_it_is_called_in_the_end(work: Path, call_after: bool) -> None:
    """etcd makes its next segment as 1.tmp, and renames it once it is needed; calls before and after count
    for the log, also where none comes after."""
    seen = python(
        f"""
        for name in ("2.tmp", "gone"):
            other = os.open(name, os.O_RDWR | os.O_CREAT)
            os.pwrite(other, b"y" * 100, 0)
        os.unlink("gone")
        log = os.open("1.tmp", os.O_RDWR | os.O_CREAT)
        for i in range(3):
            os.pwrite(log, b"x" * 512, 512 * i)
            os.fdatasync(log)
        os.rename("1.tmp", "0001.wal")
        for i in range(5 if {call_after} else 0):
            os.pwrite(log, b"x" * 512, 512 * i)
            os.fdatasync(log)
        os.unlink("0001.wal") if {call_after} else None
        """,
        folder=work,
        rules=RoleRules.parse(["*.wal=wal"]),
    )
    count = 8 if call_after else 3
    group = of(seen, "file", str(work / "0001.wal"))
    assert (group.role, group.writes.calls, group.syncs.calls) == ("wal", count, count)
    assert of(seen, "role", "wal").syncs.calls == count
    names = {g.name for g in seen.groups if g.kind == "file"}
    assert str(work / "1.tmp") not in names and {str(work / "2.tmp"), str(work / "gone")} <= names


@in_kernel
def test_roles_are_proposed_from_use_as_for_a_trace(work: Path) -> None:
    """What record says of the same files: pages overwritten in place, and a log."""
    seen = python(
        """
        os.makedirs("db")
        pages = os.open("db/store.7", os.O_RDWR | os.O_CREAT)
        os.pwrite(pages, b"x" * (1 << 20), 0)
        log = os.open("db/changes 001", os.O_RDWR | os.O_CREAT)
        for i in range(200):
            os.pwrite(pages, b"y" * 4096, (i * 37 % 256) * 4096)
            os.pwrite(log, b"z" * 700, i * 700)
            os.fdatasync(log)
        small = os.open("db/lock", os.O_RDWR | os.O_CREAT)
        os.pwrite(small, b"1", 0)
        list(open("/etc/group"))
        """,
        folder=work,
    )
    assert "/etc/group" in {g.name for g in seen.groups if g.kind == "file"}
    found = [
        one for one in roles_by_use.proposals(seen.groups, seen.seconds) if one.glob.startswith(f"{work}/db")
    ]
    assert [(one.glob, one.role) for one in found] == [
        (f"{work}/db/store.*", "data"), (f"{work}/db/changes *", "wal"),
    ]  # fmt: skip
    said = unknown_roles(seen)
    assert (
        f"By what they did: --role '{work}/db/store.*=data' (overwritten in place, in pieces of 8K); " in said
    )
    assert "/etc/group" not in said
    assert shlex.split(found[1].option) == ["--role", f"{work}/db/changes *=wal"]


@in_kernel
def test_a_name_that_no_rule_knows_takes_no_role_away(work: Path) -> None:
    """As of what is renamed to be deleted; and two links that are written by turns are one file."""
    seen = python(
        """
        log = os.open("0001.wal", os.O_RDWR | os.O_CREAT)
        os.link("0001.wal", "second")
        second = os.open("second", os.O_RDWR)
        for i in range(200):
            os.pwrite(log if i % 2 else second, b"x" * 512, 512 * i)
        os.rename("0001.wal", "0001.deleted")
        os.unlink("second")
        os.pwrite(log, b"x" * 512, 0)
        """,
        folder=work,
        rules=RoleRules.parse(["*.wal=wal"]),
    )
    group = of(seen, "file", str(work / "0001.deleted"))
    assert (group.role, group.writes.calls) == ("wal", 201)
    assert not [limit for limit in seen.limits if "could not be counted" in limit]


def test_only_a_file_that_lost_its_name_is_looked_for(tmp_path: Path) -> None:
    def file(name: str, inode: int) -> live_kernel.SeenFile:
        return live_kernel.SeenFile(str(tmp_path / name), 1, inode, 0)

    for name in ("a", "new", "taken"):
        (tmp_path / name).touch()
    inode = {p.name: p.stat().st_ino for p in tmp_path.iterdir()}
    files = {
        1: file("a", inode["a"]), 2: file("old", inode["new"]), 3: file("gone", 1 << 40),
        4: file("before", inode["taken"]), 5: file("taken", inode["taken"]), 6: file("no/folder", 1),
    }  # fmt: skip
    found = live_kernel.renamed_since(files)
    assert found == {2: files[2].renamed(str(tmp_path / "new"))}
    assert found[2].before == (str(tmp_path / "old"),)


@in_kernel
def test_positions_sizes_and_flags(work: Path) -> None:
    (work / "old").write_bytes(bytes(100_000))
    seen = python(
        """
        f = os.open("old", os.O_RDWR)
        for i in range(5): os.read(f, 4096)
        os.pread(f, 4096, 8192); os.pread(f, 4096, 12288); os.pread(f, 1000, 0); os.pread(f, 10, 200_000)
        os.pwrite(f, b"x" * 8192, 0); os.pwrite(f, b"x" * 1, 8192); os.pwritev(f, [b"y" * 99_000], 50_000)
        g = os.open("new", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC)
        for i in range(4): os.write(g, b"z" * 3)
        os.fsync(g); os.fdatasync(g); os.fsync(f)
        m = mmap.mmap(-1, 8192)
        h = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.pwrite(h, m, 4096); os.preadv(h, [m], 0)
        for i in range(3):
            try: os.fsync(999)
            except OSError: pass
        try: os.pwrite(os.open("old", os.O_RDONLY), b"1", 0)
        except OSError: pass
        """,
        work,
        all_calls=True,
    )
    old = of(seen, "file", str(work / "old"))
    assert (old.reads.calls, old.reads.bytes) == (9, 5 * 4096 + 2 * 4096 + 1000)
    assert old.reads.sizes == {4096: 7, 512: 1, 0: 1}
    assert old.reads.sequential == 5  # four, and the one at 12288
    assert old.reads.aligned == 7
    assert old.reads.overwritten is None and old.reads.synced is None
    assert (old.writes.calls, old.writes.bytes) == (3, 8192 + 1 + 99_000)
    assert old.writes.overwritten == 8192 + 1 + 50_000
    assert old.writes.sizes == {8192: 1, 1: 1, 65536: 1} and old.writes.sequential == 1
    new = of(seen, "file", str(work / "new"))
    assert new.writes.calls == new.writes.synced == 4 and new.writes.overwritten == 0
    assert new.writes.sequential == 3 and new.writes.sizes == {2: 4}
    assert new.syncs.calls == sum(new.syncs.latency.values()) == 2 and new.syncs.latency_total
    direct = of(seen, "file", str(work / "direct"))
    assert direct.writes.direct == direct.reads.direct == direct.writes.aligned == 1
    calls = {call.name: call for call in seen.calls}
    assert calls["fsync"].calls == 5 and calls["fsync"].errors == 3
    assert calls["pwrite64"].errors == 1
    for call in seen.calls:
        assert sum(call.latency.values()) == call.calls and call.seconds is not None


@in_kernel
def test_calls_on_sockets_are_timed_only_where_that_is_asked_for(work: Path) -> None:
    text = """
        import socket
        a, b = socket.socketpair()
        f = os.open("file", os.O_RDWR | os.O_CREAT)
        for i in range(20):
            a.send(b"x"); b.recv(1); os.write(b.fileno(), b"x"); os.read(a.fileno(), 1)
            os.pwrite(f, b"x" * 100, 100 * i)
        """
    some, every = (python(text, work, all_calls=asked) for asked in (False, True))
    counts = [{call.name: call.calls for call in seen.calls} for seen in (some, every)]
    assert counts[0]["pwrite64"] == counts[1]["pwrite64"] == 20
    assert not counts[0].keys() & {"sendto", "recvfrom", "write"}
    assert counts[1]["sendto"] == counts[1]["recvfrom"] == 20 <= counts[1]["write"]
    assert [bool([one for one in seen.limits if "--calls" in one]) for seen in (some, every)] == [True, False]
    files = [of(seen, "file", str(work / "file")).writes for seen in (some, every)]
    assert files[0].calls == files[1].calls == 20 and files[0].sizes == files[1].sizes


@in_kernel
def test_a_part_of_the_time_stands_for_all(work: Path) -> None:
    text = """
        import time
        os.rename("program.py", "renamed.py")
        f, end, n = os.open("first", os.O_RDWR | os.O_CREAT), time.monotonic() + 6, 0
        while time.monotonic() < end:
            for _ in range(5):
                os.pwrite(f, b"x" * 8192, 8192 * (n := n + 1))
            os.pread(f, 512, 0)
            os.rename("first", "second") if n == 5 else time.sleep(0.002)
        open("count", "w").write(str(n))
        """
    seen = python(text, work, sample=8)
    file, did = of(seen, "file", str(work / "second")), int((work / "count").read_text())
    assert did / 2 < file.writes.calls < did * 2 and set(file.writes.sizes) == {8192}
    assert file.writes.bytes == pytest.approx(file.writes.calls * 8192, rel=0.01)
    assert file.reads.calls == pytest.approx(file.writes.calls / 5, rel=0.2)
    said = next(one for one in seen.limits if one.startswith("Calls were counted for"))
    watched, window = (float(one) for one in re.findall(r"for ([\d.]+) of (\d+) s", said)[0])
    assert 0 < watched < window / 4


@in_kernel
def test_a_call_that_began_in_a_piece_of_time_never_ends_in_another(work: Path) -> None:
    text = """
        import time
        for _ in range(14):
            time.sleep(0.7)
        """
    sleeps = [one for one in python(text, work, all_calls=True, sample=4).calls if "nanosleep" in one.name]
    # From the beginning of one to the end of another it would be 1.4 s and more.
    assert all(at < 1_000_000_000 for one in sleeps for at in one.latency)


@in_kernel
def test_a_request_that_another_took_the_place_of_does_not_end_with_it(work: Path) -> None:
    """Of asynchronous I/O the end is told by an address, at which later ones lie as well."""
    fio = need("fio")
    jobs = work / "jobs"
    jobs.write_text("[a]\nfilename=a\nfilesize=8m\nioengine=libaio\niodepth=64\ndirect=1\nbs=4k\n")
    with jobs.open("a") as more:
        more.write("rw=randread\ntime_based\nruntime=6\n")
    seen = observed(fio, "--output-format=json", "--output=out.json", str(jobs), folder=work, sample=8)
    text = (work / "out.json").read_text()
    [told] = json.loads(text[text.index("{") :])["jobs"]
    reads = of(seen, "file", str(work / "a")).reads
    # By the end of one in another piece of time it would be 0.8 s and more; fio leaves its last ones out.
    assert reads.calls and max(reads.latency) <= max(told["read"]["lat_ns"]["max"], 1 << 28)


@in_kernel
def test_returns_from_signals_are_calls_too(work: Path) -> None:
    text = """
        import signal
        signal.signal(signal.SIGUSR1, lambda *_: None)
        for i in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
        """
    counts = {call.name: call.calls for call in python(text, work, all_calls=True).calls}
    assert counts["kill"] == counts["rt_sigreturn"] == 20


@in_kernel
def test_copies_and_sendfile(work: Path) -> None:
    (work / "from").write_bytes(bytes(50_000))
    seen = python(
        """
        f, t = os.open("from", os.O_RDONLY), os.open("to", os.O_WRONLY | os.O_CREAT)
        n = os.copy_file_range(f, t, 20_000, 0, 0)
        assert n == 20_000, n
        assert os.sendfile(t, f, 20_000, 30_000) == 30_000
        """,
        work,
    )
    assert of(seen, "file", str(work / "from")).reads.bytes == 50_000
    assert of(seen, "file", str(work / "from")).reads.sequential == 1
    assert of(seen, "file", str(work / "to")).writes.bytes == 50_000


@in_kernel
def test_roles_calls_and_sums(work: Path) -> None:
    seen = python(
        """
        os.mkdir("pg_wal")
        w = os.open("pg_wal/000000010000000000000001", os.O_WRONLY | os.O_CREAT)
        for i in range(10): os.pwrite(w, bytes(8192), i * 8192); os.fdatasync(w)
        libc = ctypes.CDLL(None)  # begins to write pages out, promises nothing
        for i in range(3): assert libc.sync_file_range(w, ctypes.c_long(0), ctypes.c_long(8192), 2) == 0
        for name in ("1", "2"):
            f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, b"1" * 10); os.pread(f, 4, 0)
        """,
        work,
        rules=RoleRules.parse([f"{work}/pg_wal/**=wal", f"{work}/[12]=data"], builtin=False),
    )
    wal, data = of(seen, "role", "wal"), of(seen, "role", "data")
    assert (wal.writes.calls, wal.writes.bytes, wal.syncs.calls) == (10, 81920, 10)
    assert (data.writes.calls, data.reads.calls, data.reads.bytes) == (2, 2, 8)
    by_call = {(g.role, g.name): g for g in seen.groups if g.kind == "call"}
    assert by_call["wal", "pwrite64"].writes == wal.writes
    assert by_call["wal", "fdatasync"].syncs == wal.syncs
    assert by_call["wal", "sync_file_range"].syncs.calls == 3
    assert by_call["data", "pread64"].reads == data.reads
    assert wal.filesystem == of(seen, "file", str(work / "1")).filesystem
    assert of(seen, "role", "none").role is None


@in_kernel
def test_descendants_processor_time_and_switches(work: Path) -> None:
    seen = python(
        """
        import subprocess, sys, threading, time
        def busy():
            end = time.thread_time() + 0.3
            while time.thread_time() < end: pass
        for i in range(3):
            if os.fork() == 0:
                if os.fork() == 0:
                    f = os.open(f"deep{i}", os.O_WRONLY | os.O_CREAT); os.write(f, b"12345")
                    for _ in range(20): time.sleep(0.002)
                    os._exit(0)
                os.wait(); os._exit(0)
        for i in range(3): os.wait()
        thread = threading.Thread(target=busy); thread.start(); thread.join()
        """,
        work,
    )
    assert sum(of(seen, "file", f"{work}/deep{i}").writes.bytes or 0 for i in range(3)) == 15
    assert seen.cpu_seconds is not None and 0.3 <= seen.cpu_seconds < 3
    assert seen.context_switches is not None and 60 <= seen.context_switches["voluntary"] < 1000
    assert seen.interrupts and all(n > 0 for n in seen.interrupts.values())
    assert any(name.startswith("softirq ") for name in seen.interrupts)
    assert seen.own_cpu_seconds is not None and 0 < seen.own_cpu_seconds < 10


@in_kernel
def test_calls_equal_straces(work: Path) -> None:
    strace = need("strace")
    (work / "x").write_bytes(bytes(64 << 10))
    waiting = Waiting("dd", "if=x", "of=y", "bs=1k", "conv=fsync,notrunc", "oflag=dsync", folder=work)
    tracer = subprocess.Popen(
        [strace, "-f", "-c", "-o", work / "counts", "-p", str(waiting.pid)], stderr=subprocess.DEVNULL
    )
    try:
        while not re.search(r"TracerPid:\t[1-9]", Path(f"/proc/{waiting.pid}/status").read_text()):
            assert tracer.poll() is None
            time.sleep(0.05)
        with LiveObservation(choose(pid=waiting.pid), all_calls=True) as live:
            time.sleep(0.1)  # the call under way is seen to begin again by both, or by none
            waiting.go()
            seen = live.finish()
        tracer.wait(30)
    finally:
        tracer.kill()
        tracer.wait()
        waiting.kill()
    told: dict[str, tuple[int, int]] = {}
    for line in (work / "counts").read_text().splitlines():
        words = line.split()
        if len(words) in (5, 6) and words[3].isdigit() and words[-1] != "total":
            told[words[-1]] = (int(words[3]), int(words[4]) if len(words) == 6 else 0)
    counted = {call.name: (call.calls, call.errors) for call in seen.calls}
    assert counted["write"][0] >= 64 and counted["fsync"] == (1, 0)
    # The shell waited in a read() when observing began: it is strace's only.
    told["read"] = (told["read"][0] - 1, told["read"][1])
    for name in ("exit_group", "restart_syscall"):
        told.pop(name, None)
        counted.pop(name, None)
    assert counted == told


@in_kernel
def test_all_that_is_below_a_folder(work: Path) -> None:
    for name in ("in/deep", "out"):
        (work / name).mkdir(parents=True)
    (work / "in/hidden").symlink_to(work / "out")
    inside = Waiting("dd", "if=/dev/zero", "of=in/deep/file", "bs=4k", "count=30", folder=work)
    outside = Waiting("dd", "if=/dev/zero", "of=in/hidden/file", "bs=4k", "count=20", folder=work)
    try:
        with LiveObservation(choose(path=work / "in")) as live:
            assert live.in_kernel
            outside.go()
            inside.go()
            with (work / "in" / "own").open("wb") as own:  # ztune's own calls are none of the database's
                own.write(b"own")
            seen = live.finish()
    finally:
        inside.kill()
        outside.kill()
    assert [g.name for g in seen.groups if g.kind == "file"] == [str(work / "in/deep/file")]
    assert of(seen, "file", str(work / "in/deep/file")).writes.calls == 30
    assert live._reading is not None and live._reading.message["processes"] == 1
    assert [(call.name, call.calls) for call in seen.calls] == [("write", 30)]
    assert any("Files were chosen" in limit for limit in seen.limits)


@in_kernel
def test_a_dataset_is_its_device(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    shm = [m for m in mounts.table() if m.point == Path("/dev/shm")]
    if not shm:
        pytest.skip("/dev/shm is no file system of its own")
    there = shm[-1]  # later ones lie on top
    # A tmpfs stands for the dataset: the observer knows it by its device only.
    monkeypatch.setattr(
        mounts, "table", lambda: [mounts.MountInfo(there.point, "/", "zfs", "tank/pg", there.device)]
    )
    sizes = {subjects.of_path("/dev/shm").devices[0]: 16384}
    monkeypatch.setattr(live_kernel, "record_sizes", lambda: sizes)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ztune-live-") as folder:
        on = Waiting("dd", "if=/dev/zero", "of=file", "bs=8k", "count=20", folder=Path(folder))
        large = Waiting("dd", "if=/dev/zero", "of=large", "bs=32k", "count=5", folder=Path(folder))
        off = Waiting("dd", "if=/dev/zero", "of=file", "bs=8k", "count=20", folder=work)
        with LiveObservation(choose(dataset="tank/pg")) as live:
            for each in (on, large, off):
                each.go()
            seen = live.finish()
        mine = [g for g in seen.groups if g.kind == "file" and g.name.startswith("/dev/shm/ztune-live-")]
        assert {g.name for g in mine} == {f"{folder}/file", f"{folder}/large"}
        assert {(g.dataset, g.pool) for g in mine} == {("tank/pg", "tank")}
        assert of(seen, "file", f"{folder}/file").writes.calls == 20
        assert of(seen, "file", f"{folder}/file").writes.aligned == 0  # 8K of records of 16K
        assert of(seen, "file", f"{folder}/large").writes.aligned == 5
    assert not [g for g in seen.groups if g.kind == "file" and g.name.startswith(str(work))]


@in_kernel
def test_a_unit_and_what_it_starts_later(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Waiting("dd", "if=/dev/zero", "of=one", "bs=4k", "count=3", folder=work)
    later = Waiting("dd", "if=/dev/zero", "of=two", "bs=4k", "count=4", folder=work)
    root = work / "cgroup"
    members = root / "db.service" / "cgroup.procs"
    members.parent.mkdir(parents=True)
    (root / "cgroup.procs").write_text("")
    members.write_text(f"{first.pid}\n")
    monkeypatch.setattr(subjects, "CGROUPS", (str(root),))
    with LiveObservation(choose(unit="db")) as live:
        members.write_text(f"{first.pid}\n{later.pid}\n")
        assert not live.wait(1.1)
        first.go()
        members.write_text("")
        assert not live.wait(1.1)  # it is stopped, and may be started again
        members.write_text(f"{later.pid}\n")
        assert not live.wait(1.1)
        later.go()
        seen = live.finish()
    assert of(seen, "file", str(work / "one")).writes.calls == 3
    assert of(seen, "file", str(work / "two")).writes.calls == 4


@in_kernel
def test_snapshots_grow_and_a_process_may_end_midway(work: Path) -> None:
    script = "i=0; while :; do echo $i >> log; i=$((i+1)); sleep 0.02; done"
    shell = subprocess.Popen(["sh", "-c", script], cwd=work)
    try:
        with LiveObservation(choose(pid=shell.pid)) as live:
            counts = []
            for _ in range(3):
                assert not live.wait(0.3)
                counts.append(of(live.snapshot(), "file", str(work / "log")).writes.calls)
            assert 0 < counts[0] < counts[1] < counts[2]
            assert shell.pid in live.pids()
            shell.kill()
            assert live.wait(10)
            seen = live.finish()
            assert live.finish() is seen and live.snapshot() is seen
    finally:
        shell.kill()
        shell.wait()
    lines = len((work / "log").read_text().splitlines())
    assert counts[2] <= of(seen, "file", str(work / "log")).writes.calls <= lines
    assert [
        limit for limit in seen.limits if re.match(rf"The observed process {shell.pid} ended after", limit)
    ]


@in_kernel
def test_what_was_read_is_kept_when_the_observer_dies(work: Path) -> None:
    waiting = Waiting("dd", "if=/dev/zero", "of=file", "bs=4k", "count=9", folder=work)
    with LiveObservation(choose(pid=waiting.pid)) as live:
        waiting.go()
        live.snapshot()
        assert live._session is not None
        os.kill(live._session.helper, signal.SIGKILL)
        seen = live.finish()
    assert of(seen, "file", str(work / "file")).writes.calls == 9
    assert any("what was read until then is kept" in limit for limit in seen.limits)


@in_kernel
def test_mapped_files_are_told_of(work: Path) -> None:
    seen = python(
        """
        f = os.open("map", os.O_RDWR | os.O_CREAT); os.write(f, bytes(8192))
        m = mmap.mmap(f, 8192); m[0] = 1; m.flush()
        """,
        work,
    )
    assert any(limit.startswith(f"{work}/map may be written and read through") for limit in seen.limits)
    assert of(seen, "file", str(work / "map")).syncs.calls == 1  # msync


MAPPER = """
import mmap, os, sys
f = os.open("map", os.O_RDWR | os.O_CREAT)
os.write(f, os.urandom(4 << 20)); os.fsync(f)
m = mmap.mmap(f, 4 << 20)
m.madvise(mmap.MADV_RANDOM)
sys.stdin.readline()
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
for place in range(0, 4 << 20, 1 << 16): m[place]
print(flush=True)
sys.stdin.readline()
"""


@in_kernel
def test_page_faults_hint_at_reads_through_mapped_memory(work: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", MAPPER], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        while not (work / "map").exists() or (work / "map").stat().st_size < 4 << 20:
            time.sleep(0.02)
        time.sleep(0.3)  # until it is mapped
        with LiveObservation(choose(pid=program.pid)) as live:
            program.stdin.write("\n")
            program.stdin.flush()
            program.stdout.readline()
            seen = live.finish()
    finally:
        program.kill()
        program.communicate()
    (hint,) = (limit for limit in seen.limits if "major page faults" in limit)
    number = re.search(r"waited (\d+) times", hint)
    assert number is not None and 30 <= int(number[1]) <= 400  # 64 pages, each far from the others


@pytest.mark.parametrize(("faults", "hints"), [(0, 0), (3, 1)])
def test_without_page_faults_there_is_no_hint(
    monkeypatch: pytest.MonkeyPatch, faults: int, hints: int
) -> None:
    live = LiveObservation(mock.Mock(by_files=False))
    vars(live).update(_session=mock.Mock(), _mapped_before=set(), _mapped_to_read=set(), _faults_before=5)
    monkeypatch.setattr(procfs, "major_faults", lambda _: 5 + faults)
    grouped = mock.Mock(unexplained=0, files_left_out=0, mapped=["/a"], mapped_writable=[], groups=())
    limits = list(live._limits(grouped, mock.Mock(message={"dropped": 0, "window_ns": 10**9})))
    assert sum("major page faults" in one for one in limits) == hints
    assert any("mapped memory, which is no call" in one for one in limits)


def _wrote(kind: str, name: str, size: int, role: str | None = None) -> Group:
    return Group.model_validate({"kind": kind, "name": name, "role": role, "writes": {"bytes": size}})


@pytest.mark.parametrize(("rules", "said"), [([], True), (["*.tsm=data"], False), (["*.tsm=-"], False)])
def test_files_without_a_role_that_moved_much_are_named(rules: list[str], said: bool) -> None:
    live = LiveObservation(mock.Mock(by_files=True), RoleRules.parse(rules))
    vars(live).update(_session=mock.Mock(), _mapped_before=set(), _mapped_to_read=set())
    role = live._rules.role("/d/0-1.tsm")
    groups = (
        _wrote("role", "wal", 600_000, "wal"),
        _wrote("role", "none", 400_010),
        _wrote("file", "/w/1.wal", 600_000, "wal"),
        _wrote("file", "/d/1-1.tsm", 300_000, role),
        _wrote("file", "/d/2-1.tsm", 100_000, role),
        _wrote("file", "/d/lock", 10),
        _wrote("file", "/etc/group", 90_000),
    )
    grouped = mock.Mock(unexplained=0, files_left_out=0, mapped=[], mapped_writable=[], groups=groups)
    limits = list(live._limits(grouped, mock.Mock(message={"dropped": 0, "window_ns": 10**9})))
    expected = (
        "/d/*-*.tsm moved 40% of the bytes, and no rule knows them: they have no role, so no finding is "
        "about them. --role 'GLOB=ROLE' gives them one."
    )
    # Which role they might have may follow.
    assert [one[: len(expected)] for one in limits if "no rule" in one] == [expected] * said
    assert not list(live._without_role([one for one in groups if one.role is None], 1.0))  # said once, of all


HOLDER = """
import os, signal, sys, time
from ztune.observe.live import LiveObservation
from ztune.observe.subjects import choose
with LiveObservation(choose(pid=os.getppid())) as live:
    print(live._session.helper, flush=True)
    live.wait(60)
"""


@in_kernel
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind(how: signal.Signals) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    helper = int(holder.stdout.readline())
    assert Path(f"/proc/{helper}/comm").read_text().startswith("ztune-observer")
    holder.send_signal(how)
    holder.wait(30)
    holder.stdout.close()

    def gone() -> bool:
        try:
            return "ztune" not in Path(f"/proc/{helper}/comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(gone, "the helper's end")


@in_kernel
def test_nothing_is_written_where_it_looks(work: Path) -> None:
    (work / "data").write_bytes(bytes(1000))

    def state() -> list[tuple[str, int, int, int, int]]:
        return [
            (str(p), s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
            for p in sorted(work.rglob("*"))
            if (s := p.lstat())
        ] + [("", 0, (s := work.stat()).st_mtime_ns, s.st_ctime_ns, s.st_ino)]

    before = state()
    reader = Waiting("cat", "data", folder=work)
    with LiveObservation(choose(path=work)) as live:
        reader.go()
        live.snapshot()
        seen = live.finish()
    assert of(seen, "file", str(work / "data")).reads.bytes == 1000
    assert state() == before


def wrapped(work: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = work / "observer"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("ZTUNE_OBSERVER", str(program))


@in_kernel
def test_without_rights(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setpriv = need("setpriv")
    wrapped(work, f'exec {setpriv} --bounding-set -all "{kernel.OBSERVER.path()}" "$@"', monkeypatch)
    with pytest.raises(MissingError, match="run as root, or with the capabilities CAP_BPF and CAP_PERFMON"):
        LiveObservation(choose(pid=os.getpid())).__enter__()


def test_what_was_asked_of_the_kernels_counts_is_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--sample 1/16` on a kernel without type information changed nothing, and nothing said so."""
    monkeypatch.setattr(kernel, "BTF", tmp_path / "no-btf")
    for options, said in (({"sample": 16}, True), ({"all_calls": True}, True), ({}, False)):
        with LiveObservation(choose(pid=os.getpid()), **options) as live:
            limits = live.finish().limits
        assert any("--sample and --calls are about calls" in text for text in limits) == said


def test_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZTUNE_OBSERVER", str(tmp_path / "none"))
    monkeypatch.setattr(kernel, "BTF", tmp_path)
    with pytest.raises(MissingError, match=r"ZTUNE_OBSERVER names .* which is no program"):
        LiveObservation(choose(pid=os.getpid())).__enter__()


def by_proc(
    work: Path, monkeypatch: pytest.MonkeyPatch, subject: Callable[[int], subjects.ObservedSubject]
) -> Observation:
    monkeypatch.setattr(kernel, "BTF", work / "no-btf")
    text = "import os, sys, time\nf = os.open('file', os.O_WRONLY | os.O_CREAT)\nsys.stdin.readline()\n"
    text += "for i in range(50): os.pwrite(f, bytes(1000), 0)\n"
    text += "os.fsync(f)\nfor i in range(30): time.sleep(0.001)\nprint(flush=True)\nsys.stdin.readline()"
    program = subprocess.Popen(
        [sys.executable, "-c", text], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        while not (work / "file").exists():
            time.sleep(0.02)
        with LiveObservation(subject(program.pid)) as live:
            assert not live.in_kernel
            program.stdin.write("\n")
            program.stdin.flush()
            program.stdout.readline()
            return live.finish()
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("kind", ["pid", "path"])
def test_a_kernel_without_btf(work: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    seen = by_proc(work, monkeypatch, lambda pid: choose(pid=pid) if kind == "pid" else choose(path=work))
    group = of(seen, "role", "none")
    assert (group.writes.calls, group.writes.bytes) == (51, 50_001)  # and the print()
    assert group.writes.sizes == {} and group.writes.sequential is None
    assert seen.context_switches is not None and seen.context_switches["voluntary"] >= 30
    assert seen.calls == ()
    assert "CONFIG_DEBUG_INFO_BTF" in seen.limits[0] and "latencies" in seen.limits[0]
    assert any("found with a file open there" in limit for limit in seen.limits) == (kind == "path")


def test_no_such_process_is_said_before_anything_starts() -> None:
    with pytest.raises(InputError, match="there is no process"):
        LiveObservation(choose(pid=4_194_304))
