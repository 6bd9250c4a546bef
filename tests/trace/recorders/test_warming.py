"""What was read and written before a recording goes into the trace, for the files that are used in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from ztune.trace.reader import Trace
from ztune.trace.record import Recording
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op
from ztune.trace.warming import Warming, Warmth

BEFORE = """
import os
a, b = (os.open(p, os.O_RDWR) for p in {paths!r})
os.pread(a, 8192, 16384)
os.pwrite(a, b"x" * 4096, 0)
os.pread(b, 100, 5)
os.pread(a, 8192, 16384)
os.pread(a, 10, 1 << 30)
"""
DURING = """
import os
os.pread(os.open({path!r}, os.O_RDONLY), 512, 0)
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-I", "-c", text]


def recorded(recording: Recording) -> Trace:
    with recording:
        while not recording.wait(1):
            pass
    return recording.trace


def test_what_descendants_did_before_is_in_the_trace(work: Path, ebpf: str) -> None:
    files = [work / "used", work / "not"]
    for file in files:
        file.write_bytes(bytes(1 << 16))
    with Warming(ebpf) as warming:
        subprocess.run(python(BEFORE.format(paths=[str(f) for f in files])), check=True)
    assert warming.seen is not None
    trace = recorded(
        Recording(
            work.parent / "t.trace",
            command=python(DURING.format(path=str(files[0]))),
            recorder=ebpf,
            paths=[work],
            warmth=warming.seen,
        )
    )
    # The other one plays no role: it would only take up room in a cache.
    assert [f.path for f in trace.manifest.files] == [str(files[0])]
    columns = trace.columns("op", "t", "dur", "file", "offset", "size")
    warm = columns["op"] == Op.WARM
    assert columns["op"].tolist()[:3] == [Op.WARM] * 3
    events = zip(*(columns[name][warm].tolist() for name in ("file", "offset", "size")), strict=True)
    # Not what read nothing, beyond the end.
    assert list(events) == [(0, 16384, 8192), (0, 0, 4096), (0, 16384, 8192)]
    assert not columns["t"][warm].any() and not columns["dur"][warm].any()
    assert not [w for w in trace.manifest.warnings if w.code == "cold"]


def test_files_that_only_came_before_are_in_the_trace_if_they_play_a_role(work: Path, ebpf: str) -> None:
    files = [work / "used", work / "not"]
    for file in files:
        file.write_bytes(bytes(1 << 16))
    with Warming(ebpf) as warming:
        subprocess.run(python(BEFORE.format(paths=[str(f) for f in files])), check=True)
    trace = recorded(
        Recording(
            work.parent / "t.trace",
            command=python(DURING.format(path=str(files[0]))),
            recorder=ebpf,
            rules=RoleRules.below({str(work): "data"}),
            paths=[work],
            warmth=warming.seen,
        )
    )
    assert {f.path: (f.size_start, f.created) for f in trace.manifest.files} == {
        str(file): (1 << 16, False) for file in files
    }
    columns = trace.columns("op", "file")
    warm = columns["file"][columns["op"] == Op.WARM].tolist()
    other = next(f.id for f in trace.manifest.files if f.path == str(files[1]))
    assert len(warm) == 4 and warm.count(other) == 1


def test_without_it_a_recording_of_running_processes_says_so(work: Path, ebpf: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with Recording(work.parent / "t.trace", pids=[process.pid], recorder=ebpf) as recording:
                pass
        finally:
            process.kill()
    assert "cold" in [w.code for w in recording.trace.manifest.warnings]


def test_strace_can_not_do_it(work: Path) -> None:
    from ztune.trace.recorders import strace

    if strace.problem() is not None:
        return
    with Warming("strace") as warming:
        pass
    assert warming.seen is None


def test_no_files_no_events() -> None:
    from ztune.trace.writer import EVENT_DTYPE

    nothing = Warmth(np.zeros(0, EVENT_DTYPE), (), ())
    assert len(nothing.events({(1, 2): 0})) == 0
    one = np.zeros(1, EVENT_DTYPE)
    one["size"] = 10
    assert len(Warmth(one, ((1, 3),), ("/x",)).events({(1, 2): 0})) == 0
    assert Warmth(one, ((1, 2),), ("/x",)).events({(1, 2): 7})["file"].tolist() == [7]
