"""The eBPF programs on a kernel older than most hosts': it lacks bpf_rdonly_cast, and bounds the stack of all
programs that call each other together.
"""

from __future__ import annotations

import json

import pytest

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
