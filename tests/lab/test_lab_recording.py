"""The recorder at the functions of system calls, which some hosts forbid and the lab's kernel allows, and at
the tracepoints: the same trace.
"""

from __future__ import annotations

import json
import sysconfig
from typing import Any

import pytest
import whose_commits
from guests import PATH, SOURCE

from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]
IN_GUEST = f"{SOURCE}:/host{sysconfig.get_path('purelib')}"
# Each call once, by its number on x86-64 where the C library would take another.
CALLS = """
import ctypes, mmap, os, sys, threading
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    done = libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    assert done >= 0, (number, ctypes.get_errno())
    return done
open("a", "wb").write(bytes(100000))
AT = -100
f = call(2, b"a", os.O_RDWR)
os.read(f, 100); os.write(f, b"x" * 50); os.lseek(f, 1000, 0)
os.readv(f, [bytearray(10), bytearray(20)]); os.writev(f, [b"ab", b"cde"])
os.pread(f, 7, 5000); os.pwrite(f, b"12345678", 6000)
part = bytearray(9); array = (ctypes.c_long * 2)(ctypes.addressof((ctypes.c_char * 9).from_buffer(part)), 9)
call(295, f, array, 1, 7000); call(296, f, array, 1, 8000)
os.preadv(f, [bytearray(6)], 9000, os.RWF_HIPRI); os.pwritev(f, [b"123"], 9500, os.RWF_DSYNC)
os.fsync(f); os.fdatasync(f); call(277, f, 4096, 4096, 2)
call(285, f, 0, 200000, 4096); call(285, f, 3, 0, 4096)
os.ftruncate(f, 90000); call(76, b"a", 80000)
g = call(85, b"b", 0o600); os.write(g, b"made")
h = call(257, AT, b"c", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
os.write(h, b"1"); os.pwrite(h, b"22", 0)
how = (ctypes.c_ulonglong * 3)(os.O_RDWR | os.O_CREAT | os.O_SYNC, 0o600, 0)
i = call(437, AT, b"d", how, 24); os.write(i, b"synced")
call(82, b"b", b"b1"); call(264, AT, b"b1", AT, b"b2"); call(316, AT, b"b2", AT, b"b3", 0)
call(86, b"b3", b"l1"); call(265, AT, b"b3", AT, b"l2", 0)
call(87, b"l1"); call(263, AT, b"l2", 0)
os.copy_file_range(f, g, 100, 200, 300); os.sendfile(g, f, 0, 400)
r, w = os.pipe(); os.splice(f, w, 50, offset_src=10); os.splice(r, g, 50, offset_dst=9000)
m = mmap.mmap(f, 8192, offset=4096); m[0] = 1; m.flush(4096, 4096)
call(306, f); call(162)
try:
    os.write(os.open("a", os.O_RDONLY), b"no")
except OSError:
    pass
t = threading.Thread(target=lambda: os.pwrite(f, b"thread", 70000)); t.start(); t.join()
if os.fork() == 0:
    os.pwrite(f, b"child", 75000); os._exit(0)
os.wait()
os.open("a", os.O_RDWR | os.O_TRUNC)
"""
RECORD = """
import json, os, subprocess, sys
from pathlib import Path
from ztune.trace.record import Recording, record
from ztune.trace.schema import Op
def recorded(name, command):
    work = f"/tmp/{name}/work"
    line = [one.replace("WORK", work) for one in command]
    trace = record(Recording(Path(f"/tmp/{name}/a.trace"), command=line, recorder="ebpf", paths=[Path(work)]))
    files = {f.id: Path(f.path).name for f in trace.manifest.files}
    events = [
        (Op(e["op"]).name, files.get(e["file"]), files.get(e["file2"]),
         e["offset"], e["size"], e["flags"], e["via"])
        for e in trace.table().to_pylist()
    ]
    told = trace.manifest
    kept = [(f.path.removeprefix(work), f.size_start, f.size_end, f.created, f.deleted) for f in told.files]
    return {"by": told.recorder.detail, "complete": told.complete, "events": events, "files": kept,
            "warnings": sorted(w.code for w in told.warnings)}
def fio(name, engine):
    out = f"/tmp/{name}.json"
    os.makedirs(f"/tmp/{name}/work")
    Path(f"/tmp/{name}/work/data").write_bytes(bytes(1 << 18))  # or fio would, with writes of its own
    options = ["rw=randrw", "bs=4k", "size=256k", "fsync=8", "randseed=3", "fallocate=none"]
    options += ["iodepth=4"] * (engine != "psync")  # fio has a remark on that, ahead of its JSON
    found = recorded(name, ["fio", "--name=x", "--filename=WORK/data", "--thread", f"--ioengine={engine}",
                            "--output-format=json", f"--output={out}", *(f"--{one}" for one in options)])
    job = json.loads(Path(out).read_text())["jobs"][0]
    told = {op: [job[op.lower()]["total_ios"], job[op.lower()]["io_bytes"]] for op in ("READ", "WRITE")}
    sizes = {op: [e[4] for e in found["events"] if e[:2] == (op, "data")] for op in told}
    return {"fio": told, "ours": {op: [len(each), sum(each)] for op, each in sizes.items()}}
Path("/tmp/calls.py").write_text(sys.stdin.read())
found = {}
for by in ("functions", "tracepoints"):
    if by == "tracepoints":
        os.environ["ZTUNE_RECORDER_TRACEPOINTS"] = "1"
    os.makedirs(f"/tmp/{by}/work")
    found[by] = recorded(by, [sys.executable, "-I", "/tmp/calls.py", "WORK"])
    found[by]["fio"] = {engine: fio(f"{by}-{engine}", engine) for engine in ("psync", "libaio", "io_uring")}
print(json.dumps(found))
"""

WAITS = """
import json, os, sys
from pathlib import Path
from ztune.trace.record import Recording, record
work = Path("/tmp/waits/work")
work.mkdir(parents=True)
os.chdir(work)
Path("/tmp/waits.py").write_text(sys.stdin.read())
trace = record(Recording(Path("/tmp/waits/a.trace"), command=[sys.executable, "-I", "/tmp/waits.py"],
                         recorder="ebpf", paths=[work]))
names = {line.split()[2] for line in open("/proc/kallsyms")}
print(json.dumps([bool(names & {"__preempt_count", "pcpu_hot"}), trace.table().to_pylist()]))
"""


@pytest.fixture(scope="module")
def seen(guest: Guest) -> dict[str, Any]:
    # Where it says whether the kernel preempts everywhere, in which case functions are not used.
    guest.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"])
    said = guest.run(
        ["python3", "-c", RECORD], CALLS.encode(), env={"PYTHONPATH": IN_GUEST, "PATH": PATH}, check=True,
        timeout=2900,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_each_call_once_gives_the_same_trace(seen: dict[str, Any]) -> None:
    one, other = seen["functions"], seen["tracepoints"]
    assert one["by"].startswith("functions of the system calls")
    assert other["by"].startswith("tracepoints sys_enter, sys_exit")
    for part in ("events", "files", "warnings", "complete"):
        assert one[part] == other[part], part
    assert one["complete"]
    counts = {op: sum(e[0] == op for e in one["events"]) for op in {e[0] for e in one["events"]}}
    assert counts == {
        "CREATE": 4, "READ": 6, "WRITE": 13, "FSYNC": 1, "FDATASYNC": 1, "SYNC_RANGE": 1, "FALLOCATE": 2,
        "TRUNCATE": 3, "RENAME": 3, "UNLINK": 2, "COPY": 2, "MMAP": 1, "MSYNC": 1, "SYNC": 2,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring"])
@pytest.mark.parametrize("by", ["functions", "tracepoints"])
def test_fio_counts_the_same(seen: dict[str, Any], by: str, engine: str) -> None:
    found = seen[by]["fio"][engine]
    assert found["ours"] == found["fio"] and found["fio"]["WRITE"][0] > 0


def test_whose_commit_a_thread_had_waited_for_is_told(guest: Guest) -> None:
    """On a kernel that shows what an interrupt wakes: the packets by which the two are asked are such."""
    text = whose_commits.program((1, "w"), (0, "C"), (1, "c"), tcp=True)
    said = guest.run(
        ["python3", "-c", WAITS],
        text.encode(), env={"PYTHONPATH": IN_GUEST, "PATH": PATH}, check=True, timeout=900,
    )  # fmt: skip
    shows, events = json.loads(said.stdout)
    call, synced = whose_commits.last_of_second(events)
    assert shows and call["t"] - call["since_sync"] == synced and call["waited"] > 0
