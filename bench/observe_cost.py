"""What observing live costs: pgbench on our own PostgreSQL with and without it, and one call in a tight loop.

    .venv/bin/python bench/observe_cost.py [--blocks N] [--seconds S] [--clients N] [--scale N] [--seed N]

Each block runs every variant once for each of pgbench's scripts select-only and tpcb-like, in random order
(seeded): unobserved, unobserved again (how much of a difference is noise), the server's processes observed
(--pid), and everything that touches its folder (--path). Clients run as fast as they can, the worst case.
Prints one JSON object: for each script and variant the median throughput, the median over the blocks of its
throughput, and of the server's processor time per transaction (which other work on the machine disturbs
less), relative to the unobserved run with 95 % bootstrap intervals, how many system calls were observed per
transaction, and the processor time of observing, loading included, as a share of the server's. Then the time
of one pread() of a cached page (least of many short rounds: other work on the machine hardly counts): of a
process that is not observed, is, or is not while another is. Goal: at most 1 % of pgbench's throughput.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ztune.databases.postgresql.onhost.pgbench import parse_output
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.observe.live import LiveObservation
from ztune.observe.model import Observation
from ztune.observe.subjects import ObservedSubject, of_path, of_pid
from ztune.onhost.probes import procfs

RESAMPLES = 5000
SCRIPTS = ("select-only", "tpcb-like")

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


def interval(values: list[float], seed: int) -> list[float]:
    """95 % percentile bootstrap interval of the median."""
    rng = np.random.default_rng(seed)
    picks = rng.choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def relative(name: str, values: list[float], base: list[float], seed: int) -> dict[str, object]:
    """Throughput or processor time against the unobserved run of the same block."""
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    return {
        f"{name}_relative_median": round(statistics.median(ratios), 4),
        f"{name}_relative_95": interval(ratios, seed),
    }


def server_seconds(pid: int) -> float:
    """Processor time of a process and its descendants, the ended ones included."""
    job = procfs.job([pid])
    return job.user_s + job.system_s


def observing(
    subject: Callable[[], ObservedSubject] | None,
) -> AbstractContextManager[LiveObservation | None]:
    return contextlib.nullcontext() if subject is None else LiveObservation(subject())


def described(seen: Observation, transactions: int) -> dict[str, float]:
    return {
        "calls_per_transaction": round(sum(call.calls for call in seen.calls) / max(1, transactions), 2),
        "own_cpu_share": round((seen.own_cpu_seconds or 0.0) / max(seen.cpu_seconds or 0.0, 0.001), 4),
    }


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10, help="of load in each run")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=5, help="× 100,000 rows")
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    options = parser.parse_args()

    order = random.Random(options.seed)
    parameters = {"scale": options.scale, "clients": options.clients, "max_wal_size": "4G"}
    rates: dict[tuple[str, str], list[float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}  # µs per transaction
    cost: dict[tuple[str, str], dict[str, float]] = {}
    with running(PostgresOltp(parameters)) as workload:
        server = workload.job.server
        variants: dict[str, Callable[[], ObservedSubject] | None] = {
            "none": None,
            "none again": None,
            "pid": lambda: of_pid(server.pid),
            "path": lambda: of_path(server.data.parent),  # the WAL is beside it
        }
        for block in range(options.blocks):
            for script, variant in order.sample(
                [(s, v) for s in SCRIPTS for v in variants], len(SCRIPTS) * len(variants)
            ):
                with observing(variants[variant]) as live:
                    before = server_seconds(server.pid)
                    outcome = parse_output(
                        server.client(
                            "pgbench",
                            f"--builtin={script}",
                            "--no-vacuum",
                            "--protocol=prepared",
                            f"--client={options.clients}",
                            f"--time={options.seconds}",
                            f"--random-seed={options.seed + block}",
                        )
                    )
                    spent = server_seconds(server.pid) - before
                    if live is not None:
                        cost[script, variant] = described(live.finish(), outcome.transactions)
                rates.setdefault((script, variant), []).append(float(outcome.tps or 0))
                cpu.setdefault((script, variant), []).append(1e6 * spent / max(1, outcome.transactions))
                print(f"block {block + 1} {script} {variant}: {outcome.tps:.0f} tps", file=sys.stderr)
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
        "blocks": options.blocks,
        "seconds": options.seconds,
        "clients": options.clients,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "pgbench": {
            script: {
                variant: {
                    "tps_median": round(statistics.median(rates[script, variant]), 1),
                    **relative("tps", rates[script, variant], rates[script, "none"], options.seed),
                    "cpu_us_median": round(statistics.median(cpu[script, variant]), 1),
                    **relative("cpu", cpu[script, variant], cpu[script, "none"], options.seed),
                    **cost.get((script, variant), {}),
                }
                for variant in variants
            }
            for script in SCRIPTS
        },
        "pread_ns": per_call,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
