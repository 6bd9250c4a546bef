"""What recording and observing cost a call, attached to functions or to tracepoints: in the lab.

    .venv/bin/python bench/attached_cost.py [--rounds N]

The lab's kernel allows both; some hosts forbid programs at functions. In each round, in random order, each
way of watching is on while one process times a pair of sendto() and recvfrom() on a socket and a pread() of a
cached page (`bench/attached_cost.c`: the least of many short batches): its own process recorded, another one
recorded, files of another device observed (`ztune observe --path`). Prints one JSON object: for each the
median of its ratio to the unwatched one of the same round, with the least and the greatest. Under emulation a
call's time is in effect a count of instructions: ratios are not those of a real processor, but what costs
nothing costs nothing there either.
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
from pathlib import Path

import started

from ztune import native, paths
from ztune.lab import Guest

SOURCE = Path(__file__).with_suffix(".c")
BASE = "unwatched"
RECORD = "record --out /tmp/out --status 1 --control 0 --pid {}"
OBSERVE = "run --status 1 --control 0 --everyone"
WATCHED = {
    "recorded": (native.RECORDER, RECORD.format("SELF"), ""),
    "another recorded": (native.RECORDER, RECORD.format("OTHER"), ""),
    "other files observed": (native.OBSERVER, OBSERVE, "device 1;go;"),
}
WAYS = ("functions", "tracepoints")


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    options = parser.parse_args()
    variants = [BASE, f"{BASE}, again", *(f"{what}: {way}" for what in WATCHED for way in WAYS)]
    order = random.Random(options.seed)
    rounds: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory(dir=paths.scratch()) as folder, Guest.resume() as guest:
        program = Path(folder) / "timed"
        subprocess.run(["cc", "-O2", "-static", "-o", str(program), str(SOURCE)], check=True)
        guest.run(["mount", "-t", "debugfs", "none", "/sys/kernel/debug"])  # says how it preempts
        guest.run(["dd", "if=/dev/zero", "of=/tmp/file", "bs=4096", "count=1"], check=True)
        for number in range(options.rounds):
            rounds.append({one: timed(guest, program, one) for one in order.sample(variants, len(variants))})
            print(f"{number + 1}: {rounds[-1]}", file=sys.stderr, flush=True)
    ratios = {
        name: {
            call: described([one[name][i] / one[BASE][i] for one in rounds])
            for i, call in enumerate(("sendto+recvfrom", "pread"))
        }
        for name in variants[1:]
    }
    report = {"rounds": len(rounds), "load_average": os.getloadavg(), "ns_unwatched": rounds[-1][BASE]}
    print(json.dumps({**report, "ratios": ratios}, indent=1))


def timed(guest: Guest, program: Path, variant: str) -> list[float]:
    """Return ns of the two, watched as ``variant`` says."""
    what, _, way = variant.partition(": ")
    command = [f"/host{program}", "/tmp/file"]
    if what in WATCHED:
        helper, arguments, tell = WATCHED[what]
        command += [tell, f"/host{helper.find()}", *arguments.split()]
    else:
        command.append("")
    guest.run(["sh", "-c", "rm -rf /tmp/out; mkdir /tmp/out"], check=True)
    env = {"ZTUNE_RECORDER_TRACEPOINTS": "1"} if way == "tracepoints" else {}
    done = guest.run(command, env=env, check=True, timeout=1800)
    if way and (said := done.stderr.decode().split()[-1]) != way:
        raise SystemExit(f"the guest's kernel took {said}, not {way}")
    return [float(one) for one in done.stdout.split()]


def described(values: list[float]) -> list[float]:
    """Median, least, greatest."""
    return [round(f(values), 3) for f in (statistics.median, min, max)]


if __name__ == "__main__":
    started.script(main)
