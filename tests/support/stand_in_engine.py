#!/usr/bin/env -S python3 -S
"""Answers like ztune-engine, with numbers computed from spec and ops: for tests of what is around the engine.

STAND_IN: "crash=TEXT" kills itself in layouts whose spec holds TEXT; "refuse=TEXT", "hang=TEXT",
"garbage=TEXT", "limit=TEXT" likewise; "kill=TEXT" as the kernel does; "kill-once=FILE" where FILE is not;
"slow=SECONDS"; "takes=BYTES" of memory; several joined by ";".
STAND_IN_VERSION changes its version, STAND_IN_OPENZFS that of OpenZFS: 2.4 makes a tenth fewer writes.
"""

# pathlib takes as long to load as all the rest.
# ruff: noqa: PTH110, PTH116, PTH123

import os
import sys
import time
from itertools import pairwise

VERSION = os.environ.get("STAND_IN_VERSION", "0.0.1")
UNSEEN = ("content", "backing_dir", "backing", "memory_limit", "file_limit")
OPENZFS = os.environ.get("STAND_IN_OPENZFS", "2.3.2")
ENGINE = {"version": VERSION, "openzfs": OPENZFS}


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def replay(spec_path: str, ops_path: str) -> int:
    import json
    import signal

    spec = json.loads(read(spec_path))
    ops = read(ops_path)
    assert ops[:8] == b"ZTOPS\0\0\0"
    for content in spec["content"].values():
        assert os.stat(content).st_size % (1 << 20) == 0
    plain = json.dumps({k: v for k, v in spec.items() if k not in UNSEEN})
    wishes = dict(w.split("=", 1) for w in os.environ.get("STAND_IN", "").split(";") if w)
    print(json.dumps({"phase": "load", "done": 0.5}), file=sys.stderr, flush=True)
    time.sleep(float(wishes.get("slow", 0)))
    if "hang" in wishes and wishes["hang"] in plain:
        time.sleep(600)
    if "crash" in wishes and wishes["crash"] in plain:
        print("ASSERT at dbuf.c:1 failed", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    once = wishes.get("kill-once")
    if ("kill" in wishes and wishes["kill"] in plain) or (once and not os.path.exists(once)):
        if once:
            open(once, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if "refuse" in wishes and wishes["refuse"] in plain:
        print("recordsize is odd", file=sys.stderr)
        return 2
    short = int(wishes.get("takes", 0)) > spec.get("memory_limit", 0)
    if short or ("limit" in wishes and wishes["limit"] in plain):
        print("The replay needs more than the 9 MiB of memory that it may take.", file=sys.stderr)
        return 5
    if "garbage" in wishes and wishes["garbage"] in plain:
        print("{")
        return 0
    data = next(d for d in spec["datasets"] if d["name"].endswith("/data"))["properties"]
    recordsize = int(data["recordsize"])
    slog = any(v["class"] == "log" for p in spec["pools"] for v in p["vdevs"])
    # A bowl with its bottom at 16K, better with zstd and with a log device.
    steps = abs(recordsize.bit_length() - (16384).bit_length())
    seconds = 10.0 + 5.0 * steps - (3.0 if slog else 0.0) + (0.5 if data["primarycache"] != "all" else 0.0)
    size = sum(f["size"] for f in spec["files"])
    allocated = int(size / {"off": 1.0, "lz4": 1.6}.get(data["compression"], 2.2))
    written = len(ops) * recordsize // 4096 + spec["seed"]
    result = {
        "engine": ENGINE,
        "status": "ok",
        "seed": spec["seed"],
        "load": {"wall_s": 0.1, "cpu_s": 0.1, "write_bytes": size},
        "measure": {
            "wall_s": 0.1,
            "physical": {
                "reads": 10,
                "read_bytes": 4096 * steps,
                "writes": 18 if OPENZFS.startswith("2.4") else 20,
                "write_bytes": written,
                "flushes": 3,
            },
            "logical": {"reads": 1, "read_bytes": 2, "writes": 3, "write_bytes": 4, "syncs": 5},
            "by_dataset": [
                {
                    "name": d["name"],
                    "reads": sum(f["size"] >> 12 for f in spec["files"] if f["dataset"] == d["name"]),
                    "read_bytes": sum(f["size"] for f in spec["files"] if f["dataset"] == d["name"]),
                    "writes": 0,
                    "write_bytes": 0,
                    "zil_bytes": 0,
                }
                for d in spec["datasets"]
            ],
            "rmw_reads": steps,
            "rmw_read_bytes": 0,
            "write_amplification": 2.0,
            "space": {"logical": size, "allocated": allocated, "compression_ratio": 1.5, "datasets": []},
            "model": {
                "trace_s": 1.0,
                "modelled_s": seconds,
                "busy_s_max": seconds,
                "thread_wait_s_max": 1.0,
                "sync_latency_ms": {"count": 1, "mean": 1, "p50": 1, "p90": 1, "p99": 1, "p999": 1, "max": 1},
                "read_latency_ms": {"count": 1, "mean": 1, "p50": 1, "p90": 1, "p99": 1, "p999": 1, "max": 1},
            },
        },
        "warnings": [],
    }
    print(json.dumps({"phase": "measure", "done": 1.0}), file=sys.stderr)
    print(json.dumps(result))
    return 0


# By hand, as argparse takes as long to load as all the rest; hence -S above, too. It is started thousands of
# times, half of them to load: what only some need is imported where they do.
action, *words = sys.argv[1:]
options = dict(pairwise(words))
assert action in ("load", "replay", "selfcheck", "version")
assert {word for word in words if word.startswith("-")} <= {"--spec", "--ops", "--image", "--progress"}
if action == "load":
    with open(options["--image"], "wb") as image:
        image.write(b"loaded")
    sys.exit(0)
if action == "replay":
    assert read(options["--image"]) == b"loaded"
    sys.exit(replay(options["--spec"], options["--ops"]))
print(f'{{"version": "{VERSION}", "openzfs": "{OPENZFS}", "ok": true}}')
