"""How near predicted throughput comes to the database's own, of jobs that go as fast as they can.

    python bench/throughput.py --state FILE postgres-oltp:hdd-7200 [--layouts NAME …] [--calls 55,57,173]
    python bench/throughput.py --state FILE postgres-oltp,clients=1:ssd-sata    with other parameters
    python bench/throughput.py … --processor HOST.json   replays with these rates, in place of shipped ones
    python bench/throughput.py … --dilation 8 --processor HOST.json [--work 8]
                                                 in the lab, slowed down so, in place of a mount
    python bench/throughput.py --state FILE      the tables of what is there

Records the job once for both disks, runs its layouts on a mount, replays the recording under each, and
prints both, and what their commits and reads took; a prediction is for as many operations as the mount did,
for --seconds: longer than the recording, in which a fast file system does more of them than a slow disk will.
What FILE has is not done again. A mount costs time that ZFS in the kernel does not: --calls are the µs of a
read, a write and an fdatasync on an idle one with instant disks, so that like is compared with like; `ztune
screen` charges none. HOST.json is what `ztune doctor --processor HOST.json` wrote on this machine.

In a lab that is slowed down, processors are as many times as fast beside its disks: rates are divided by the
dilation, and calls cost nothing. So is what the database does itself, but on the guest's only processor, by
calls that take long there: nobody knows how much faster it is. --work 1, the default, has it as slow as when
recorded, --work 8 eight times as fast; where both predict the same it does not matter.

The machine should have nothing else to do. Real-time priority (`chrt`) is no help: the kernel's threads that
a sync waits for get no processor while eight clients of such a priority have both, and a recording of MariaDB
has stalls of a second.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import started
from accuracy import STUDIES, ztune

from ztune.errors import ZtuneError
from ztune.places import calibration, engine
from ztune.places.calibration import HostProcessors
from ztune.places.replay import Replay
from ztune.runs import plan
from ztune.runs.asked import study_for
from ztune.store.db import Store
from ztune.trace.ops import HEADER, RECORD
from ztune.trace.reader import Trace, operations_of
from ztune.trace.schema import Op

PARAMS = {
    "postgres-oltp": ["scale=8", "seconds=8", "rate=0", "warmup=0"],
    "mariadb-oltp": ["size=128M", "seconds=8", "rate=0", "warmup=0"],
    # No warm-up: on a fast file system it would fill a cache that a slow disk leaves empty.
    "sqlite": ["size=128M", "seconds=8", "rate=0", "warmup=0"],
    "rocksdb": ["size=128M", "seconds=8", "rate=0"],
    "valkey": ["seconds=8", "rate=0"],
    "fio": ["size=128M", "seconds=8", "rate_iops=0"],
}
SHIPPED = {**dict.fromkeys(PARAMS, STUDIES["fio"]), **STUDIES}
COUNTED_BY = {"mariadb-oltp": "binlog."}
"""A log to which each operation adds as many bytes: it tells when the recording had done how many of them."""
LAYOUTS = (
    "32K, no log device, latency, lz4",
    "8K, no log device, latency, off",
    "32K, no log device, throughput, off",
    "32K, log device, latency, off",
)
GOAL = 0.15
CALLS = ("sync_latency_ms", "read_latency_ms")
OPERATIONS = "operation_latency_ms"
SHARES = ("p50", "p95", "p99")


class CostlyCalls(Replay):
    """Replays whose calls take a processor as long as a mount's do."""

    calls: Mapping[str, float]
    first: int

    def hasten(self, times: float, folder: Path) -> None:
        """Take the recording as if all had gone so many times as fast: what a closed replay takes from it is
        the threads' own work, and the order of what waited for what."""
        whole = self.inputs.ops.read_bytes()
        ops = np.frombuffer(whole, RECORD, offset=HEADER.itemsize).copy()
        end = ops["t"] + ops["dur"]
        syncs = np.flatnonzero(np.isin(ops["op"], [Op.FSYNC, Op.FDATASYNC]))
        syncs = syncs[np.argsort(end[syncs], kind="stable")]
        told = np.flatnonzero(ops["since_sync"])
        ended = ops["t"][told] - ops["since_sync"][told]
        after = syncs[np.searchsorted(end[syncs], ended).clip(max=len(syncs) - 1)]
        known = end[after] == ended
        for field in ("t", "dur", "waited"):
            ops[field] = ops[field] / times
        ops["since_sync"] = 0
        told, after = told[known], after[known]
        ops["since_sync"][told] = ops["t"][told] - ops["t"][after] - ops["dur"][after]
        path = folder / "hastened.bin"
        path.write_bytes(whole[: HEADER.itemsize] + ops.tobytes())
        self.inputs = replace(self.inputs, ops=path)

    def threads(self) -> dict[str, Any]:
        """Return what the engine is told of threads and processors, with the calls and how much counts."""
        found = super().threads()
        first = {"first": min(self.first, found["operations"])}
        return {**found, **first, "processor": {**found["processor"], "calls": self.calls}}


def _study(workload: str, profile: str, folder: Path) -> str:
    shipped = Path(__file__).parents[1] / "studies" / f"{SHIPPED[workload]}.toml"
    path = folder / f"{profile}.toml"
    text = shipped.read_text().replace('"hdd-7200"', f'"{profile}"')
    # Not all have a study of their own: the grid is the same for all.
    text = re.sub(r'(?m)^workload = ".*"$', f'workload = "{workload}"', text)
    path.write_text(re.sub(r"(?s)\[parameters\]\n.*?\n\n", "", text))
    return str(path)


def _trials(run: str) -> dict[str, dict[str, Any]]:
    with Store.open() as store:
        return {t.layout.name: dict(t.result) for t in store.trials(run) if t.result}


def equivalent(trace: Trace, workload: str, first: int) -> int:
    """Return for how many operations the engine, which counts syncs, is to count for ``first`` of them.

    A recording's first operations may have more syncs than others: MariaDB's first 365, from a cold start,
    had 1.72 each, and all 1.54.
    """
    files = [f.id for f in trace.manifest.files if COUNTED_BY.get(workload, "\0") in f.path]
    operations = operations_of(trace)
    c = trace.columns("t", "op", "file", "size")
    added = (c["op"] == Op.WRITE) & np.isin(c["file"], files)
    if not added.any():
        return first
    syncs = np.isin(c["op"], (Op.FSYNC, Op.FDATASYNC))
    upto = np.cumsum(c["size"][added])
    at = c["t"][added][min(np.searchsorted(upto, upto[-1] / operations * first), len(upto) - 1)]
    return round(float(np.count_nonzero(syncs & (c["t"] <= at)) / np.count_nonzero(syncs)) * operations)


def measure(pair: str, given: argparse.Namespace, state: dict[str, Any]) -> None:
    """Do what is missing of a workload on a profile. Raises ZtuneError."""
    job, _, profile = pair.partition(":")
    workload, *more = job.split(",")
    if workload not in PARAMS or not profile:
        raise ZtuneError(f'"{pair}" is no pair; write WORKLOAD:PROFILE, such as postgres-oltp:hdd-7200')

    def keep() -> None:
        given.state.write_text(json.dumps(state, indent=1))

    params = [word for p in [*PARAMS[workload], *more] for word in ("-p", p)]
    slowed = given.dilation is not None
    place = f"{pair}, lab slowed down {given.dilation:g} times" if slowed else pair
    mine = state.setdefault(place, {"run": None})
    predicted = mine.setdefault(guesses(given), {})
    with tempfile.TemporaryDirectory(prefix="ztune-throughput-") as name:
        study = _study(workload, profile, Path(name))
        if job not in state.setdefault("recordings", {}):
            words = ["--study", study, "--budget", "1", "--no-elsewhere", "--out", f"{name}/o", *params]
            ztune("tune", workload, *words)
            run = json.loads(Path(f"{name}/o/run.json").read_text(encoding="utf-8"))["run"]
            with Store.open() as store:
                state["recordings"][job] = store.run(run).trace_path
            keep()
        if mine["run"] is None:
            chosen = [word for one in given.layouts for word in ("--layouts", one)]
            where = ["lab", "--dilation", f"{given.dilation:g}"] if slowed else ["mount"]
            words = ["--on", *where, "--caches", "cold", "--blocks", f"{given.blocks}:{given.blocks}"]
            longer = ["-p", f"seconds={given.seconds}"]
            mine["run"] = ztune("run", study, *words, *params, *longer, *chosen)["run"]
            keep()
        trace = Trace.open(Path(state["recordings"][job]))
        host = {}
        if given.processor is not None:
            rates = calibration.read(given.processor)
            of = replace(rates, rates={k: ns / (given.dilation or 1) for k, ns in rates.rates.items()})
            host = HostProcessors.like(of, of, 1 if slowed else None).to_json()
        replay = CostlyCalls(trace, engine.check(), timeout_s=3600, processor=host)
        calls = [0.0] * 3 if slowed else given.calls
        replay.calls = dict(zip(("read_us", "write_us", "sync_us"), calls, strict=True))
        if given.work != 1:
            replay.hasten(given.work, Path(name))
        resolved = study_for(trace, study, None, None)
        real = _trials(mine["run"])
        for layout in plan.layouts(resolved, given.layouts):
            if layout.name in predicted or layout.name not in real:
                continue
            first = min(real[layout.name]["job"]["operations"], operations_of(trace))
            replay.first = equivalent(trace, workload, first)
            outcome = replay.run(replay.spec(resolved, layout, 1), None, threading.Event())
            if outcome.result is None:
                raise ZtuneError(f"{layout.name}: {outcome.error}")
            found = outcome.result["measure"]
            predicted[layout.name] = {
                "per_second": first / found["model"]["most_s"],
                "commits": found["model"]["most_commits"] / first,
                **{key: found["model"][key] for key in (*CALLS, OPERATIONS) if key in found["model"]},
            }
            keep()


def guesses(given: argparse.Namespace) -> str:
    """Return the key of what is predicted."""
    return "predicted" if given.work == 1 else f"predicted, work {given.work:g}"


def show(pair: str, mine: dict[str, Any], predicted: dict[str, Any]) -> None:
    """Print a table: each layout's operations a second and log commits an operation, both ways."""
    print(f"\n| {pair}: layout | real, /s | predicted | error | commits: real | predicted |")
    print("| --- | --- | --- | --- | --- | --- |")
    errors = []
    for name, result in _trials(mine["run"]).items():
        guess, job = predicted.get(name), result["job"]
        if guess is None:
            continue
        commits = result["measure"]["zil"]["commits"] / job["operations"]
        errors.append(guess["per_second"] / job["per_second"] - 1)
        print(
            f"| {name} | {job['per_second']:.1f} | {guess['per_second']:.1f} | {errors[-1]:+.0%} "
            f"| {commits:.2f} | {guess['commits']:.2f} |"
        )
    if errors:
        within = sum(abs(e) <= GOAL for e in errors)
        middle = statistics.median(map(abs, errors))
        print(f"\nwithin {GOAL:.0%}: {within} of {len(errors)}; median error {middle:.0%}")


def show_latencies(pair: str, mine: dict[str, Any], predicted: dict[str, Any]) -> None:
    """Print a table: what operations and their calls took, for real and as predicted."""
    heads = " | ".join(f"{p}: real | predicted" for p in SHARES)
    print(f"\n| {pair}: layout | what | {heads} |")
    print("| --- | --- |" + " --- | --- |" * len(SHARES))
    for name, result in _trials(mine["run"]).items():
        guess = predicted.get(name, {})
        calls = {key: result["measure"].get(key, {}) for key in CALLS}
        for key, real in {OPERATIONS: result["job"]["latency_ms"], **calls}.items():
            if key not in guess or not real.get("p50"):
                continue
            cells = [
                f"{real[p]:.2f} | {guess[key][p]:.2f} ({guess[key][p] / real[p] - 1:+.0%})" for p in SHARES
            ]
            what = "operation" if key == OPERATIONS else key.partition("_")[0]
            print(f"| {name} | {what} | {' | '.join(cells)} |")


def main() -> int:
    """Measure and predict what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", metavar="WORKLOAD:PROFILE")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--layouts", action="append", metavar="NAME")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=24)
    parser.add_argument("--calls", default="55,57,173")
    parser.add_argument("--processor", type=Path)
    parser.add_argument("--dilation", type=float)
    parser.add_argument("--work", type=float, default=1.0)
    given = parser.parse_args()
    if given.dilation is not None and given.processor is None:
        parser.error("--dilation goes with --processor HOST.json: its rates are divided by it")
    given.layouts = given.layouts or list(LAYOUTS)
    given.calls = [float(us) for us in given.calls.split(",")]
    state = json.loads(given.state.read_text()) if given.state.is_file() else {}
    try:
        for pair in given.pairs:
            measure(pair, given, state)
    except ZtuneError as error:
        print(f"throughput: {error}", file=sys.stderr)
        return error.exit_code
    for pair, mine in state.items():
        if pair != "recordings" and mine.get(guesses(given)):
            show(pair, mine, mine[guesses(given)])
            show_latencies(pair, mine, mine[guesses(given)])
    return 0


if __name__ == "__main__":
    started.script(main)
