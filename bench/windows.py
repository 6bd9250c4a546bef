"""How far a stretch of a long recording is from all of it: each layout's figures by time, one for the other.

    ztune tune postgres-oltp --profile ssd-sata -p scale=60 -p seconds=300 -p rate=150 -p warmup=0 --arc 256M
    python bench/windows.py TRACE --windows 1x50s --windows 6x10s -- --study accuracy-postgres --arc 256M

``TRACE``: the recording that the first command made; its workload is left out of a copy, as if
`ztune record --pid` had seen it. What follows -- is for `ztune screen`. Layouts that one of the two searches
did not try are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import started

from ztune.trace.manifest import MANIFEST
from ztune.trace.reader import Trace

FIGURES = {
    "reads": "read_ops", "bytes read": "read", "writes": "write_ops", "bytes written": "written",
    "flushes": "flushes", "busy": "busy_s",
}  # fmt: skip
LATENCIES = {"commit p50": "sync_p50", "commit p99": "sync_p99"}


def screened(trace: Path, windows: str, more: list[str]) -> dict[str, Any]:
    """Return the ranking of ``trace`` in ``windows``."""
    command = [
        sys.executable, "-m", "ztune.cli.main", "screen", str(trace), "--windows", windows, "--no-elsewhere",
        "--json", *more,
    ]  # fmt: skip
    found: dict[str, Any] = json.loads(started.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def figures(ranking: dict[str, Any], seconds: float) -> dict[str, dict[str, float]]:
    """Return the figures of each layout, those that grow with time by the second."""
    return {
        str(one["layout"]): {
            **{name: float(one["metrics"][key]) / seconds for name, key in FIGURES.items()},
            **{name: float(one["metrics"][key]) for name, key in LATENCIES.items()},
        }
        for one in ranking["layouts"]
        if one["status"] == "ok"
    }


def _order(of: dict[str, dict[str, float]], names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: of[name]["busy"])


def main() -> int:
    """Measure what was asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--windows", action="append", default=[], help="NxS, may be repeated; default: 1x50s")
    own = sys.argv[1:]
    at = own.index("--") if "--" in own else len(own)
    asked, more = parser.parse_args(own[:at]), own[at + 1 :]
    with tempfile.TemporaryDirectory(prefix="ztune-windows-") as folder:
        copy = Path(folder, "whole.trace")
        shutil.copytree(asked.trace, copy)
        manifest = json.loads((copy / MANIFEST).read_text())
        (copy / MANIFEST).write_text(json.dumps({**manifest, "workload": None}))
        whole = figures(screened(copy, "all", more), manifest["duration_ns"] / 1e9)
        for windows in asked.windows or ["1x50s"]:
            ranking = screened(copy, windows, more)
            part = figures(ranking, Trace.open(ranking["trace"]["path"]).manifest.duration_ns / 1e9)
            names = [name for name in whole if name in part]
            columns = [*FIGURES, *LATENCIES]
            errors = {
                n: [part[n][k] / whole[n][k] - 1 if whole[n][k] else 0.0 for k in columns] for n in names
            }
            print(f"\n| {windows} | {' | '.join(columns)} |")
            print("|---" * (len(columns) + 1) + "|")
            for name in names:
                print(f"| {name} | {' | '.join(f'{error:+.1%}' for error in errors[name])} |")
            medians = [statistics.median(map(abs, column)) for column in zip(*errors.values(), strict=True)]
            print(f"| median | {' | '.join(f'{error:.1%}' for error in medians)} |")
            same = _order(whole, names) == _order(part, names)
            print(f"\nThe order by busy time is {'the same' if same else 'another'}.")
    return 0


if __name__ == "__main__":
    started.script(main)
