"""What recording costs: pgbench on our own PostgreSQL, unrecorded, recorded with eBPF and with strace.

    .venv/bin/python bench/recording_cost.py [--seconds S] [--script NAME] [--sample] [--rounds FILE]

Every variant is on for a quarter of a second at a time, in turn with all others, under one pgbench whose
clients run as fast as they can, which is the worst case (`bench/interleaved.py`). `none again` tells how
much of a difference is noise. Prints one JSON object: for each variant the median throughput and
processor time of the server per transaction, both relative to the unrecorded seconds of the same round
with 95 % bootstrap intervals, the recorder's own processor time as a share of the server's; and the time
of one pread() of a cached page (least of several runs, so that other work on the machine hardly counts).
Goal: eBPF within 2 %. FILE keeps the rounds, and those of another time count too.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import started
from interleaved import AGAIN, BASE, Watching, described, kept, measure

from ztune.trace.record import Recording
from ztune.trace.recorders import RECORDERS

# Prints the least mean time of a pread() over several rounds, in ns.
READER = """
import os, sys, time
f = os.open(sys.argv[0], os.O_RDONLY)
best = 1e9
for _ in range(10):
    begin = time.perf_counter_ns()
    for _ in range(int(sys.argv[1])):
        os.pread(f, 512, 0)
    best = min(best, (time.perf_counter_ns() - begin) / int(sys.argv[1]))
open(sys.argv[2], "w").write(str(best))
"""


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="of all rounds")
    parser.add_argument("--block", type=float, default=0.25, help="seconds of a variant in a round")
    parser.add_argument("--script", choices=("tpcb-like", "select-only"), default="tpcb-like")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=5, help="× 100,000 rows")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    parser.add_argument("--rounds", type=Path, help="file that keeps the rounds")
    parser.add_argument("--sample", action="store_true", help="measure --sample 1/8 too")
    parser.add_argument("--strace", action="store_true", help="measure strace too")
    options = parser.parse_args()
    able = {recorder.name: recorder.unavailable() for recorder in RECORDERS}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder, numbers = Path(name), itertools.count()

        def with_recorder(recorder: str, sample: int = 1) -> Watching:
            @contextlib.contextmanager
            def recorded(workload: Any) -> Iterator[None]:
                recording = Recording(
                    folder / f"{next(numbers)}.trace", pids=workload.pids(), recorder=recorder, sample=sample
                )
                try:
                    yield
                finally:
                    recording.abort()

            return recorded

        variants: dict[str, Watching] = {
            BASE: lambda _: contextlib.nullcontext(),
            AGAIN: lambda _: contextlib.nullcontext(),
        }
        if able["ebpf"] is None:
            variants["ebpf"] = with_recorder("ebpf")
            if options.sample:
                variants["ebpf --sample 1/8"] = with_recorder("ebpf", 8)
        if options.strace and able["strace"] is None:
            variants["strace"] = with_recorder("strace")
        rounds = measure(
            variants, script=options.script, clients=options.clients, scale=options.scale,
            seconds=options.seconds, block_s=options.block, seed=options.seed,
        )  # fmt: skip
        rounds = kept(options.rounds, options.script, rounds)
        recorders = [None, *(name for name in able if name in variants)]
        report = {
            "script": options.script,
            "cpus": os.cpu_count(),
            "load_average": os.getloadavg(),
            "left_out": {name: why for name, why in able.items() if why},
            **described(rounds, options.seed),
            "pread_ns": {one or BASE: read_ns(one or BASE, folder) for one in recorders},
        }
    print(json.dumps(report, indent=1))


def read_ns(variant: str, folder: Path) -> int:
    """Time of one pread() of 512 bytes from a cached file, in a Python loop."""
    script, answer = folder / "reader.py", folder / "answer"
    script.write_text(READER)
    command = [sys.executable, "-I", str(script), "1000" if variant == "strace" else "10000", str(answer)]
    if variant == BASE:
        started.run(command, check=True)
    else:
        with Recording(folder / f"read-{variant}.trace", command=command, recorder=variant) as recording:
            while not recording.wait(1):
                pass
    return round(float(answer.read_text()))


if __name__ == "__main__":
    started.script(main)
