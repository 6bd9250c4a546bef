"""How fast screening is: wall time per layout and core against the recorded seconds of a trace.

    python bench/screening_speed.py [TRACE] [--budget N] [--jobs N] [--json FILE]

Without TRACE: the last trace that `ztune tune` recorded; without any, a synthetic one of 30 s, and then the
output says so. The goal is a factor of 2 or more: recorded seconds / (wall seconds × cores / layouts).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import started
from rich.console import Console
from rich.table import Table

from ztune import paths
from ztune.places import engine as engines
from ztune.runs import screening
from ztune.runs.asked import study_for
from ztune.runs.options import ScreenOptions
from ztune.store import environment
from ztune.store.db import Store
from ztune.trace.manifest import RecorderInfo, TraceFile
from ztune.trace.reader import Trace
from ztune.trace.schema import Op
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

SECONDS = 30
GOAL = 2.0


def synthetic(path: Path) -> Trace:
    """30 s of OLTP from 8 threads, 300 commits a second: reads, WAL writes with fdatasync, data writes."""
    rng = np.random.default_rng(1)
    size = {"data": 384 << 20, "wal": 64 << 20}
    rows: list[tuple[int, ...]] = []
    tail = 0
    for i in range(300 * SECONDS):
        t, tid = i * 1_000_000_000 // 300, 100 + i % 8
        for k in range(2):
            page = int(rng.integers(size["data"] // 8192))
            rows.append((t + 10_000 * k, 5000, 1, tid, Op.READ, 0, 0, 0, -1, page * 8192, 8192))
        rows.append((t + 50_000, 5000, 1, tid, Op.WRITE, 0, 0, 1, -1, tail % size["wal"], 8192))
        rows.append((t + 60_000, 900_000, 1, tid, Op.FDATASYNC, 0, 0, 1, -1, -1, 0))
        tail += 8192
        page = int(rng.integers(size["data"] // 8192))
        rows.append((t + 70_000, 5000, 1, 99, Op.WRITE, 0, 0, 0, -1, page * 8192, 8192))
    events = np.array(rows, dtype=np.int64)
    table = np.zeros(len(rows), EVENT_DTYPE)
    for column, name in enumerate((EVENT_DTYPE.names or ())[: events.shape[1]]):
        table[name] = events[:, column]
    files = [
        TraceFile(id=i, path=f"/db/{role}", role=role, size_start=n, size_end=n)  # type: ignore[arg-type]
        for i, (role, n) in enumerate(size.items())
    ]
    with TraceWriter(path) as writer:
        writer.add_rows(table)
        writer.finish(
            duration_ns=SECONDS * 10**9,
            recorder=RecorderInfo(name="synthetic"),
            files=files,
            page_size={"data": 8192},
        )
    return Trace.open(path)


def measure(trace: Trace, budget: int, jobs: int) -> dict[str, object]:
    """Screen once, in a state directory of its own, and return the figures."""
    cores = len(os.sched_getaffinity(0))
    study = study_for(trace, None, None, None)
    engine = engines.check()
    with Store.open() as store:
        begun = time.monotonic()
        run = screening.start(store, trace, study, engine, ScreenOptions(budget=budget, jobs=jobs))
        wall = time.monotonic() - begun
        trials = store.trials(run.id)
    ok = [t for t in trials if t.ok]
    used = min(cores, jobs or cores)
    per_layout = wall * used / len(trials)
    return {
        "trace": trace.name,
        "recorder": trace.manifest.recorder.name,
        "recorded_s": trace.duration_s,
        "events": trace.manifest.events,
        "layouts": len(trials),
        "failed": len(trials) - len(ok),
        "cores": used,
        "wall_s": wall,
        "core_s_per_layout": per_layout,
        "factor": trace.duration_s / per_layout,
        "goal": GOAL,
        "load_average": os.getloadavg()[0],
        "engine": f"{engine.version}, OpenZFS {engine.openzfs}",
        "environment": environment.collect(),
        "trials": [
            {
                "layout": t.layout_name,
                "wall_s": t.wall_s,
                "load_wall_s": (t.result or {}).get("load", {}).get("wall_s"),
                "measure_wall_s": t.measure.get("wall_s"),
            }
            for t in trials
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--budget", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    found = sorted(paths.traces().glob("*.trace"), key=lambda p: p.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="ztune-bench-") as folder:
        source = arguments.trace or (found[-1] if found else None)
        os.environ["ZTUNE_HOME"] = folder  # nothing of the bench stays among the user's runs
        trace = Trace.open(source) if source is not None else synthetic(Path(folder) / "synthetic.trace")
        figures = measure(trace, arguments.budget, arguments.jobs)
    table = Table(
        title=f"Screening {figures['trace']} ({figures['recorder']}), {figures['recorded_s']:.1f} s long"
    )
    for heading in ("layout", "wall s", "load s", "replay s"):
        table.add_column(heading, justify="left" if heading == "layout" else "right")
    trials = figures["trials"]
    assert isinstance(trials, list)
    for t in trials:
        values = (t["wall_s"], t["load_wall_s"], t["measure_wall_s"])
        table.add_row(t["layout"], *("–" if v is None else f"{v:.1f}" for v in values))
    console = Console(stderr=True)
    console.print(table)
    console.print(
        f"{figures['layouts']} layouts on {figures['cores']} cores in {figures['wall_s']:.1f} s: "
        f"{figures['core_s_per_layout']:.1f} core-seconds each; recorded: {figures['factor']:.1f} × "
        f"that (goal: {GOAL:g} or more)"
    )
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    started.script(main)
