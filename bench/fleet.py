"""What a fleet gains: two workers against one on this machine, and how well 256 of them are kept busy.

    python bench/fleet.py two [TRACE] [--rounds N]    real engines; without TRACE 30 s of synthetic OLTP
    python bench/fleet.py many [--workers 256] [--layouts 10000] [--seconds 5]

``two`` replays the same layouts on `local-cluster:1` and `local-cluster:2` in turns, and prints each round's
seconds and the ratio. ``many`` has a stand-in in the engine's place, which takes a fixed time and no
processor; the scheduler is a process of its own, all workers share another, and the client is this one. It
prints the efficiency (what the workers did of what they could have done) and the memory of scheduler and
client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import psutil
import started
from screening_speed import synthetic

from ztune.fleet import connect, worker
from ztune.fleet.executor import FleetExecutor
from ztune.places import engine as engines
from ztune.places.executor import Executor, PlannedReplay
from ztune.places.replay import Replay
from ztune.runs.asked import study_for
from ztune.runs.space import first_round
from ztune.study import Layout, Study
from ztune.trace.reader import Trace

RESULT_BYTES = 16 << 10
"""About what a real result takes."""
QUIET = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "60s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "5s",
}
"""Each worker of Dask watches its process so often that 256 in one process do little else."""

SCHEDULER = {"DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "10"}
"""What `ztune fleet certs` writes for a scheduler."""


def run_all(executor: Executor, planned: Iterator[PlannedReplay], said: Any = None) -> float:
    """Replay all of ``planned`` as a screening does; return the seconds."""
    began = time.monotonic()
    waiting: list[PlannedReplay] = []
    running, ended = 0, 0
    more = True
    while more or waiting or running:
        while more or waiting:
            while more and len(waiting) < 8:
                one = next(planned, None)
                more = one is not None
                waiting += [one] if one else []
            chosen = executor.choose(waiting)
            if chosen is None:
                break
            waiting.remove(chosen)
            executor.begin(chosen, lambda _phase, _share: None)
            running += 1
        found = executor.ended(0.2)
        if found is None:
            continue
        running, ended = running - 1, ended + 1
        outcome = found[1]
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome.error is not None:
            raise SystemExit(outcome.error)
        if said is not None:
            said(ended)
    return time.monotonic() - began


def layouts_of(study: Study, count: int) -> list[Layout]:
    """Return ``count`` layouts of ``study`` that don't share a load."""
    axes = {
        "data.recordsize": ("8K", "16K", "32K", "64K"),
        "data.compression": ("off", "lz4", "zstd-fast", "zstd"),
    }
    return first_round(study.model_copy(update={"axes": axes, "cross": (tuple(axes),), "layouts": ()}), count)


def two(trace: Trace, rounds: int) -> None:
    study, engine = study_for(trace, None, None, None), engines.check()
    replay = Replay(trace, engine)
    layouts = layouts_of(study, 16)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    number = 0
    for turn in range(rounds):
        for workers in (1, 2) if turn % 2 else (2, 1):
            with connect.fleet(f"local-cluster:{workers}", lambda _text: None) as executor:
                executor.open(replay, replay.spec(study, layouts[0], 1), 0)
                if executor.at_once != workers:
                    raise SystemExit(f"{executor.at_once} engines at once, not {workers}")
                number += 1  # a seed of its own: no image is there
                seed = 1000 * os.getpid() + number
                planned = [
                    PlannedReplay(i, replay, replay.spec(study, layout, seed))
                    for i, layout in enumerate(layouts)
                ]
                seconds[workers].append(run_all(executor, iter(planned)))
        print(f"1 worker {seconds[1][-1]:.1f} s, 2 workers {seconds[2][-1]:.1f} s", flush=True)
    ratios = [a / b for a, b in zip(seconds[1], seconds[2], strict=True)]
    print(
        f"2 workers are {statistics.median(ratios):.2f} times as fast as 1 ({min(ratios):.2f} to "
        f"{max(ratios):.2f}, {rounds} rounds of {len(layouts)} layouts): "
        f"{statistics.median(ratios) / 2:.2f} of twice"
    )


def stand_in(seconds: float) -> Any:
    """Return what takes the place of ``worker.replay``."""

    def replay(order: str) -> str:
        asked = json.loads(order)
        time.sleep(seconds)
        engine = {"version": asked["engine"], "openzfs": asked["openzfs"]}
        result = {"engine": engine, "measure": {}, "filling": "x" * RESULT_BYTES}
        return json.dumps({"result": result, "error": None, "wall_s": seconds, "of_place": False})

    return replay


async def workers_here(address: str, count: int, seconds: float) -> None:
    """Be ``count`` workers, until the scheduler ends."""
    worker.replay = stand_in(seconds)
    all_of_them = [
        distributed.Worker(address, nthreads=1, dashboard=False, heartbeat_interval="5s", memory_limit=0)
        for _ in range(count)
    ]
    await asyncio.gather(*all_of_them)
    await asyncio.gather(*(one.finished() for one in all_of_them))


def many(trace: Trace, workers: int, layouts: int, seconds: float) -> None:
    study, engine = study_for(trace, None, None, None), engines.check()
    replay = Replay(trace, engine)
    base = replay.spec(study, study.layout, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scheduler.json")
        scheduler = started.begin(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
             "--no-dashboard", "--no-show", "--scheduler-file", str(file)],
            env={**os.environ, **SCHEDULER}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        others = [scheduler]
        try:
            while not file.exists():
                time.sleep(0.1)
            time.sleep(0.5)
            address = json.loads(file.read_text())["address"]
            others.append(
                started.begin(
                    [sys.executable, __file__, "workers", address, str(workers), str(seconds)],
                    cwd=folder,
                    env={**os.environ, **QUIET},
                    stderr=subprocess.DEVNULL,
                )
            )
            client = distributed.Client(address, set_as_default=False)
            client.wait_for_workers(workers, timeout=600)
            executor = FleetExecutor(client, print)
            executor.open(replay, base, 1)
            deadline = time.monotonic() + 300
            while executor.at_once < workers and time.monotonic() < deadline:
                time.sleep(0.5)
            print(f"{executor.at_once} workers", flush=True)
            _measure(executor, replay, base, layouts, seconds, scheduler.pid)
            executor.close()
            client.close()
        finally:
            for process in others:
                process.kill()  # nothing of it has to be tidied up
                started.end(process)


def _measure(
    executor: FleetExecutor,
    replay: Replay,
    base: dict[str, Any],
    layouts: int,
    seconds: float,
    scheduler: int,
) -> None:
    def said(ended: int) -> None:
        if ended % (layouts // 10) == 0:
            there, here = (psutil.Process(p).memory_info().rss >> 20 for p in (scheduler, os.getpid()))
            print(f"{ended} layouts: scheduler {there} MiB, client {here} MiB", flush=True)

    planned = (PlannedReplay(i, replay, {**base, "seed": i}) for i in range(layouts))
    workers = executor.at_once
    took = run_all(executor, planned, said)
    print(
        f"{layouts} layouts of {seconds:g} s on {workers} workers in {took:.1f} s: efficiency "
        f"{layouts * seconds / (workers * took):.3f} ({layouts / took:.0f} layouts a second)"
    )


def main() -> None:
    if sys.argv[1:2] == ["workers"]:
        return asyncio.run(workers_here(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["two", "many"])
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--layouts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace.open(args.trace) if args.trace else synthetic(Path(folder) / "synthetic.trace")
        if args.what == "two":
            two(trace, args.rounds)
        else:
            many(trace, args.workers, args.layouts, args.seconds)


if __name__ == "__main__":
    started.script(main)
