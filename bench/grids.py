"""Complete grids of real recordings, for bench/search.py: every cell of a space replayed once.

    python bench/grids.py [NAME …] [--force]     # a grid that is there is not made again
    python bench/grids.py --list

Each recording is short (a few seconds of a small database), so that a cell takes well below a second. What
each cell came to is kept in bench/data/NAME.json: the axes, and for each cell in the order of the axes
modelled seconds, bytes allocated and written, and seconds of processor; null where the replay failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import started

from ztune import paths
from ztune.analysis.metrics import number_at
from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.places import engine as engines
from ztune.places.replay import Replay
from ztune.runs.space import changed
from ztune.study import Study
from ztune.study.loader import resolve_profiles
from ztune.trace.reader import Trace

DATA = Path(__file__).parent / "data"
METRICS = ("modelled_s", "allocated", "written", "cpu_s")
JOBS = 2

_MIXED = """[global]
time_based
runtime=5
ioengine=psync
[pages]
rw=randrw
rwmixread=60
bs=4k
size=24m
fsync=8
rate_iops=120
[lists]
rw=randrw
rwmixread=80
bs=32k
size=24m
rate_iops=40
[log]
rw=write
bs=8k
size=8m
fdatasync=1
rate_iops=60
"""


@dataclass(frozen=True)
class Grid:
    """A space and what is replayed in it. ``held_out``: the search was not tuned on it."""

    name: str
    workload: str
    held_out: bool
    axes: Mapping[str, Sequence[str]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    profile: str = "hdd-7200"
    # Of which grid the recording is, where two have one.
    recording: str = ""

    @property
    def cells(self) -> int:
        """How many cells it has."""
        return math.prod(len(values) for values in self.axes.values())

    @property
    def file(self) -> Path:
        """Where its results are."""
        return DATA / f"{self.name}.json"

    def study(self, roles: Sequence[str]) -> Study:
        """Return the study whose cross the grid is: a dataset for each role on one disk."""
        return resolve_profiles(
            Study.model_validate(
                {
                    "name": self.name,
                    "layout": {
                        "pool": [{"name": "tank", "vdev": [{"profile": self.profile}]}],
                        "dataset": [{"name": f"tank/{role}", "roles": [role]} for role in roles],
                    },
                    "axes": {key: list(values) for key, values in self.axes.items()},
                }
            )
        )


_COMPRESSION = ("off", "lz4", "zstd-3")
_LOGBIAS = ("latency", "throughput")
_CACHE = ("all", "metadata", "none")
_OLTP = {
    "data.recordsize": ("8K", "16K", "32K", "64K", "128K"),
    "data.compression": _COMPRESSION,
    "data.logbias": _LOGBIAS,
    "wal.recordsize": ("16K", "128K", "1M"),
    "wal.logbias": _LOGBIAS,
}
GRIDS = (
    Grid("postgres", "postgres-oltp", False, _OLTP, {"scale": 5, "seconds": 5, "rate": 60, "warmup": 1}),
    Grid(
        "rocksdb", "rocksdb", False,
        {
            "data.recordsize": ("16K", "32K", "64K", "128K", "1M"),
            "data.compression": _COMPRESSION,
            "data.primarycache": _CACHE,
            "wal.recordsize": ("4K", "16K", "128K"),
            "wal.logbias": _LOGBIAS,
        },
        {"size": "48M", "operations": 400, "rate": 80},
    ),
    Grid(
        "fio-mixed", "fio", False,
        {
            "data.recordsize": ("4K", "8K", "16K", "64K", "128K"),
            "data.compression": ("off", "lz4"),
            "index.recordsize": ("8K", "16K", "32K", "64K", "128K"),
            "index.compression": ("off", "lz4"),
            "wal.recordsize": ("8K", "32K", "128K"),
            "wal.logbias": _LOGBIAS,
        },
        {"job_text": _MIXED, "roles": "data=pages index=lists wal=log"},
    ),
    Grid(
        "mariadb", "mariadb-oltp", True,
        {
            "data.recordsize": ("16K", "64K", "128K"),
            "data.compression": _COMPRESSION,
            "data.primarycache": _CACHE,
            "wal.recordsize": ("4K", "16K", "128K"),
        },
        {"size": "48M", "seconds": 5, "warmup": 1},
    ),
    Grid(
        "wiredtiger", "mongo-restore", True,
        {
            "data.recordsize": ("4K", "16K", "32K", "64K", "128K", "1M"),
            "data.compression": _COMPRESSION,
            "source.recordsize": ("16K", "128K", "1M"),
            "wal.recordsize": ("4K", "16K", "128K"),
        },
        {"documents": 20000, "engine": "wiredtiger"},
    ),
    Grid(
        "orientdb", "orientdb-graph", True,
        {
            "data.recordsize": ("16K", "32K", "64K", "128K", "1M"),
            "data.compression": _COMPRESSION,
            "wal.recordsize": ("16K", "64K", "128K"),
            "wal.compression": ("off", "lz4"),
            "source.recordsize": ("128K", "1M"),
        },
        {"triples": 2000},
    ),
    Grid("postgres-ssd", "postgres-oltp", True, _OLTP, profile="ssd-sata", recording="postgres"),
)  # fmt: skip


def recording(grid: Grid) -> Trace:
    """Return the grid's recording, made now if it is not there."""
    of = next(one for one in GRIDS if one.name == (grid.recording or grid.name))
    path = paths.traces() / f"grid-{of.name}.trace"
    if path.exists():
        return Trace.open(path)
    return record_workload(registry.make(of.workload, of.parameters), "auto", path)


def made(grid: Grid) -> dict[str, Any]:
    """Replay every cell, and return what is kept of the grid."""
    trace = recording(grid)
    roles = sorted({str(f.role) for f in trace.manifest.files if f.role is not None})
    study = grid.study(roles)
    engine = engines.check()
    target = Replay(trace, engine, jobs=JOBS)
    keys = list(grid.axes)
    layouts = [
        changed(study.layout, dict(zip(keys, values, strict=True)))
        for values in itertools.product(*grid.axes.values())
    ]
    found: list[list[float] | None] = [None] * len(layouts)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(layouts)):
        waiting.put(number)
    recorded: list[float] = []
    stop = threading.Event()
    begun = time.monotonic()

    def work() -> None:
        while not stop.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = target.run(target.spec(study, layouts[number], study.seed), None, stop)
            measure = (outcome.result or {}).get("measure") or {}
            if not measure:
                print(f"{grid.name}: {layouts[number].name}: {outcome.error}", file=sys.stderr)
                continue
            places = (
                ("model", "modelled_s"),
                ("space", "allocated"),
                ("physical", "write_bytes"),
                ("cpu_s",),
            )
            values = [number_at(measure, *place) for place in places]
            found[number] = [float(f"{value or 0.0:.5g}") for value in values]
            recorded.append(number_at(measure, "model", "trace_s") or 0.0)
            done = len(layouts) - waiting.qsize()
            if done % 20 == 0:
                each = (time.monotonic() - begun) / done
                print(f"{grid.name}: {done} of {len(layouts)}, {each:.2f} s each", file=sys.stderr)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(JOBS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    info = trace.manifest.workload
    return {
        "name": grid.name,
        "workload": grid.workload,
        "version": "" if info is None else str(info.version),
        "parameters": dict(grid.parameters),
        "profile": grid.profile,
        "engine": engine.version,
        "openzfs": engine.openzfs,
        "held_out": grid.held_out,
        "trace_s": float(f"{recorded[0]:.4g}") if recorded else 0.0,
        "axes": {key: list(values) for key, values in grid.axes.items()},
        "metrics": list(METRICS),
        "cells": found,
    }


def write(kept: Mapping[str, Any], file: Path) -> None:
    """Write a grid: the head readable, the cells on lines of ten."""
    head = {key: value for key, value in kept.items() if key != "cells"}
    cells = [json.dumps(cell, separators=(",", ":")) for cell in kept["cells"]]
    lines = [",".join(cells[at : at + 10]) for at in range(0, len(cells), 10)]
    text = json.dumps(head, indent=1).removesuffix("\n}") + ',\n "cells": [\n' + ",\n".join(lines) + "\n]}\n"
    json.loads(text)
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all")
    parser.add_argument("--force", action="store_true", help="make those anew that are there")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {grid.name for grid in GRIDS}
    if unknown:
        parser.error(f"there is no grid {', '.join(sorted(unknown))}; --list says which there are")
    for grid in GRIDS:
        if arguments.list:
            print(f"{grid.name:12} {grid.cells:5} cells, {'held out' if grid.held_out else 'tuned on'}")
        elif grid.name in arguments.names or (
            not arguments.names and (arguments.force or not grid.file.exists())
        ):
            begun = time.monotonic()
            kept = made(grid)
            write(kept, grid.file)
            failed = sum(cell is None for cell in kept["cells"])
            print(
                f"{grid.name}: {grid.cells} cells, {failed} failed, {time.monotonic() - begun:.0f} s, "
                f"{grid.file.stat().st_size >> 10} KiB, load {os.getloadavg()[0]:.1f}"
            )
    return 0


if __name__ == "__main__":
    started.script(main)
