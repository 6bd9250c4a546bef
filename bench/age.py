"""What age costs, by replay: the tables of docs/age.md.

    python bench/age.py TRACE [--profile hdd-7200] [--fills 50,80,90] [--rewrites 5] [--out age.json]
                        [--logbias latency]

Replays TRACE with recordsizes of 8K and 128K and both settings of logbias on a new pool and on pools that are
kept so many percent full while the database is rewritten. What is in ``--out`` already is not replayed again.

    python bench/age.py --on replay,mount,lab [--fills 60] [--rewrites 3] [--out age.json]

Gives one file of 48 MiB on a disk of 512 MiB the same past in each place, in records of 8K and 32K, and
prints how fragmented free space is in the end, by OpenZFS's own count: it says whether a replay and a mount
age as the kernel's OpenZFS does. Each figure is of one past; the seed decides it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import engine_facts
import started

from ztune import output
from ztune.errors import ZtuneError
from ztune.places import engine
from ztune.places.engine_spec import engine_spec
from ztune.places.replay import Replay
from ztune.runs.asked import study_for
from ztune.study import Study, load_study
from ztune.study.layout import with_settings
from ztune.trace.reader import Trace


def _layouts(fills: str, rewrites: int, biases: str) -> list[tuple[str, str, str]]:
    ages = ["new", *(f"fill {fill}% rewrites {rewrites}" for fill in fills.split(","))]
    return [(rs, bias, age) for rs in ("8K", "128K") for bias in biases.split(",") for age in ages]


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


FILE, RECORDS, WRITE = 48 << 20, ("8K", "32K"), 8 << 10
STUDY = """
name = "fragmentation"
workload = "fio"
seed = 1
[parameters]
size = "48M"
numjobs = 1
seconds = 1
rate_iops = 20
[layout]
age = "fill {fill}% rewrites {rewrites} write 8K"
[[layout.pool]]
name = "tank"
vdev = [{{ profile = "nvme", size = "512M" }}]
[[layout.dataset]]
name = "tank/data"
roles = ["data"]
recordsize = "{first}"
compression = "off"
[axes]
"data.recordsize" = {others}
"""


def _replayed(study: Study, records: str) -> dict[str, Any]:
    """Return what became of the pool in a replay: its file is rewritten as a trial's is."""
    layout = with_settings(study.layout, {"data.recordsize": records})
    age = layout.age
    assert age is not None
    with tempfile.TemporaryDirectory() as name:
        noise = Path(name) / "noise"
        noise.write_bytes(random.Random(1).randbytes(8 << 20))
        rewrite = {"write": WRITE, "in_order": False, "commits": True}
        file = {"id": 0, "dataset": "tank/data", "size": FILE, "content": "data", "rewrite": rewrite}
        spec = {
            **engine_spec(study, layout, study.seed),
            "files": [file],
            "content": {"data": str(noise)},
            "age": {"fill": age.fill, "rewrites": age.rewrites, "snapshots": 0},
        }
        found: dict[str, Any] = engine_facts.replay(Path(name), spec, [(1, 0, WRITE)])["age"]["pools"][0]
        return found


def _ztune(*words: str) -> dict[str, Any]:
    done = started.run([sys.executable, "-m", "ztune.cli.main", *words, "--json"], stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise ZtuneError(f"`ztune {' '.join(words)}` ended with exit code {done.returncode} (above)")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _measured(path: Path, place: str) -> dict[str, dict[str, Any]]:
    """Return by recordsize what became of the pool where a trial aged it."""
    # Fragmentation is a count: in the lab no disk need be as slow as the guest's processor.
    how = ["--dilation", "1"] if place == "lab" else ["--disks", "instant"]
    run = _ztune("run", str(path), "--on", place, "--blocks", "1:1", *how)
    trials = _ztune("show", run["run"])["trials"]
    return {
        t["layout"]["dataset"][0]["properties"]["recordsize"]: t["result"]["age"]["pools"][0] for t in trials
    }


def fragmentation(places: list[str], fill: int, rewrites: int, out: Path) -> None:
    """Age one file in each place, and print how fragmented its pool is in the end."""
    done = json.loads(out.read_text()) if out.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "study.toml"
        said = {"fill": fill, "rewrites": rewrites, "first": RECORDS[0], "others": list(RECORDS[1:])}
        path.write_text(STUDY.format(**said))
        study = load_study(path)
        for place in places:
            key = f"{place} {fill} {rewrites}"
            if key not in done:
                aged = place == "replay"
                done[key] = {r: _replayed(study, r) for r in RECORDS} if aged else _measured(path, place)
                out.write_text(json.dumps(done, indent=1))
    output.echo(f"| recordsize | {' | '.join(places)} |")
    output.echo(f"| --- |{' --- |' * len(places)}")
    for records in RECORDS:
        cells = [done[f"{place} {fill} {rewrites}"][records]["fragmentation"] for place in places]
        output.echo(f"| {records} | {' | '.join(f'{cell} %' for cell in cells)} |")


def main() -> None:
    """Replay what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--on", metavar="PLACE,…")
    parser.add_argument("--profile", default="hdd-7200")
    parser.add_argument("--fills", default="")
    parser.add_argument("--rewrites", type=int)
    parser.add_argument("--logbias", default="latency,throughput")
    parser.add_argument("--out", type=Path, default=Path("age.json"))
    given = parser.parse_args()
    if given.on:
        fragmentation(given.on.split(","), int(given.fills or 60), given.rewrites or 3, given.out)
        return
    if given.trace is None:
        parser.error("needed is a TRACE, or --on")
    given.fills, given.rewrites = given.fills or "50,80,90", given.rewrites or 5
    trace = Trace.open(given.trace)
    study = study_for(trace, None, given.profile, None)
    replay = Replay(trace, engine.check(), timeout_s=3600)
    done = json.loads(given.out.read_text()) if given.out.exists() else {}
    keys = [d.key for d in study.layout.datasets]
    for record, bias, age in _layouts(given.fills, given.rewrites, given.logbias):
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
    for record, bias, age in _layouts(given.fills, given.rewrites, given.logbias):
        row, new = done[f"{record} {bias} {age}"], done[f"{record} {bias} new"]
        times = row["modelled_s"] / new["modelled_s"]
        fragmented = "–" if row["fragmentation"] is None else f"{row['fragmentation']} %"
        output.echo(
            f"| {record} | {bias} | {age} | {fragmented} | {row['reads']:,} | {row['writes']:,} | "
            f"{row['modelled_s']:.2f} s | {times:.2f} |"
        )


if __name__ == "__main__":
    started.script(main)
