"""What goes wrong, what ends a recording, and the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
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
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner
from recording import Seen, run_python
from waiting import until

from ztune.cli.record import command
from ztune.cli.trace import command as trace_command
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import room
from ztune.onhost.probes import procfs
from ztune.trace import headroom, passing, recorders
from ztune.trace.reader import Trace
from ztune.trace.record import Recording, record, recover
from ztune.trace.recorders.ebpf import EVENTS, _frames
from ztune.trace.recorders.kernel import RECORDER
from ztune.trace.recorders.strace_parser import Parser
from ztune.trace.roles import RoleRules

WRITER = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    for _ in range(int(sys.argv[2])):
        os.pwrite(f, b"x" * 100, 0)
    os.fsync(f); time.sleep(0.002)
"""


@pytest.fixture
def writer(work: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes all the time, as a child of the one that is named; the parameter: so many writes
    for each sync.
    """
    (work / "writer.py").write_text(WRITER)
    inner = f"{sys.executable} -I {work / 'writer.py'} {work / 'busy'} {getattr(request, 'param', 1)}"
    process = subprocess.Popen(["sh", "-c", f"{inner} & wait"], start_new_session=True)
    while not (work / "busy").exists():
        time.sleep(0.02)
    yield process
    with contextlib.suppress(ProcessLookupError):  # a test may have ended it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ztune(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from ztune.cli.main import main; main()", "record"]
    return subprocess.Popen(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SPILLING = """
import os, sys
kept, removed = (os.open(f"{sys.argv[1]}/pgsql_tmp{n}.0", os.O_RDWR | os.O_CREAT) for n in (1, 2))
os.unlink(f"{sys.argv[1]}/pgsql_tmp2.0")
for file in (kept, removed):
    for page in range(512):
        os.pwrite(file, os.urandom(2048) + b"x" * 6144, page * 8192)
print(flush=True)
sys.stdin.readline()
os.unlink(f"{sys.argv[1]}/pgsql_tmp1.0")
"""


def test_temporary_files_are_measured_before_they_are_gone(
    work: Path, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "EVERY_S", 0.02)
    folder = work / "base/pgsql_tmp"
    folder.mkdir(parents=True)
    program = [sys.executable, "-I", "-c", SPILLING, str(folder)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        with Recording(work.parent / "spill.trace", pids=[process.pid], recorder=recorder) as recording:
            until(lambda: recording._passing.pieces, "a piece of a temporary file")
            process.stdin.close()
            process.wait()
    assert not list(folder.iterdir())
    measured = {
        (one.role, one.algorithm): one.ratio
        for one in recording.trace.manifest.compressibility
        if one.recordsize == 128 << 10 and not one.touched
    }
    assert measured["temp", "lz4"] == pytest.approx(4, rel=0.1)


def nothing_left(folder: Path) -> bool:
    return not [path for path in folder.iterdir() if "trace" in path.name]


def test_descendants_of_a_running_process(work: Path, recorder: str, writer: subprocess.Popen[bytes]) -> None:
    [inner] = until(psutil.Process(writer.pid).children, "the child of the process that is named")
    begins = time.monotonic_ns()
    with Recording(work.parent / "live.trace", pids=[writer.pid], recorder=recorder) as recording:
        # For as long as twenty writes take, however slow the disk is.
        begun, written = time.monotonic_ns(), inner.io_counters().write_count
        until(lambda: inner.io_counters().write_count >= written + 20, "twenty writes")
        ends = time.monotonic_ns()
        seen = Seen(recording.finish())
    totals = seen.totals("busy")
    assert totals["WRITE"][0] >= 19 and abs(totals["WRITE"][0] - totals["FSYNC"][0]) <= 1
    assert totals["WRITE"][1] == 100 * totals["WRITE"][0]
    assert seen.trace.manifest.pids == [writer.pid]
    assert ends - begun <= seen.trace.manifest.duration_ns <= time.monotonic_ns() - begins
    assert writer.poll() is None


MAPS = """
import mmap, os, sys, time
os.chdir(sys.argv[1])
for name in ("app.db", "main.v7", "library"):
    f = os.open(name, os.O_RDWR | os.O_CREAT); os.write(f, bytes(8192))
    globals()[name] = mmap.mmap(f, 8192, prot=mmap.PROT_READ)
f = os.open("main.v7", os.O_RDWR)
open("ready", "w").close()
while True:
    os.pwrite(f, b"x" * 100, 0); os.fsync(f); time.sleep(0.002)
"""


def test_reads_through_mappings_made_before_are_warned_of(work: Path, recorder: str) -> None:
    """As those made meanwhile are: a file with a role, or that is written, and no library."""
    process = subprocess.Popen([sys.executable, "-I", "-c", MAPS, str(work)], start_new_session=True)
    try:
        until((work / "ready").exists, "the mappings")
        with Recording(work.parent / "maps.trace", pids=[process.pid], recorder=recorder) as recording:
            until(lambda: recording.wait(0.2) or True, "some writes")
            trace = recording.finish()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    warnings = {warning.code: warning for warning in trace.manifest.warnings}
    assert "shared-mmap" not in warnings
    said = warnings["mmap-reads"]
    assert said.count == 2 and f"{work}/app.db" in said.message and f"{work}/main.v7" in said.message
    assert not any(file.path.endswith("library") for file in trace.manifest.files)


def test_what_others_do_beside_one_well_known_name_has_roles_too(work: Path, ebpf: str) -> None:
    script = """
f, g = (os.open(name, os.O_RDWR | os.O_CREAT) for name in ("a.wal", "main.v7"))
os.pwrite(g, os.urandom(1 << 20), 0)
for i in range(100):
    os.pwrite(f, bytes(512), i * 512); os.fdatasync(f)
    os.pwrite(g, bytes(8192), i * 37 % 100 * 8192)
"""
    (work / "load.py").write_text(f"import os; os.chdir({str(work)!r})\n{script}")
    arguments = ["--json", "--out", str(work / "t.trace"), "--path", str(work)]
    for given, expected in (((), "data"), (("--role", "main.*=-"), None)):
        shutil.rmtree(work / "t.trace", ignore_errors=True)
        words = [*arguments, *given, "--", sys.executable, "-I", str(work / "load.py")]
        done = CliRunner().invoke(command, words, standalone_mode=False)
        assert done.exit_code == 0, done
        manifest = Trace.open(work / "t.trace").manifest
        roles = {Path(file.path).name: file.role for file in manifest.files}
        assert roles["a.wal"] == "wal" and roles["main.v7"] == expected
        told = any(warning.code == "proposed-roles" for warning in manifest.warnings)
        assert told == (expected is not None)
        assert manifest.environment.get("left_out") == (None if expected else ["main.*"])


def test_whose_a_name_is_files_beside_it_say_that_nothing_touched(work: Path, recorder: str) -> None:
    (work / "shop.script").write_text("CREATE TABLE t(i INT)")
    (work / "shop.properties").write_text("modified=yes")
    seen = run_python("f = open('shop.log', 'wb'); f.write(bytes(100)); os.fsync(f)", work, recorder)
    assert seen.file("shop.log").role == "wal" and seen.file("shop.script").role == "data"


def test_a_recording_ends_with_its_processes(work: Path, recorder: str) -> None:
    process = subprocess.Popen(["sleep", "0.8"])
    recording = Recording(work.parent / "ended.trace", pids=[process.pid], recorder=recorder)
    trace = record(recording)
    process.wait()
    assert trace.manifest.duration_ns < 30e9 and recording.outlived


def test_a_recording_that_ends_before_its_time_says_why(
    work: Path, recorder: str, writer: subprocess.Popen[bytes]
) -> None:
    out = work.parent / "t.trace"
    process = ztune("--pid", str(writer.pid), "--recorder", recorder, "--out", str(out), "--seconds", "3000")
    while not events_recorded(out.with_name("t.trace.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(writer.pid, signal.SIGKILL)
    writer.wait()
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert "ztune: all that was recorded ended after" in errors and "another --pid" in errors


# As many writes as strace's recorder keeps before it writes them, in a second.
@pytest.mark.parametrize("writer", [200], indirect=True)
def test_ctrl_c_ends_a_recording_of_processes(
    work: Path, recorder: str, writer: subprocess.Popen[bytes]
) -> None:
    out = work.parent / "t.trace"
    process = ztune("--pid", str(writer.pid), "--recorder", recorder, "--out", str(out), "--json")
    # Before the recorder says that it records, an interrupt ends all.
    partial = out.with_name("t.trace.partial")
    while not events_recorded(partial):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    assert partial.exists()
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads(text)["events"] == Trace.open(out).manifest.events > 0
    assert writer.poll() is None and "all that was recorded ended" not in errors


def test_ctrl_c_goes_to_the_command(work: Path, recorder: str) -> None:
    script = work / "program.py"
    script.write_text(
        f"""
import os, signal, sys, time
f = os.open({str(work / "a")!r}, os.O_RDWR | os.O_CREAT)
def end(*_):
    os.write(f, b"shutting down"); sys.exit(3)
signal.signal(signal.SIGINT, end)
os.write(f, b"ready")
time.sleep(60)
"""
    )
    out = work.parent / "t.trace"
    process = ztune("--recorder", recorder, "--out", str(out), "--", sys.executable, "-I", str(script))
    while not (work / "a").exists() or (work / "a").stat().st_size == 0:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "exited with status 3" in errors
    assert Seen(Trace.open(out)).totals("a")["WRITE"] == (2, 18)


def test_a_process_that_does_nothing_is_said(work: Path, recorder: str) -> None:
    out = work.parent / "idle.trace"
    with subprocess.Popen(["sleep", "60"]) as idle:
        time.sleep(0.5)  # until it sleeps
        try:
            process = ztune(
                "--pid", str(idle.pid), "--seconds", "0.5", "--recorder", recorder, "--out", str(out)
            )
            _, said = process.communicate(timeout=60)
        finally:
            idle.kill()
    assert process.returncode == 1
    assert "nothing was recorded, so there is nothing to screen" in said


def test_exit_status_and_signal_of_the_command(work: Path, recorder: str) -> None:
    for ending, status in (("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("pass", 0)):
        recording = Recording(
            work.parent / f"s{status}.trace",
            command=[sys.executable, "-I", "-c", f"import os\n{ending}"],
            recorder=recorder,
        )
        with recording:
            while not recording.wait(1):
                pass
        assert recording.exit_status == status


def test_what_outlives_the_command_is_not_waited_for(work: Path, recorder: str) -> None:
    began = time.monotonic()
    trace = record(
        Recording(work.parent / "t.trace", command=["sh", "-c", "sleep 40 & exit 0"], recorder=recorder)
    )
    assert trace.manifest.duration_ns < 20e9 and time.monotonic() - began < 30


def test_what_the_command_left_running_goes_on(work: Path, recorder: str) -> None:
    script = f"""
import os, subprocess, sys
left = '''
import time
f = open({str(work / "left")!r}, "w")
while True:
    f.write("x"); f.flush(); time.sleep(0.02)
'''
child = subprocess.Popen([sys.executable, "-I", "-c", left])
open({str(work / "pid")!r}, "w").write(str(child.pid))
"""
    record(
        Recording(work.parent / "t.trace", command=[sys.executable, "-I", "-c", script], recorder=recorder)
    )
    left = psutil.Process(int((work / "pid").read_text()))
    try:
        written = left.io_counters().write_count
        until(lambda: left.io_counters().write_count > written + 5, "more writes")
        assert left.status() != psutil.STATUS_TRACING_STOP
        assert "TracerPid:\t0\n" in Path(f"/proc/{left.pid}/status").read_text()
    finally:
        left.kill()


def test_lost_events_are_counted_and_said(work: Path, ebpf: str) -> None:
    script = work / "program.py"
    script.write_text(
        f"""
import os
f = os.open({str(work / "a")!r}, os.O_RDWR | os.O_CREAT)
for i in range(20000):
    os.pwrite(f, b"x", i)
"""
    )
    command_line = [sys.executable, "-I", str(script)]
    with Recording(
        work.parent / "t.trace", command=command_line, recorder=ebpf, paths=[work], ring_bytes=65536
    ) as recording:
        while not recording.wait(1):
            pass
    manifest = recording.trace.manifest
    assert manifest.dropped > 0 and not manifest.complete
    assert [w.code for w in manifest.warnings] == ["dropped"]
    seen = Seen(recording.trace)
    writes = seen.totals("a").get("WRITE", (0, 0))[0] if seen.files else 0
    assert writes < 20000 <= writes + manifest.dropped


def test_samples_roles_and_page_sizes(work: Path, ebpf: str) -> None:
    seen = run_python(
        "f = open('x.bin', 'wb'); f.write(b'ztune' * 300_000); f.close()",
        work,
        ebpf,
        rules=RoleRules.parse(["*.bin=index"]),
        keep_samples=True,
    )
    assert seen.file("x.bin").role == "index"
    assert {(s.role, s.touched) for s in seen.trace.manifest.samples} == {("index", False), ("index", True)}
    kept = seen.trace.sample("index")
    assert kept is not None and b"ztuneztune" in kept[1].read_bytes()
    assert all(c.ratio > 5 for c in seen.trace.manifest.compressibility if c.algorithm == "lz4")


def test_content_is_not_kept_unless_asked(work: Path, ebpf: str) -> None:
    seen = run_python("f = open('x.db', 'wb'); f.write(b'secret-content' * 999); f.close()", work, ebpf)
    for path in seen.trace.path.rglob("*"):
        assert path.is_dir() or b"secret-content" not in path.read_bytes()
    assert seen.trace.manifest.compressibility


def test_what_is_wrong_is_said_and_nothing_stays(work: Path) -> None:
    out = work / "t.trace"
    with pytest.raises(InputError, match="there is no program 'no-such-program'"):
        Recording(out, command=["no-such-program"])
    with pytest.raises(InputError, match="there is no process 4194303"):
        Recording(out, pids=[4194303])
    with pytest.raises(InputError, match="either a command"):
        Recording(out)
    with pytest.raises(InputError, match="no folder or file"):
        Recording(out, command=["true"], paths=[work / "none"])
    with pytest.raises(InputError, match="no recorder 'dtrace'"):
        Recording(out, command=["true"], recorder="dtrace")
    with pytest.raises(InputError, match=r"the folder .* does not exist"):
        Recording(work / "no" / "t.trace", command=["true"])
    out.mkdir()
    with pytest.raises(InputError, match="exists already"):
        Recording(out, command=["true"])
    out.rmdir()
    for folder in (Path(), Path("/")):
        with pytest.raises(InputError, match="exists already"):
            Recording(folder, command=["true"])
    with pytest.raises(ZtuneError, match=r"can't write .*: File name too long"):
        Recording(work / ("n" * 300), command=["true"])
    assert nothing_left(work)


def test_a_program_that_cannot_be_run(work: Path, ebpf: str) -> None:
    broken = work / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(InputError, match=r"can't run .*broken: No such file"):
        Recording(work / "t.trace", command=[str(broken)], recorder=ebpf)
    assert nothing_left(work)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_recording_that_does_not_begin_ends_its_command(
    work: Path, ebpf: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    children = []
    write = Path.write_text

    def fail(path: Path, text: str, encoding: str | None = None) -> int:
        if path.name != "recording.json":
            return write(path, text, encoding)
        children.append(Path("/proc", str(json.loads(text)["child"])))
        raise error

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises((ZtuneError, KeyboardInterrupt), match=r"no space left for the trace|^$"):
        Recording(work / "t.trace", command=["sleep", "60"], recorder=ebpf)
    (child,) = children
    until = time.monotonic() + 30
    while child.exists():
        assert time.monotonic() < until, "the command goes on"
        time.sleep(0.02)
    assert nothing_left(work)


@pytest.mark.parametrize("attached", [True, False])
def test_a_fault_of_the_reader_ends_the_recording_with_a_sentence(
    work: Path,
    strace: str,
    writer: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    attached: bool,
) -> None:
    """More lines than the pipe holds follow: who waits for strace must not wait for ever."""
    seen = []

    def line(self: Parser, text: str) -> None:
        seen.append(text)
        if len(seen) > 20:
            raise KeyError("7")

    monkeypatch.setattr(Parser, "line", line)
    out = work.parent / "fault.trace"
    many = "import os\nfor _ in range(20000): os.pwrite(1, b'x', 0)"
    command = ["sh", "-c", f'exec "$0" -c "$1" > {work / "many"}', sys.executable, many]
    recording = Recording(
        out, recorder=strace, pids=[writer.pid] if attached else [], command=None if attached else command
    )
    with pytest.raises(ZtuneError, match=r"was not read on, a fault in ztune: KeyError: '7'$"):
        record(recording, 60)
    assert len(seen) == 21 and nothing_left(work.parent)
    assert writer.poll() is None


def test_no_rights_falls_back_to_strace_and_says_so(monkeypatch: pytest.MonkeyPatch, strace: str) -> None:
    without, *others = recorders.RECORDERS
    without = dataclasses.replace(without, unavailable=lambda: "no CAP_BPF")
    monkeypatch.setattr(recorders, "RECORDERS", (without, *others))
    chosen, reason = recorders.choose("auto")
    assert chosen.name == "strace"
    assert reason == "recording with strace, since ebpf is not possible: no CAP_BPF"
    with pytest.raises(MissingError, match="ebpf is not possible: no CAP_BPF"):
        recorders.choose("ebpf")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give rights up")
def test_without_rights_the_capabilities_are_named(ebpf: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    drop = ["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-all"]
    done = subprocess.run([*drop, str(RECORDER.path()), "check"], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["code"] == "permission" and "CAP_BPF, CAP_PERFMON" in answer["message"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_full_disk(work: Path, recorder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "spare", lambda _: 1 << 40)  # filled by others faster than we look
    disk = work / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed")
    try:
        # The first calls are written before there are more than the disk has room for.
        script = f"""
import os, time
f = os.open({str(work / "a")!r}, os.O_RDWR | os.O_CREAT)
for i in range(40000):
    os.pwrite(f, b"x", i)
    if i == 100:
        time.sleep(2)
time.sleep(1.5)
open({str(work / "done")!r}, "w")
"""
        with pytest.raises(ZtuneError, match=r"(?i)no space left"):
            record(
                Recording(disk / "t.trace", command=[sys.executable, "-I", "-c", script], recorder=recorder)
            )
        if recorder == "strace":
            assert list(disk.iterdir()) == []
            return
        assert (work / "done").exists()  # the command went on
        # What was recorded stays; with more room it becomes a trace.
        partial = disk / "t.trace.partial"
        with pytest.raises(ZtuneError, match="no space left"):
            recover(partial)
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        trace = recover(partial)
        assert [path.name for path in disk.iterdir()] == ["t.trace"]
        assert "cut" in [w.code for w in trace.manifest.warnings] and not trace.manifest.complete
        assert len(list(trace.path.iterdir())) == 2
        writes = Seen(trace).totals("a")["WRITE"][0]
        assert 0 < writes < 40000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize("by", ["{0}", "{0}/../link"])
def test_what_is_renamed_and_removed_below_a_bind_mount(work: Path, recorder: str, by: str) -> None:
    below, at = work / "below", work / "at"
    below.mkdir()
    at.mkdir()
    (work / "link").symlink_to(at)
    mounted = subprocess.run(["mount", "--bind", str(below), str(at)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed")
    script = f"""
import os
os.chdir({str(work)!r})
for folder in ({by.format(at)!r}, {by.format("at")!r}):
    for name in "ab":
        f = os.open(f"{{folder}}/{{name}}", os.O_RDWR | os.O_CREAT)
        os.pwrite(f, b"x", 0)
        os.close(f)
    os.unlink(f"{{folder}}/a")
    os.rename(f"{{folder}}/b", f"{{folder}}/c")
"""
    try:
        trace = record(
            Recording(work / "t.trace", command=[sys.executable, "-I", "-c", script], recorder=recorder)
        )
    finally:
        subprocess.run(["umount", str(at)], check=True)
    files = [file for file in trace.manifest.files if file.path.startswith(str(work)) and file.created]
    assert sorted((Path(file.path).name, file.deleted) for file in files) == [
        ("a", True), ("a", True), ("c", False), ("c", True),
    ]  # fmt: skip
    names = {Path(name.path).parent for file in trace.manifest.files for name in file.names}
    assert {name for name in names if name in (below, at)} == {below if recorder == "ebpf" else at}


class Disk:
    """The file system of everything, which others fill, as ``shutil.disk_usage`` has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 10 << 30
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=self.free))


def test_no_recording_begins_on_a_disk_that_is_nearly_full(
    work: Path, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch).free = 2 << 30
    with pytest.raises(InputError) as refused:
        Recording(work / "t.trace", command=["touch", str(work / "ran")], recorder=recorder)
    assert str(refused.value) == (
        f"the trace is not written to {work}: 2.0 GiB of 100.0 GiB are free there, and 2.0 GiB stay so; "
        "make room there, or name a folder on another disk by --out"
    )
    assert list(work.iterdir()) == []


def test_a_recording_of_processes_ends_before_its_disk_is_full(
    work: Path, recorder: str, writer: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    def fill(passed: float) -> None:
        if passed > 1:
            disk.free = 2 << 30

    recording = Recording(work.parent / "t.trace", pids=[writer.pid], recorder=recorder)
    trace = record(recording, 60, fill)
    assert 0.5e9 < trace.manifest.duration_ns < 40e9 and trace.manifest.complete
    [said] = [w.message for w in trace.manifest.warnings if w.code == "full"]
    assert "had taken the room that it may on its disk" in said and "--max-size" not in said
    assert not recording.outlived
    assert Seen(trace).totals("busy")["WRITE"][0] > 0
    assert writer.poll() is None


def test_a_command_goes_on_when_the_disk_of_its_recording_is_nearly_full(
    work: Path, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    script = f"""
import os, time
f = os.open({str(work / "a")!r}, os.O_RDWR | os.O_CREAT)
for i in range(500):
    os.pwrite(f, b"x", i); time.sleep(0.01)
open({str(work / "done")!r}, "w")
"""
    recording = Recording(
        work.parent / "t.trace", command=[sys.executable, "-I", "-c", script], recorder=recorder
    )

    def fill(passed: float) -> None:
        if passed > 1.5:
            disk.free = 2 << 30

    trace = record(recording, while_waiting=fill)
    assert recording.exit_status == 0 and (work / "done").exists()
    assert not trace.manifest.complete and "full" in [w.code for w in trace.manifest.warnings]
    assert 0 < Seen(trace).totals("a")["WRITE"][0] < 500


@pytest.mark.parametrize("named", [True, False])
def test_a_trace_beside_what_is_recorded_is_warned_of(work: Path, strace: str, named: bool) -> None:
    program = [sys.executable, "-I", "-c", f"open({str(work / 'a.db')!r}, 'w').write('x')"]
    path = ["--path", str(work)] if named else []

    def said(out: Path) -> str:
        words = ["--recorder", strace, "--role", "**/*.db=data", *path, "--out", str(out), "--", *program]
        done = CliRunner().invoke(command, words, standalone_mode=False)
        assert done.exception is None, done.exception
        return done.stderr

    first = work if named else work / "a.db"
    sentence = (
        f"warning: the trace is written to the file system of {first}, which is recorded: it takes room"
    )
    assert said(work.parent / "t.trace").count(sentence) == 1
    if Path("/dev/shm").stat().st_dev != work.stat().st_dev:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
            assert "the file system of" not in said(Path(elsewhere) / "t.trace")


def test_files_with_a_role_that_processes_have_open_are_found(work: Path) -> None:
    with (work / "a.db").open("w") as file, (work / "b").open("w"):
        found = list(headroom.opened([os.getpid()], RoleRules.parse(["**/*.db=data"])))
        assert found == [Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")]
        assert f"file system of {work / 'a.db'}," in (headroom.beside(work.parent, found) or "")


def test_who_interrupts_the_end_is_told_how_to_go_on(
    work: Path, ebpf: str, writer: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = work.parent / "t.trace.partial"
    recording = Recording(work.parent / "t.trace", pids=[writer.pid], paths=[work], recorder=ebpf)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped, recording:
        while not events_recorded(partial):
            time.sleep(0.05)
        monkeypatch.setattr(recording.session, "stop", interrupted)
    assert any(f"`ztune trace recover {partial}`" in note for note in stopped.value.__notes__)
    monkeypatch.undo()
    # A byte that was not kept as it was, of the packed events and of a file's time.
    _, place, size, _ = next(frame for frame in _frames(partial / "events.raw") if frame[0] == EVENTS)
    for name, at, value in (("events.raw", place + size - 1, 1), ("files.raw", 7, 0xFF)):
        whole = (partial / name).read_bytes()
        (partial / name).write_bytes(whole[:at] + bytes([whole[at] ^ value]) + whole[at + 1 :])
        with pytest.raises(InputError, match=r"damaged|can't be recovered"):
            recover(partial)
        (partial / name).write_bytes(whole)
    assert recover(partial).manifest.events


def events_recorded(partial: Path) -> bool:
    """Whether there is more than where the recording begins: 16 bytes, and as many of a frame."""
    raw = partial / "events.raw"
    return raw.exists() and raw.stat().st_size > 32


@pytest.mark.parametrize("killed", ["ztune", "the recorder"])
def test_what_was_recorded_survives_kill_9(
    work: Path, ebpf: str, writer: subprocess.Popen[bytes], killed: str
) -> None:
    out, partial = work.parent / "t.trace", work.parent / "t.trace.partial"
    options = ["--pid", str(writer.pid), "--recorder", ebpf, "--path", str(work), "--out", str(out)]
    with ztune(*options, "--role", "*=temp") as child:
        while not events_recorded(partial):
            time.sleep(0.05)
        with pytest.raises(InputError, match="is being recorded just now"):
            recover(partial)
        if killed == "ztune":
            child.kill()
        else:
            [recording] = set(procfs.descendants([child.pid])) - {child.pid}
            os.kill(recording, signal.SIGKILL)
            _, said = child.communicate(timeout=60)
            assert f"`ztune trace recover {partial}`" in said, said
        child.wait(timeout=60)
    assert not out.exists()
    done = CliRunner().invoke(trace_command, ["recover", "--json", str(partial)], standalone_mode=False)
    assert done.exit_code == 0 and json.loads(done.stdout)["events"] > 0, done
    assert not partial.exists() and not Trace.open(out).manifest.complete
    seen = Seen(Trace.open(out))
    assert {file.role for file in seen.trace.manifest.files} == {"temp"}
    # The recorder ends by itself when ztune is gone; where it is gone too, the last event is what is known.
    last = max(e["t"] + e["dur"] for e in seen.events)
    assert seen.trace.manifest.duration_ns - last in (range(2 * 10**9) if killed == "ztune" else [0])


def test_what_is_no_cut_recording_is_refused(work: Path) -> None:
    (work / "x.trace.partial").mkdir()
    with pytest.raises(InputError, match="no recording that was cut"):
        recover(work / "x.trace.partial")
    (work / "x.trace.partial/recording.json").write_text("{}")
    with pytest.raises(InputError, match="can't be recovered"):
        recover(work / "x.trace.partial")
    assert (work / "x.trace.partial/recording.json").exists()


def test_the_command_line(work: Path, ebpf: str) -> None:
    runner = CliRunner()
    assert "ztune record -- " in runner.invoke(command, ["--help"]).output
    out = work / "t.trace"
    arguments = ["--json", "--out", str(out), "--path", str(work), "--role", "*.x=temp", "--"]
    done = runner.invoke(command, [*arguments, "sh", "-c", f"echo 1 > {work}/a.x"], standalone_mode=False)
    assert done.exit_code == 0, done
    report = json.loads(done.stdout)
    assert report["exit_status"] == 0 and report["dropped"] == 0 and report["recorder"] == "ebpf"
    trace = Trace.open(out)
    assert report["events"] == trace.manifest.events == 2
    assert trace.manifest.files[0].role == "temp"
    assert trace.manifest.command == ["sh", "-c", f"echo 1 > {work}/a.x"]
    assert trace.manifest.environment["kernel"] == os.uname().release
    assert isinstance(runner.invoke(command, [], standalone_mode=False).exception, InputError)


def test_a_command_is_ended_after_the_seconds_asked_for(work: Path, recorder: str) -> None:
    out = work / "t.trace"
    arguments = ["--json", "--recorder", recorder, "--seconds", "0.5", "--out", str(out), "--", "sleep", "60"]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.return_value == 0 and Trace.open(out).manifest.duration_ns < 30e9


def test_how_busy_the_host_was_is_kept_but_under_strace(work: Path, recorder: str) -> None:
    # A second of one processor; all of them together have had one by then.
    command = ["timeout", "1.5", "sh", "-c", f"echo 1 > {work}/a; while :; do :; done"]
    trace = record(Recording(work / "t.trace", command=command, recorder=recorder))
    share = trace.manifest.environment.get("cpus_busy")
    assert (share is None) == (recorder == "strace")
    assert share is None or 0 < share <= 1


def test_nothing_below_the_path_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    trace = record(
        Recording(tmp_path / "n.trace", command=["true"], paths=[tmp_path / "empty"], recorder="strace")
    )
    assert trace.manifest.events == 0
    assert [w.code for w in trace.manifest.warnings] == ["nothing"]
