"""What recording costs: pgbench on our own PostgreSQL, unrecorded, recorded with eBPF and with strace.

    .venv/bin/python bench/recording_cost.py [--blocks N] [--seconds S] [--no-strace] [--rate TPS]

Each block runs every variant once, in random order (seeded), and the unrecorded one twice, so that the second
tells how much of a difference is noise. Clients run as fast as they can, which is the worst case; --rate
gives a fixed load instead, and then only latency tells. Prints one JSON object: for each variant the median
throughput and mean latency, the median over the blocks of its throughput relative to the unrecorded run
with a 95 % bootstrap interval, and the time of one pread() of a cached page (least of several runs, so that
other work on the machine hardly counts). Goal: eBPF within 2 %.
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

import numpy as np

from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.trace.reader import Trace
from ztune.trace.record import Recording
from ztune.trace.recorders import RECORDERS

RESAMPLES = 5000


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


def interval(values: list[float], seed: int) -> list[float]:
    """95 % percentile bootstrap interval of the median."""
    rng = np.random.default_rng(seed)
    picks = rng.choice(np.array(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(picks, axis=1), [2.5, 97.5])
    return [round(float(low), 4), round(float(high), 4)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of load in each run")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=int, default=5, help="× 100,000 rows")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="transactions per second; 0: as many as possible"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order and the bootstrap")
    parser.add_argument("--no-strace", action="store_true")
    options = parser.parse_args()

    variants = ["none", "none again"]
    left_out = {}
    for recorder in RECORDERS:
        reason = "--no-strace" if recorder.name == "strace" and options.no_strace else recorder.unavailable()
        if reason is None:
            variants.append(recorder.name)
        else:
            left_out[recorder.name] = reason
    order = random.Random(options.seed)
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    latencies: dict[str, list[float]] = {variant: [] for variant in variants}
    recorded: dict[str, dict[str, float]] = {}
    parameters = {
        "scale": options.scale,
        "clients": options.clients,
        "seconds": options.seconds,
        "rate": options.rate,
        "final_checkpoint": False,
        "max_wal_size": "4G",
    }
    with running(PostgresOltp(parameters)) as workload, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for block in range(options.blocks):
            for variant in order.sample(variants, len(variants)):
                if variant.startswith("none"):
                    result = workload.run()
                else:
                    out = Path(folder) / f"{variant}-{block}.trace"
                    with Recording(out, pids=workload.pids(), recorder=variant) as recording:
                        result = workload.run()
                    recorded[variant] = described(recording.trace, result.operations)
                rates[variant].append(result.per_second)
                latencies[variant].append(result.latency_ms["mean"])
                print(f"block {block + 1} {variant}: {result.per_second:.0f} tps", file=sys.stderr)
        per_call = {
            variant: read_ns(variant, Path(folder)) for variant in variants if variant != "none again"
        }
    report = {
        "blocks": options.blocks,
        "seconds": options.seconds,
        "clients": options.clients,
        "rate": options.rate,
        "cpus": os.cpu_count(),
        "left_out": left_out,
        "variants": {
            variant: {
                "tps_median": round(statistics.median(rates[variant]), 1),
                "latency_mean_ms": round(statistics.median(latencies[variant]), 3),
                **relative(rates[variant], rates["none"], options.seed),
                **recorded.get(variant, {}),
                **({"pread_ns": per_call[variant]} if variant in per_call else {}),
            }
            for variant in variants
        },
    }
    print(json.dumps(report, indent=1))


def relative(values: list[float], base: list[float], seed: int) -> dict[str, object]:
    """Throughput against the unrecorded run of the same block."""
    ratios = [value / other for value, other in zip(values, base, strict=True)]
    return {
        "relative_median": round(statistics.median(ratios), 4),
        "relative_95": interval(ratios, seed),
    }


def read_ns(variant: str, folder: Path) -> int:
    """Time of one pread() of 512 bytes from a cached file, in a Python loop."""
    script, answer = folder / "reader.py", folder / "answer"
    script.write_text(READER)
    command = [sys.executable, "-I", str(script), "1000" if variant == "strace" else "10000", str(answer)]
    if variant == "none":
        subprocess.run(command, check=True)
    else:
        with Recording(folder / f"read-{variant}.trace", command=command, recorder=variant) as recording:
            while not recording.wait(1):
                pass
    return round(float(answer.read_text()))


def described(trace: Trace, operations: int) -> dict[str, float]:
    """How much was recorded."""
    manifest = trace.manifest
    return {"dropped": manifest.dropped, "events": manifest.events, "transactions": operations}


if __name__ == "__main__":
    main()
