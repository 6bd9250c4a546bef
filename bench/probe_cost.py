"""What each probe costs: the same job with each probe on alone, and with none.

    .venv/bin/python bench/probe_cost.py [--blocks N] [--writes N] [--seed N]         in the lab's guest
    sudo python3 bench/probe_cost.py --inside PYZ --disk /dev/X [same options]        on a host with OpenZFS

The job is so many writes of 8 KiB, each synced, into a dataset on a pool of one disk, which the benchmark
makes and destroys; then `zpool sync`. Each block runs every variant once, in random order (seeded); "none"
runs twice, so that the second tells how much of a difference is noise. CPU seconds are of all processors of
the machine, from when the probe has begun until it is frozen: the job's, ZFS's and the probe's. own_s are of
the process that probes, from before the probe begins until it is frozen: they tell small costs apart on a
machine that is never quiet. Prints one JSON object: for each variant the medians, the median difference to
"none" of the same block with a 95 % bootstrap interval, and the seconds of wall time that the probe takes
before and after the window.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import started

RESAMPLES = 5000
POOL = "ztprobecost"
JOB = (
    'read go; dd if=/dev/urandom of="$1" bs=8k count="$2" oflag=sync conv=notrunc 2>/dev/null; '
    "echo done; read end"
)


def _one(pid: int) -> list[int]:
    return [pid]


def inside(options: argparse.Namespace) -> None:
    """Do the runs on this host, with the trial program's own modules; print one JSON line each."""
    sys.path.insert(0, options.inside)
    from ztune.onhost import probes
    from ztune.onhost.events import Events
    from ztune.onhost.host.about import environment
    from ztune.onhost.host.zfs import Commands
    from ztune.onhost.probes import procfs, vdevs
    from ztune.onhost.probes.context import Context, DatasetContext, DeviceContext, PoolContext
    from ztune.onhost.probes.devzfs import pool_stats

    with Path(os.devnull).open("w") as null, tempfile.TemporaryDirectory() as folder:
        command = Commands(Events(null), patience=50)
        mountpoint = Path(folder) / "db"
        command(
            [
                *("zpool", "create", "-o", "cachefile=none", "-O", f"mountpoint={mountpoint}"),
                *("-O", "recordsize=8K", POOL, options.disk),
            ]
        )
        try:
            guid = command(["zpool", "get", "-Hp", "-o", "value", "guid", POOL]).strip()
            pool = PoolContext(
                POOL, "main", "zfs", guid, (DeviceContext("data", 0, options.disk, options.disk),), True
            )
            dataset = DatasetContext(POOL, "main", ("data",), mountpoint, POOL, "zfs", False, "")
            names = sorted(probes.PROBES)
            variants = ["none", "none again", *names]
            order = random.Random(options.seed)
            about = environment()
            print(json.dumps({k: about[k] for k in ("openzfs", "kernel", "cpus", "accel")}), flush=True)
            # The first run fills caches and the file: it counts for nothing.
            for block in range(-1, options.blocks):
                for variant in order.sample(variants, len(variants)) if block >= 0 else ["none"]:
                    said: list[str] = []
                    job = subprocess.Popen(
                        ["sh", "-c", JOB, "sh", str(mountpoint / "file"), str(options.writes)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                    assert job.stdin and job.stdout
                    context = Context(
                        run="r-cost",
                        trial="r-cost-1",
                        seed=1,
                        state=Path(folder),
                        options={name: name == variant for name in names},
                        pools=(pool,),
                        datasets=(dataset,),
                        role_dirs={"data": mountpoint},
                        command=command,
                        pids=partial(_one, job.pid),
                        warn=said.append,
                        patience=50,
                    )
                    times, own = [time.monotonic()], time.process_time()
                    running = probes.start(context)
                    times.append(time.monotonic())
                    before, then = procfs.host(), vdevs.leaves(pool_stats(POOL))
                    job.stdin.write(b"go\n")
                    job.stdin.flush()
                    job.stdout.readline()
                    command(["zpool", "sync", POOL])
                    times.append(time.monotonic())
                    running.freeze()
                    after, now = procfs.host(), vdevs.leaves(pool_stats(POOL))
                    times.append(time.monotonic())
                    own = time.process_time() - own
                    running.stop()
                    times.append(time.monotonic())
                    job.communicate(b"end\n")
                    used = after.since(before)
                    row = {
                        "block": block,
                        "variant": variant,
                        "begin_s": times[1] - times[0],
                        "job_s": times[2] - times[1],
                        "freeze_s": times[3] - times[2],
                        "finish_s": times[4] - times[3],
                        "own_s": own,
                        "cpu_s": used["user_s"] + used["system_s"],
                        "context_switches": used["context_switches"],
                        "writes": sum(leaf.writes for leaf in now) - sum(leaf.writes for leaf in then),
                        "write_bytes": sum(x.write_bytes for x in now) - sum(x.write_bytes for x in then),
                        "said": said,
                    }
                    print(json.dumps(row), flush=True)
        finally:
            command(["zpool", "destroy", POOL])


def in_lab(options: argparse.Namespace) -> list[str]:
    """Do the runs in the lab's guest and return what they print."""
    from ztune.lab import Guest
    from ztune.places import bundle

    with tempfile.TemporaryDirectory() as folder, Guest.resume(options.openzfs) as guest:
        image = Path(folder) / "cost.img"
        with image.open("wb") as file:
            file.truncate(1 << 30)
        disk = str(guest.add_disk(image, "cost", unsafe=True))
        channel = guest.popen(
            [
                *(
                    "python3",
                    f"/host{Path(__file__).resolve()}",
                    "--inside",
                    f"/host{bundle.build().resolve()}",
                ),
                *("--disk", disk, "--blocks", str(options.blocks), "--writes", str(options.writes)),
                *("--seed", str(options.seed)),
            ]
        )
        lines = []
        for line in channel.lines():
            lines.append(line)
            print(line, file=sys.stderr)
        if channel.wait() != 0:
            raise SystemExit(channel.stderr_tail())
        return lines


def interval(values: list[float], seed: int) -> list[float]:
    """95 % percentile bootstrap interval of the median."""
    import numpy as np

    picks = np.random.default_rng(seed).choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def report(lines: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the benchmark's result from the lines of the runs."""
    machine, *rows = (json.loads(line) for line in lines)
    rows = [row for row in rows if row["block"] >= 0]
    base = {row["block"]: row for row in rows if row["variant"] == "none"}
    found: dict[str, Any] = {}
    for variant in sorted(
        {row["variant"] for row in rows}, key=lambda name: (not name.startswith("none"), name)
    ):
        mine = [row for row in rows if row["variant"] == variant]
        entry: dict[str, Any] = {"left_out": sorted({text for row in mine for text in row["said"]})}
        for key in ("own_s", "job_s", "cpu_s", "context_switches", "writes", "write_bytes"):
            entry[key] = round(statistics.median(row[key] for row in mine), 3)
            if variant != "none":
                less = [row[key] - base[row["block"]][key] for row in mine]
                entry[f"{key}_more"] = round(statistics.median(less), 4)
                entry[f"{key}_more_95"] = interval(less, options.seed)
        for key in ("begin_s", "freeze_s", "finish_s"):
            entry[key] = round(statistics.median(row[key] for row in mine), 4)
        found[variant] = entry
    return {**machine, "blocks": options.blocks, "writes_synced": options.writes, "variants": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--writes", type=int, default=300, help="synced writes of 8 KiB in each run")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    parser.add_argument("--openzfs", help="version of the lab's OpenZFS; default: the newest")
    parser.add_argument("--inside", metavar="PYZ", help="run here, with this trial program; needs --disk")
    parser.add_argument("--disk", help="empty disk for the pool; it is overwritten")
    options = parser.parse_args()
    if options.inside:
        inside(options)
    else:
        print(json.dumps(report(in_lab(options), options), indent=1))


if __name__ == "__main__":
    started.script(main)
