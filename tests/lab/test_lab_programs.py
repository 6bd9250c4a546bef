"""The eBPF programs on a kernel older than most hosts': it lacks bpf_rdonly_cast, and bounds the stack of all
programs that call each other together.
"""

from __future__ import annotations

import json
import sysconfig

import pytest
from guests import PATH, SOURCE

from ztune import native
from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("helper", [native.OBSERVER, native.RECORDER], ids=["observer", "recorder"])
@pytest.mark.parametrize("way", ["functions", "tracepoints"])
def test_the_kernel_takes_all_programs(guest: Guest, helper: native.NativeProgram, way: str) -> None:
    # Where it says whether the kernel preempts everywhere, in which case functions are not used.
    guest.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"])
    env = {"ZTUNE_RECORDER_TRACEPOINTS": "1"} if way == "tracepoints" else {}
    said = json.loads(guest.run([f"/host{helper.find()}", "check"], env=env, timeout=500).stdout)
    assert (said["state"], said.get("attached")) == ("ok", way), said


# It ends by a call on a file that was renamed meanwhile, and is gone once it is looked for.
PROGRAM = """
import os, socket, sys
os.chdir("/tmp/observed")
sys.stdin.readline()
a, b = socket.socketpair()
f = os.open("1.tmp", os.O_RDWR | os.O_CREAT)
for i in range(20):
    a.send(b"x"); b.recv(1)
    os.pwrite(f, b"x" * 512, 512 * i); os.fdatasync(f)
os.rename("1.tmp", "1.wal")
os.pread(f, 4096, 0); os.write(f, b"y")
os.unlink("1.wal")
"""
OBSERVE = """
import json, os, subprocess, sys
from ztune.observe.live import LiveObservation
from ztune.observe.subjects import choose
os.makedirs("/tmp/observed")
program, found = sys.stdin.read(), {}
for what in ("process", "folder"):
    waiting = subprocess.Popen([sys.executable, "-I", "-c", program], stdin=subprocess.PIPE)
    subject = choose(path="/tmp/observed") if what == "folder" else choose(pid=waiting.pid)
    with LiveObservation(subject) as live:
        waiting.communicate(b"go")
        seen = live.finish()
    files = [
        (g.name, g.reads.calls, g.reads.bytes, g.writes.calls, g.writes.bytes, g.syncs.calls)
        for g in seen.groups if g.kind == "file" and g.name.startswith("/tmp/observed")
    ]
    found[what] = files, {call.name: call.calls for call in seen.calls}
print(json.dumps(found))
"""


def test_what_is_observed_at_functions_is_what_was_done(guest: Guest) -> None:
    guest.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"])
    env = {"PYTHONPATH": f"{SOURCE}:/host{sysconfig.get_path('purelib')}", "PATH": PATH}
    done = guest.run(["python3", "-c", OBSERVE], PROGRAM.encode(), env=env, check=True, timeout=500)
    for what, (files, calls) in json.loads(done.stdout).items():
        assert files == [["/tmp/observed/1.wal", 1, 4096, 21, 20 * 512 + 1, 20]], what
        assert (calls["pwrite64"], calls["fdatasync"]) == (20, 20), what
        assert not calls.keys() & {"sendto", "recvfrom"}, what
