"""Recording one region in so many, and windows of a day."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from recording import Seen

from ztune.cli.record import command
from ztune.errors import InputError, MissingError
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.ops import export_ops, read_ops
from ztune.trace.rate import Rate
from ztune.trace.reader import Trace
from ztune.trace.record import Recording, record
from ztune.trace.regions import REGION, kept, taken
from ztune.trace.roles import RoleRules
from ztune.trace.sampling import sample
from ztune.trace.schema import Op
from ztune.trace.windows import Schedule

MIB = 64
PAGES = """
import os, random, sys, time
os.chdir(sys.argv[1])
random.seed(1)
data = os.open("data.db", os.O_RDWR | os.O_CREAT)
log = os.open("log.wal", os.O_RDWR | os.O_CREAT)
small = os.open("small.db", os.O_RDWR | os.O_CREAT)
os.ftruncate(data, 64 << 20)
end = 0
begun = time.monotonic()
rounds = 0
while time.monotonic() - begun < float(sys.argv[2]):
    for _ in range(20):
        os.pread(data, 8192, random.randrange(8192) * 8192)
    os.pwrite(data, b"x" * 8192, random.randrange(8192) * 8192)
    os.pwrite(small, b"y" * 4096, random.randrange(16) * 4096)
    os.pwrite(log, b"z" * 8192, end)
    os.fdatasync(log)
    end += 8192
    rounds += 1
    time.sleep(0.001)
open("rounds", "w").write(str(rounds))
"""
RULES = RoleRules.parse(["*.db=data", "*.wal=wal"])


def sampled(work: Path, seconds: float, of: int) -> Trace:
    (work / "pages.py").write_text(PAGES)
    line = [sys.executable, "-I", str(work / "pages.py"), str(work), str(seconds)]
    return record(
        Recording(
            work.parent / "s.trace", command=line, recorder="ebpf", paths=[work], rules=RULES, sample=of
        )
    )


def test_one_region_in_four_is_recorded_and_all_is_counted(work: Path, ebpf: str) -> None:
    trace = sampled(work, 5, 4)
    rounds = int((work / "rounds").read_text())
    seen = Seen(trace)
    data, log, small = (seen.file(name) for name in ("data.db", "log.wal", "small.db"))
    assert data.sampled and not log.sampled and not small.sampled
    assert data.counted is not None
    # All that was asked for is counted, in the kernel.
    assert (data.counted.reads, data.counted.writes) == (20 * rounds, rounds)
    assert data.counted.read_bytes == 20 * rounds * 8192
    # Of the log and of what is small every call is there.
    assert seen.totals("log.wal") == {
        "CREATE": (1, 0), "WRITE": (rounds, 8192 * rounds), "FDATASYNC": (rounds, 0)
    }  # fmt: skip
    assert seen.totals("small.db")["WRITE"] == (rounds, 4096 * rounds)
    # Of the rest those of one region in each four that follow each other.
    there = taken(data.ino, np.arange(MIB, dtype=np.uint64), 4)
    assert [there[i : i + 4].sum() for i in range(0, MIB, 4)] == [1] * (MIB // 4)
    moved = [e for e in seen.rows("data.db") if e["op"] in (Op.READ, Op.WRITE)]
    assert all(there[e["offset"] // REGION] for e in moved)
    assert 0.8 < len(moved) / (21 * rounds / 4) < 1.25


def test_the_kernel_leaves_out_what_the_trace_does_not_have(work: Path, ebpf: str) -> None:
    """Once the recorder knows the files, within a second or two, nothing else is recorded of them."""
    (work / "pages.py").write_text(PAGES)
    line = [sys.executable, "-I", str(work / "pages.py"), str(work), "6"]
    recording = Recording(
        work.parent / "s.trace", command=line, recorder=ebpf, paths=[work], rules=RULES, sample=8
    )
    with recording:
        while not recording.wait(0.2):
            pass
        harvest = recording.session.stop()
        assert harvest.tallies is not None
        [(data, whole)] = [(id_, t) for id_, t in harvest.tallies.items() if t.reads > 1000]
        rows = np.concatenate([part[part["file"] == data] for part in harvest.rows()])
    assert whole.sampled and whole.reads > len(rows)
    there = kept(rows, {data: (work / "data.db").stat().st_ino}, 8)
    late = rows["t"] > 4_000_000_000
    assert late.any() and there[late].all() and not there.all()


def test_a_replay_of_a_recorded_sample_has_its_regions_side_by_side(
    work: Path, ebpf: str, tmp_path: Path
) -> None:
    trace = sampled(work, 3, 4)
    info = export_ops(trace, tmp_path / "ops.bin")
    data = next(file for file in info.files if file.path.endswith("data.db"))
    assert data.recorded == 4 and data.ino
    files = sample(tmp_path / "ops.bin", info.files, Rate(4, 0), tmp_path / "sample.bin").files
    packed = read_ops(tmp_path / "sample.bin")[1]
    mine = packed[(packed["file"] == data.id) & np.isin(packed["op"], (Op.READ, Op.WRITE))]
    assert files[data.id].sampled and files[data.id].whole == MIB * REGION
    assert files[data.id].size_end == MIB * REGION // 4
    assert (mine["offset"] + mine["size"] <= MIB * REGION // 4).all()
    assert len(mine) == sum(
        e["op"] in (Op.READ, Op.WRITE) and e["file"] == data.trace_id for e in Seen(trace).events
    )
    # Half of what was recorded, again: two parts that have nothing in common.
    halves = []
    for part in range(2):
        sample(tmp_path / "ops.bin", info.files, Rate(8, part), tmp_path / f"{part}.bin")
        half = read_ops(tmp_path / f"{part}.bin")[1]
        halves.append(int((np.isin(half["op"], (Op.READ, Op.WRITE)) & (half["file"] == data.id)).sum()))
    assert sum(halves) == len(mine) and min(halves) > 0


def test_calls_across_regions_are_kept_whole() -> None:
    rows = np.zeros(3, [("op", "u1"), ("offset", "i8"), ("size", "i8"), ("file", "i4")])
    there = taken(7, np.arange(64, dtype=np.uint64), 8)
    [first, *_] = np.flatnonzero(there).tolist()
    before = next(i for i in range(64) if not there[i] and not there[i + 1])
    rows["op"] = Op.READ
    rows["offset"] = [first * REGION + 5, before * REGION, (first + 1) * REGION - 4096]
    rows["size"] = [10, 2 * REGION, 8192]
    assert kept(rows, {0: 7}, 8).tolist() == [True, False, True]
    assert kept(rows, {}, 8).all()


@pytest.fixture
def busy(work: Path) -> Iterator[subprocess.Popen[bytes]]:
    (work / "pages.py").write_text(PAGES)
    process = subprocess.Popen([sys.executable, "-I", str(work / "pages.py"), str(work), "120"])
    while not (work / "small.db").exists():
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def by_work(log: Path, windows: int) -> Schedule:
    """A schedule whose windows, and what is between them, are as long as 200 writes to ``log`` take, however
    busy the machine is; after the last window it ends the recording as Ctrl-C does."""
    turned, turns = -1, 0

    class ByWork(Schedule):
        def at(self, passed_s: float) -> tuple[bool, float]:
            nonlocal turned, turns
            size = log.stat().st_size
            if turned < 0:
                turned = size
            elif size - turned >= 200 * 8192:
                turned, turns = size, turns + 1
            if turns == 2 * windows - 1:
                raise KeyboardInterrupt
            return turns % 2 == 0, 0.01

    return ByWork(2, 1)


def test_windows_make_one_trace(work: Path, ebpf: str, busy: subprocess.Popen[bytes]) -> None:
    recording = Recording(
        work.parent / "w.trace", pids=[busy.pid], recorder=ebpf, paths=[work], rules=RULES, windows=True
    )
    trace = record(recording, schedule=by_work(work / "log.wal", windows=3))
    windows = trace.manifest.windows
    assert len(windows) == 3
    assert [one.t for one in windows] == [0, windows[0].duration_ns, sum(w.duration_ns for w in windows[:2])]
    assert trace.manifest.duration_ns == sum(one.duration_ns for one in windows)
    assert all(one.duration_ns > 0 for one in windows)
    pairs = itertools.pairwise(windows)
    assert all(a.started_unix_ns + a.duration_ns < b.started_unix_ns for a, b in pairs)
    seen = Seen(trace)
    assert all(e["t"] <= trace.manifest.duration_ns for e in seen.events)
    # In each window there is work, and the log goes on from one to the next with a gap between.
    log = [e for e in seen.rows("log.wal") if e["op"] == Op.WRITE]
    for one in windows:
        assert [e for e in log if one.t <= e["t"] < one.t + one.duration_ns]
    jumps = [b["offset"] - a["offset"] for a, b in itertools.pairwise(log)]
    assert sum(jump != 8192 for jump in jumps) == 2 and max(jumps) > 10 * 8192


def test_ctrl_c_between_windows_leaves_a_trace(work: Path, ebpf: str, busy: subprocess.Popen[bytes]) -> None:
    out = work.parent / "c.trace"
    line = [
        *[sys.executable, "-c", "from ztune.cli.main import main; main()", "record", "--pid", str(busy.pid)],
        *["--out", str(out), "--every", "60s", "--for", "2s"],
    ]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    partial = out.with_name("c.trace.partial")
    deadline = time.monotonic() + 60
    while not (partial / "recording.json").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    time.sleep(4)
    child.send_signal(2)
    said, errors = child.communicate(timeout=90)
    assert child.returncode == 0, errors
    manifest = Trace.open(out).manifest
    assert manifest.complete and manifest.events > 0 and not manifest.windows
    assert 1.5e9 < manifest.duration_ns < 3.5e9, said


def test_files_that_grew_between_windows_are_there_to_be_read(work: Path, ebpf: str) -> None:
    (work / "grow.py").write_text(
        """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    end = os.fstat(f).st_size
    os.pwrite(f, b"x" * 65536, end)
    os.pread(f, 4096, end + 8192)
    time.sleep(0.01)
"""
    )
    process = subprocess.Popen([sys.executable, "-I", str(work / "grow.py"), str(work / "a.db")])
    try:
        while not (work / "a.db").exists():
            time.sleep(0.05)
        recording = Recording(
            work.parent / "g.trace",
            pids=[process.pid],
            recorder=ebpf,
            rules=RULES,
            paths=[work],
            windows=True,
        )
        trace = record(recording, 3, schedule=Schedule(1.5, 0.3))
    finally:
        process.kill()
        process.wait()
    assert len(trace.manifest.windows) == 2
    [file] = trace.manifest.files
    size = file.size_start
    for event in trace.table().to_pylist():
        end = event["offset"] + event["size"]
        if event["op"] == Op.READ:
            assert end <= size
        elif event["op"] == Op.WRITE:
            size = max(size, end)


def test_a_recording_ends_at_its_largest_size(work: Path, ebpf: str, busy: subprocess.Popen[bytes]) -> None:
    trace = record(Recording(work.parent / "m.trace", pids=[busy.pid], recorder=ebpf, max_bytes=20_000), 60)
    assert trace.manifest.complete and [w.code for w in trace.manifest.warnings] == ["full", "cold"]
    assert 0 < trace.manifest.duration_ns < 50e9


def test_a_command_goes_on_when_its_recording_is_full(work: Path, recorder: str) -> None:
    (work / "pages.py").write_text(PAGES)
    line = [sys.executable, "-I", str(work / "pages.py"), str(work), "4"]
    recording = Recording(
        work.parent / "m.trace", command=line, recorder=recorder, max_bytes=8_000,
        workload=WorkloadInfo(name="pages"),
    )  # fmt: skip
    trace = record(recording)
    assert recording.exit_status == 0 and (work / "rounds").exists()
    assert not trace.manifest.complete and "full" in [w.code for w in trace.manifest.warnings]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--every", "1h"], "--every and --for belong together"),
        (["--every", "1m", "--for", "60s"], "leaves nothing out of --every 1m"),
        (["--every", "soon", "--for", "60s"], '--every is "soon"'),
        (["--until", "25:00"], '--until is "25:00"; write a time such as 18:00'),
        (["--until", "2001-01-01T00:00"], "which has passed"),
        (["--until", "23:59", "--seconds", "3"], "leave out one of the two"),
        (["--sample", "8"], '"8" is no rate'),
        (["--max-size", "much"], "--max-size: 'much' is not a size"),
    ],
)
def test_what_is_wrong_is_said(given: list[str], said: str) -> None:
    done = CliRunner().invoke(command, ["--pid", "1", *given], standalone_mode=False)
    assert isinstance(done.exception, InputError) and said in str(done.exception), done


def test_windows_need_processes_and_samples_need_ebpf(work: Path) -> None:
    done = CliRunner().invoke(command, ["--every", "2s", "--for", "1s", "--", "true"], standalone_mode=False)
    assert "name it with --pid" in str(done.exception)
    with pytest.raises(MissingError, match="--sample needs the recorder ebpf: strace was asked for"):
        Recording(work / "t.trace", command=["true"], recorder="strace", sample=8)
    assert not list(work.iterdir())
