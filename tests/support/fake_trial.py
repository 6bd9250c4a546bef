"""Stands in for the trial program: speaks its protocol, needs no ZFS, and can die at any step.

What it does is read from ``behaviour.json`` in the state directory: layout name → seconds per operation,
spread, and what goes wrong. What it "makes" is a file per trial in the state directory, gone at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:  # it starts with every trial, and this takes long to load
    from typing import Any

STEPS = ("prepare", "load", "settle", "measure", "collect", "destroy")


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def hello() -> None:
    home = Path(__file__).parent
    told = json.loads((home / "hello.json").read_text()) if (home / "hello.json").exists() else {}
    print(json.dumps({
        "python": "3.11.2", "kernel": "6.1.0", "openzfs": {"kernel": "2.3.2-1", "tools": "2.3.2-1"},
        "root": True,
        "memory": 2 << 30, "cpus": 2, "tools": {"zfs": "/sbin/zfs", "zpool": "/sbin/zpool"}, "boot_id": "b",
        "accel": "none", **told,
    }))  # fmt: skip


def clean(state: Path) -> int:
    told = json.loads((state / "behaviour.json").read_text()).get("clean", {})
    with (state / "cleaned").open("a") as file:
        file.write("x")
    time.sleep(told.get("hangs_s", 0))
    if "until" in told:
        deadline = time.monotonic() + 20
        while not (state / told["until"]).exists():
            if time.monotonic() > deadline:
                (state / "in vain").touch()
                break
            time.sleep(0.02)
    if (state / "cleaned").stat().st_size <= told.get("running", 0):
        run = json.loads((state / "specs.jsonl").read_text().splitlines()[0])["run"]
        say("running", run=run)
        say("warning", text=f"run {run}: a trial of it is still running in {state}; wait, or stop it")
        say("end", status="failed")
        return 1
    if "waits" in told:
        say("log", text=told["waits"], waits=True)
    for thing in sorted(state.glob("made-*")):
        say("log", text="", command=["zpool", "destroy", thing.name], rc=0)
        thing.unlink()
    say("end", status="ok")
    return 0


def result(spec: dict[str, Any], seconds: float) -> dict[str, Any]:
    operations = 1000
    looked_for = spec["job"]["params"].get("busy")
    found = {"asked": 0.6, "busy": 0.59, "rate": 812.5, "processors": 2.0, "idle": 0.01, "steps": []}
    theirs = {"seconds": 30.0, "operations": 60, "per_second": 2.0, "latency_ms": {}, "checks": []}
    both = {"together_s": 9.0, "neighbour": theirs} if spec["job"]["params"].get("which") == "both" else {}
    writes = 3000 if "128K" in spec["layout"]["name"] else 2000
    return {
        "format": "ztune-result", "version": 1, "environment": {"openzfs": "2.3.2-1"}, "commands": [],
        "steps": {"prepare": 0.1, "load": 0.2, "settle": 0.1, "measure": 1.0, "collect": 0.1},
        "job": {"seconds": seconds * operations, "operations": operations, "unit": "transaction",
                "per_second": 1 / seconds, "latency_ms": {"mean": seconds * 8e3, "p50": 1.0, "p99": 9.0},
                "checks": [],
                "details": {"wal_bytes": 1_000_000, **both,
                            **({"calibration": found} if looked_for else {})}},
        "measure": {"seconds": seconds * operations, "operations": operations,
                    "physical": {"reads": 500, "read_bytes": 4_096_000, "writes": writes,
                                 "write_bytes": writes * 8192, "flushes": 100},
                    "by_vdev": [{"pool": "main", "class": "data", "path": "/dev/sda", "reads": 500,
                                 "read_bytes": 4_096_000, "writes": writes, "write_bytes": writes * 8192,
                                 "flushes": 100, "busy_ms": 1500}],
                    "arc": {"hits": 9000, "misses": 500, "size_end": 60 << 20},
                    "zil": {"commits": 1000, "bytes": 8_000_000, "itx_indirect": 0, "itx_copied": 10,
                            "itx_needcopy": 990},
                    "txgs": 6,
                    "space": {"allocated": 300 << 20, "logical": 400 << 20, "compression_ratio": 1.3,
                              "by_dataset": []},
                    "logical": {"read_bytes": 9_000_000, "write_bytes": 12_000_000},
                    "cpu": {"user_s": 2.0, "system_s": 1.0, "context_switches": 5000}},
        "probes": {"iostat": {"ok": True}}, "warnings": [],
    }  # fmt: skip


def run() -> int:
    import random  # slow to load, and the other commands draw nothing

    line = sys.stdin.readline()
    spec = json.loads(line)
    state = Path(spec["state"])
    stop = threading.Event()

    def control() -> None:
        for text in sys.stdin:
            if text.strip() == "stop":
                break
        stop.set()

    threading.Thread(target=control, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    path = state / "behaviour.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    name = spec["layout"]["name"]
    mine = {**told.get("*", {}), **told.get(name, {})}
    with (state / "specs.jsonl").open("a") as file:
        file.write(json.dumps(spec) + "\n")
    made = state / f"made-{spec['trial']}"
    # Not by the run's name, which is drawn anew each time.
    dice = random.Random(f"{spec['seed']}:{spec['trial'].removeprefix(spec['run'])}")
    seconds = mine.get("seconds", 0.01) * (1 + dice.gauss(0, mine.get("spread", 0.0)))
    status = "ok"
    for step in STEPS:
        once = state / f"died-{name.replace('/', '_')}-{step}"
        say("step", step=step, state="begin", share=0, t=time.time(), text="")
        if step == "prepare":
            made.touch()
            say("log", text="", command=["zpool", "create", "zt"], rc=0, seconds=0.1)
        if mine.get("die") == step and not (mine.get("once") and once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if mine.get("lose") == step and not (mine.get("once") and once.exists()):
            once.touch()
            os._exit(255)
        if mine.get("fail") == step:
            say("error", text="no room on the disk", step=step)
            status = "failed"
            break
        if step == "measure" and "waits" in mine:
            say("log", text=mine["waits"], waits=True)
            say("log", text="mounted by process 1")
        if mine.get("hang") == step:
            (state / "hanging").touch()
            stop.wait(60)
        if mine.get("stuck") == step:
            time.sleep(60)
        if stop.is_set():
            say("error", text="stopped before its end, as was asked for", step=step)
            status = "stopped"
            break
        if step == "measure":
            say("window", state="open")
        say("step", step=step, state="progress", share=0.5, t=time.time(), text="half")
        if step == "measure":
            say("window", state="closed")
            say("series", probe="arc", columns=["t", "hits"], rows=[[time.time(), 1], [time.time(), 2]])
        if step == "collect":
            say("warning", text="the clock was set")
            found = result(spec, seconds)
            if "devices" in mine:
                found["environment"]["parents"] = {"tank": mine["devices"]}
            say("result", result=found)
        say("step", step=step, state="end", share=1, t=time.time(), text="")
    if mine.get("keep"):
        say("error", text="pool zt: left alone: busy", step="destroy")
        status = "failed"
    else:
        made.unlink()
    say("end", status=status)
    return 0 if status == "ok" else 1


if __name__ == "__main__":
    command = sys.argv[1]
    if command == "hello":
        hello()
    elif command == "clean":
        sys.exit(clean(Path(sys.argv[sys.argv.index("--state") + 1])))
    elif command == "list":
        where = Path(sys.argv[sys.argv.index("--state") + 1])
        made_now = sorted(p.name for p in where.glob("made-*"))
        print(json.dumps({
            "state": str(where), "datasets": [],
            "trials": [{"run": "r", "trial": m.removeprefix("made-"), "running": False,
                        "things": [{"id": "pool:main", "kind": "pool", "made": True, "refused": ""}]}
                       for m in made_now],
        }))  # fmt: skip
    else:
        sys.exit(run())
