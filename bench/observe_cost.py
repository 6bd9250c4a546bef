"""What observing live costs: pgbench on our own PostgreSQL with and without it, and one call in a tight loop.

    .venv/bin/python bench/observe_cost.py [--seconds S] [--script NAME] [--rounds FILE]

Every variant is on for a quarter of a second at a time, in turn with all others, under one pgbench whose
clients run as fast as they can, the worst case (`bench/interleaved.py`): unobserved, unobserved again
(how much of a difference is noise), the server's processes observed (--pid), with all their calls (--calls),
and everything that touches its folder (--path). Prints one JSON object: for each variant the median
throughput and processor time of the server per transaction, both relative to the unobserved seconds of the
same round with 95 % bootstrap intervals, and the observer's own processor time as a share of the server's.
Then the time of one pread() of a cached page (least of many short rounds: other work on the machine hardly
counts): of a process that is not observed, is, or is not while another is. Goal: at most 1 % of pgbench's
throughput. FILE keeps the rounds, and those of another time count too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import started
from interleaved import AGAIN, BASE, Watching, described, kept, measure

from ztune.observe.live import LiveObservation
from ztune.observe.subjects import ObservedSubject, of_path, of_pid

# Told to begin by a line; prints the least mean time of a pread() over several rounds, in ns.
READER = """
import os, sys, time
f = os.open(sys.argv[1], os.O_RDONLY)
print(flush=True)
sys.stdin.readline()
best = 1e9
for _ in range(3000):  # each so short that it is seldom interrupted
    begin = time.perf_counter_ns()
    for _ in range(300):
        os.pread(f, 512, 0)
    best = min(best, (time.perf_counter_ns() - begin) / 300)
print(best)
"""


def observing(
    subject: Callable[[], ObservedSubject] | None,
) -> AbstractContextManager[LiveObservation | None]:
    """Return what observes, or nothing."""
    return contextlib.nullcontext() if subject is None else LiveObservation(subject())


def watching(subject: Callable[[Any], ObservedSubject], all_calls: bool = False, sample: int = 1) -> Watching:
    """Return what observes ``subject`` of the workload's server."""

    @contextlib.contextmanager
    def observed(workload: Any) -> Iterator[None]:
        with LiveObservation(subject(workload.job.server), all_calls=all_calls, sample=sample):
            yield

    return observed


def read_ns(subject: Callable[[int], ObservedSubject] | None, file: Path) -> float:
    """Least time of one pread() of 512 cached bytes in a Python loop, ns."""
    reader = subprocess.Popen(
        [sys.executable, "-I", "-c", READER, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    reader.stdout.readline()
    with observing(None if subject is None else lambda: subject(reader.pid)):
        said, _ = reader.communicate("go\n")
    return round(float(said), 1)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="of all rounds")
    parser.add_argument("--block", type=float, default=0.25, help="seconds of a variant in a round")
    parser.add_argument("--script", choices=("select-only", "tpcb-like"), default="tpcb-like")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=5, help="× 100,000 rows")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="measure --sample 1/N and no other; --block: N / 5 s or more"
    )
    parser.add_argument("--rounds", type=Path, help="file that keeps the rounds")
    options = parser.parse_args()
    variants: dict[str, Watching] = {
        BASE: lambda _: contextlib.nullcontext(),
        AGAIN: lambda _: contextlib.nullcontext(),
        "pid": watching(lambda server: of_pid(server.pid)),
        "pid, all calls": watching(lambda server: of_pid(server.pid), all_calls=True),
        "path": watching(lambda server: of_path(server.data.parent)),  # the WAL is beside it
    }
    if options.sample is not None:
        variants = {
            **{name: variants[name] for name in (BASE, AGAIN)},
            f"pid, 1/{options.sample}": watching(lambda server: of_pid(server.pid), sample=options.sample),
        }
    rounds = measure(
        variants, script=options.script, clients=options.clients, scale=options.scale,
        seconds=options.seconds, block_s=options.block, seed=options.seed,
    )  # fmt: skip
    rounds = kept(options.rounds, options.script, rounds)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file = Path(folder) / "file"
        file.write_bytes(bytes(4096))
        (elsewhere := Path(folder) / "elsewhere").mkdir()
        per_call = {
            "unobserved": read_ns(None, file),
            "its process observed": read_ns(of_pid, file),
            "its folder observed": read_ns(lambda _: of_path(folder), file),
            "another process observed": read_ns(lambda _: of_pid(os.getppid()), file),
            "another folder observed": read_ns(lambda _: of_path(elsewhere), file),
            "unobserved again": read_ns(None, file),
        }
    report: dict[str, Any] = {
        "script": options.script,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        **described(rounds, options.seed),
        "pread_ns": per_call,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    started.script(main)
