"""What age costs, by replay: the tables of docs/age.md.

    python bench/age.py TRACE [--profile hdd-7200] [--fills 50,80,90] [--rewrites 5] [--out age.json]

Replays TRACE with recordsizes of 8K and 128K and both settings of logbias on a new pool and on pools that are
kept so many percent full while the database is rewritten. What is in ``--out`` already is not replayed again.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any

from ztune import output
from ztune.places import engine
from ztune.places.replay import Replay
from ztune.runs.asked import study_for
from ztune.study.layout import with_settings
from ztune.trace.reader import Trace


def _layouts(fills: str, rewrites: int) -> list[tuple[str, str, str]]:
    ages = ["new", *(f"fill {fill}% rewrites {rewrites}" for fill in fills.split(","))]
    return [(rs, bias, age) for rs in ("8K", "128K") for bias in ("latency", "throughput") for age in ages]


def _row(result: dict[str, Any]) -> dict[str, Any]:
    measure = result["measure"]
    pools = result.get("age", {}).get("pools", [])
    return {
        "modelled_s": measure["model"]["modelled_s"],
        "reads": measure["physical"]["reads"],
        "writes": measure["physical"]["writes"],
        "written": measure["physical"]["write_bytes"],
        "sync_p99": measure["model"]["sync_latency_ms"]["p99"],
        "fragmentation": pools[0]["fragmentation"] if pools else None,
        "capacity": pools[0]["capacity"] if pools else None,
        "age_s": result.get("age", {}).get("wall_s"),
    }


def main() -> None:
    """Replay what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--profile", default="hdd-7200")
    parser.add_argument("--fills", default="50,80,90")
    parser.add_argument("--rewrites", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("age.json"))
    given = parser.parse_args()
    trace = Trace.open(given.trace)
    study = study_for(trace, None, given.profile, None)
    replay = Replay(trace, engine.check(), timeout_s=3600)
    done = json.loads(given.out.read_text()) if given.out.exists() else {}
    keys = [d.key for d in study.layout.datasets]
    for record, bias, age in _layouts(given.fills, given.rewrites):
        name = f"{record} {bias} {age}"
        if name in done:
            continue
        changes = {"data.recordsize": record, **{f"{key}.logbias": bias for key in keys}, "age": age}
        layout = with_settings(study.layout, changes, name)
        outcome = replay.run(replay.spec(study, layout, 1), None, threading.Event())
        if outcome.result is None:
            sys.exit(f"{name}: {outcome.error}")
        done[name] = _row(outcome.result)
        given.out.write_text(json.dumps(done, indent=1))
        output.echo(f"{name}: {done[name]}", err=True)
    output.echo("| recordsize | logbias | pool | fragmentation | reads | writes | modelled | of a new pool |")
    output.echo("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for record, bias, age in _layouts(given.fills, given.rewrites):
        row, new = done[f"{record} {bias} {age}"], done[f"{record} {bias} new"]
        times = row["modelled_s"] / new["modelled_s"]
        fragmented = "–" if row["fragmentation"] is None else f"{row['fragmentation']} %"
        output.echo(
            f"| {record} | {bias} | {age} | {fragmented} | {row['reads']:,} | {row['writes']:,} | "
            f"{row['modelled_s']:.2f} s | {times:.2f} |"
        )


if __name__ == "__main__":
    main()
