"""Whether a replay of two jobs on one pool foretells what a mount measures of them.

    python bench/neighbours.py --state FILE [PAIR …] [--blocks 2]
    chrt -r 1 python bench/neighbours.py …        before all else on the machine, which matters
    python bench/neighbours.py --state ANOTHER --arc 256M …    with a larger ARC
    python bench/neighbours.py … --only mount     the trials alone (or: replay), the other some other time
    python bench/neighbours.py --state FILE --json     what is there, as JSON
    python bench/neighbours.py --state FILE --brief    … or the ratios alone, as a table of docs/neighbours.md

PAIR: one of ``PAIRS``; without one all that FILE has are printed. Both jobs are recorded, each layout is
replayed with either recording and with both, and run on a mount with either job and with both, from cold
caches and with the same rates. What FILE has is not done again: a run that was cut goes on. Each figure is of
one job: the mean of its commits and of its reads, what the disks did for its datasets (the log's blocks in
the bytes alone), and of both what the disks did at all and for how long the busiest one worked. A mount's
figures are medians over the blocks, its ratios medians of those within each block.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import started
from accuracy import ztune

from ztune import output, paths
from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.errors import ZtuneError
from ztune.onhost.layout import NEIGHBOUR_DATASET
from ztune.places import engine
from ztune.places.neighbour import Neighbour, joined
from ztune.places.replay import Replay, prepare
from ztune.runs import plan
from ztune.runs.asked import study_for
from ztune.store.db import Store
from ztune.store.records import BOTH, NEIGHBOUR
from ztune.trace.reader import Trace

STUDY = """
name = "neighbours"
workload = "{workload}"
seed = 1
[objective]
minimise = ["modelled_s"]
durability = "nothing-acknowledged"
[layout]
arc = "{arc}"
[[layout.pool]]
name = "tank"
vdev = [{{ profile = "{profile}", size = "4T" }}]
[[layout.dataset]]
name = "tank/db"
roles = ["data", "index", "temp", "wal", "backup", "archive"]
[[layouts]]
name = "16K"
set = {{ "data.recordsize" = "16K" }}
[[layouts]]
name = "16K, log device"
set = {{ "data.recordsize" = "16K", "slog" = "nvme" }}
"""
LAYOUTS = ("base", "16K", "16K, log device")
FIRST = "first"
WHICH = (FIRST, BOTH, NEIGHBOUR)
CONDITIONS = {"": FIRST, BOTH: BOTH, NEIGHBOUR: NEIGHBOUR}
GOAL = 0.15


@dataclass(frozen=True)
class Job:
    """A workload with its parameters. Rates are such that a disk keeps them of both."""

    workload: str
    params: tuple[str, ...]


def _sqlite(rate: int, seed: int) -> Job:
    # No warm-up: on a fast file system it would fill a cache that a slow disk leaves empty.
    return Job("sqlite", ("size=96M", "seconds=10", f"rate={rate}", "warmup=0", f"seed={seed}"))


def _fio(rate: int, seed: int) -> Job:
    params = ("size=96M", "seconds=10", f"rate_iops={rate}", "numjobs=2", "rwmixread=50", f"seed={seed}")
    return Job("fio", params)


_OLTP = Job("postgres-oltp", ("scale=5", "seconds=10", "rate=15", "warmup=0"))
_BACKUP = Job("postgres-backup", ("scale=20", "archive=off", "rate=0", "seed=2"))
PAIRS: dict[str, tuple[str, Job, Job]] = {
    "postgres+backup:hdd-7200": ("hdd-7200", _OLTP, _BACKUP),
    "sqlite+sqlite:hdd-7200": ("hdd-7200", _sqlite(8, 1), _sqlite(8, 2)),
    "sqlite+sqlite:ssd-sata": ("ssd-sata", _sqlite(60, 1), _sqlite(60, 2)),
    "fio+fio:hdd-7200": ("hdd-7200", _fio(40, 1), _fio(40, 2)),
    "fio+fio:ssd-sata": ("ssd-sata", _fio(400, 1), _fio(400, 2)),
}


def _record(job: Job) -> str:
    given = dict(one.split("=", 1) for one in job.params)
    name = f"neighbours-{job.workload}-{random.randrange(1 << 32):08x}.trace"
    return str(record_workload(registry.make(job.workload, given), "auto", paths.traces() / name).path)


def _replays(first: Trace, other: Trace) -> dict[str, Replay]:
    """Return what replays the first job, both and the neighbour, as ``ztune screen --with`` does."""
    program, beside = engine.check(), Neighbour(other)
    beside.check(first)
    alone = Replay(first, program, timeout_s=3600)

    def with_neighbour(only: bool) -> Replay:
        inputs = joined(first, alone.inputs, beside, prepare(other), alone=only)
        return Replay(first, program, timeout_s=3600, inputs=inputs)

    return {FIRST: alone, BOTH: with_neighbour(False), NEIGHBOUR: with_neighbour(True)}


def measure(pair: str, given: argparse.Namespace, state: dict[str, Any]) -> None:
    """Do what is missing of a pair. Raises ZtuneError."""
    if pair not in PAIRS:
        raise ZtuneError(f'"{pair}" is no pair; the pairs are {", ".join(PAIRS)}')
    profile, *jobs = PAIRS[pair]

    def keep() -> None:
        given.state.write_text(json.dumps(state, indent=1))

    mine = state.setdefault(pair, {"run": None, "replayed": {}})
    recordings = state.setdefault("recordings", {})
    with tempfile.TemporaryDirectory(prefix="ztune-neighbours-") as name:
        folder = Path(name)
        for job in jobs:
            if str(job) not in recordings and given.only != "mount":
                recordings[str(job)] = _record(job)
                keep()
        study = folder / "study.toml"
        study.write_text(STUDY.format(workload=jobs[0].workload, profile=profile, arc=given.arc))
        if mine["run"] is None and given.only != "replay":
            saved = folder / "saved"
            saved.mkdir()
            words = ["--on", "mount", "--caches", "cold", "--blocks", f"{given.blocks}:{given.blocks}"]
            params = (word for p in jobs[0].params for word in ("-p", p))
            with_ = f"{jobs[1].workload}:{','.join(jobs[1].params)}"
            run = ztune("run", str(study), *words, "--saved", str(saved), *params, "--with", with_)
            if len(_trials(run["run"])) < len(LAYOUTS):
                raise ZtuneError(f"trials of run {run['run']} failed (above)")
            mine["run"] = run["run"]
            keep()
        if given.only == "mount":
            return
        first, other = (Trace.open(Path(recordings[str(job)])) for job in jobs)
        resolved = study_for(first, str(study), None, None)
        replays = _replays(first, other)
        for layout in plan.layouts(resolved, ()):
            done = mine["replayed"].setdefault(layout.name, {})
            for which in WHICH:
                if which in done:
                    continue
                replay = replays[which]
                outcome = replay.run(replay.spec(resolved, layout, 1), None, threading.Event())
                if outcome.result is None:
                    raise ZtuneError(f"{layout.name}, {which}: {outcome.error}")
                done[which] = _replayed(outcome.result["measure"])
                keep()


# What is kept of a replay or a trial: of each job and of both, figure → value.
Figures = dict[str, dict[str, float]]


def _of_jobs(datasets: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for job, beside in ((FIRST, False), (NEIGHBOUR, True)):
        yield job, [d for d in datasets if (f"/{NEIGHBOUR_DATASET}" in d["name"]) == beside]


def _counts(measure: Mapping[str, Any], datasets: Sequence[Mapping[str, Any]], busy_s: float) -> Figures:
    disks = measure["physical"]
    found: Figures = {
        job: {
            "ios": sum(d["reads"] + d["writes"] for d in own),
            "bytes": sum(d["read_bytes"] + d["write_bytes"] + d["zil_bytes"] for d in own),
        }
        for job, own in _of_jobs(datasets)
    }
    both = {
        "ios": disks["reads"] + disks["writes"],
        "bytes": disks["read_bytes"] + disks["write_bytes"],
        "busy_s": busy_s,
    }
    return {**found, BOTH: both}


def _mean(found: Mapping[str, float], name: str, calls: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return ``found`` with the mean and number of ``calls``, given as number and milliseconds in all."""
    number = sum(n for n, _ in calls)
    mean = {name: sum(ms for _, ms in calls) / number} if number else {}
    return {**found, **mean, f"{name}_calls": number}


def _replayed(measure: Mapping[str, Any]) -> Figures:
    model = measure["model"]
    found = _counts(measure, measure["by_dataset"], model["busy_s_max"])
    for job, own in _of_jobs(model["by_dataset"]):
        for name, kind in (("commit", "sync_latency_ms"), ("read", "read_latency_ms")):
            calls = [(d[kind]["count"], d[kind]["count"] * d[kind]["mean"]) for d in own]
            found[job] = _mean(found[job], name, calls)
    found[BOTH]["lag_s"] = model["lag_s"]
    return found


def _measured(result: Mapping[str, Any]) -> Figures:
    datasets, disks = result["probes"]["mount"]["datasets"], result["measure"]["by_vdev"]
    found = _counts(result["measure"], datasets, max(d["busy_ms"] for d in disks) / 1e3)
    for job, own in _of_jobs(datasets):
        for name, kind in (("commit", "sync"), ("read", "read")):
            calls = [(sum(d["calls"][kind]["ns"].values()), 1e3 * d["calls"][kind]["seconds"]) for d in own]
            found[job] = _mean(found[job], name, calls)
    answers = sum(d["reads"] + d["writes"] + d["flushes"] for d in disks)
    found[BOTH]["late_ms"] = sum(d["late_ms"] for d in disks) / answers
    return found


def _trials(run: str) -> dict[str, dict[str, list[Figures]]]:
    """Return by layout and by which jobs ran the figures of each block."""
    found: dict[str, dict[str, dict[int, Figures]]] = {}
    with Store.open() as store:
        for trial in store.trials(run):
            if trial.ok and trial.result:
                by_block = found.setdefault(trial.layout.name, {}).setdefault(CONDITIONS[trial.condition], {})
                by_block[trial.block] = _measured(trial.result)
    out = {}
    for layout, by_which in found.items():
        whole = set.intersection(*(set(by_block) for by_block in by_which.values()))
        if len(by_which) == len(WHICH) and whole:
            out[layout] = {w: [by_which[w][block] for block in sorted(whole)] for w in WHICH}
    return out


FIGURES = {
    "commit": ("commit, ms", (FIRST, NEIGHBOUR)),
    "read": ("read, ms", (FIRST, NEIGHBOUR)),
    "ios": ("disk I/Os", (FIRST, NEIGHBOUR, BOTH)),
    "bytes": ("moved, MiB", (FIRST, NEIGHBOUR, BOTH)),
    "busy_s": ("disk busy, s", (BOTH,)),
}


@dataclass(frozen=True)
class Cell:
    """One figure of a job in one way: alone, together, and how many times as much."""

    alone: float
    together: float
    ratio: float
    least: float
    most: float


@dataclass(frozen=True)
class Row:
    """One figure of a job on a layout, both ways; of "both" alone is the sum of what each did alone."""

    layout: str
    job: str
    figure: str
    replay: Cell
    mount: Cell | None

    @property
    def error(self) -> float | None:
        """By how much the replay's ratio is off the mount's."""
        return None if self.mount is None else self.replay.ratio / self.mount.ratio - 1


def _cell(by_which: Mapping[str, Sequence[Figures]], job: str, figure: str) -> Cell | None:
    def alone(block: int) -> float:
        return sum(by_which[w][block][job][figure] for w in _alone(job))

    try:
        pairs = [(alone(b), by_which[BOTH][b][job][figure]) for b in range(len(by_which[BOTH]))]
    except KeyError:  # no such calls
        return None
    if not all(a > 0 for a, _ in pairs):
        return None
    ratios = [b / a for a, b in pairs]
    middle: Callable[[Sequence[float]], float] = statistics.median
    return Cell(
        middle([a for a, _ in pairs]), middle([b for _, b in pairs]), middle(ratios), min(ratios), max(ratios)
    )


def _alone(job: str) -> tuple[str, ...]:
    return (FIRST, NEIGHBOUR) if job == BOTH else (job,)


def rows(mine: Mapping[str, Any]) -> list[Row]:
    """Return what is there of a pair."""
    measured = _trials(mine["run"]) if mine["run"] else {}
    out = []
    for layout, replayed in mine["replayed"].items():
        if set(replayed) != set(WHICH):
            continue
        once = {which: [replayed[which]] for which in WHICH}
        for figure, (_, jobs) in FIGURES.items():
            for job in jobs:
                cell = _cell(once, job, figure)
                if cell is not None:
                    mount = _cell(measured[layout], job, figure) if layout in measured else None
                    out.append(Row(layout, job, figure, cell, mount))
    return out


def _shown(cell: Cell | None, figure: str) -> str:
    if cell is None:
        return "–"
    unit = 2.0**20 if figure == "bytes" else 1.0
    alone, together = (
        f"{value / unit:,.{0 if figure == 'ios' else 2}f}" for value in (cell.alone, cell.together)
    )
    spread = f" ({cell.least:.2f} … {cell.most:.2f})" if cell.least != cell.most else ""
    return f"{alone} → {together}, ×{cell.ratio:.2f}{spread}"


def show(pair: str, mine: Mapping[str, Any]) -> None:
    """Print a table: each figure of each job, alone and together, both ways."""
    _, first, other = PAIRS[pair]
    called = {FIRST: f"{first.workload} (1)", NEIGHBOUR: f"{other.workload} (2)", BOTH: "both"}
    output.echo(f"\n| {pair}: layout | job | | replay | mount | ratio off by |")
    output.echo("| --- | --- | --- | --- | --- | --- |")
    for row in rows(mine):
        off = "–" if row.error is None else f"{row.error:+.0%}"
        cells = f"{_shown(row.replay, row.figure)} | {_shown(row.mount, row.figure)} | {off}"
        output.echo(f"| {row.layout} | {called[row.job]} | {FIGURES[row.figure][0]} | {cells} |")
    errors = [abs(row.error) for row in rows(mine) if row.error is not None]
    if errors:
        middle, within = statistics.median(errors), sum(e <= GOAL for e in errors)
        output.echo(f"\nwithin {GOAL:.0%}: {within} of {len(errors)}; median error {middle:.0%}")
    for layout, by_which in (_trials(mine["run"]) if mine["run"] else {}).items():
        late = {w: statistics.median(f[BOTH]["late_ms"] for f in by_which[w]) for w in WHICH}
        output.echo(f"answers late, ms, {layout}: {', '.join(f'{w} {ms:.2f}' for w, ms in late.items())}")


def brief(state: Mapping[str, Any]) -> None:
    """Print the ratios of all pairs, the replay's for the mount's: a row for each job on each layout."""
    heads = ("jobs, disk", "layout", "job", *(FIGURES[figure][0].partition(",")[0] for figure in FIGURES))
    output.echo(f"| {' | '.join(heads)} |")
    output.echo(f"|{' --- |' * len(heads)}")
    for pair, mine in state.items():
        found = {(row.layout, row.job, row.figure): row for row in rows(mine)}
        for layout in LAYOUTS:
            for job, name in ((FIRST, "1"), (NEIGHBOUR, "2"), (BOTH, "both")):
                cells = [_ratios(found.get((layout, job, figure))) for figure in FIGURES]
                output.echo(f"| {pair} | {layout} | {name} | {' | '.join(cells)} |")


def _ratios(row: Row | None) -> str:
    return "" if row is None or row.mount is None else f"{row.replay.ratio:.2f} for {row.mount.ratio:.2f}"


def main() -> int:
    """Replay and measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", metavar="PAIR")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--arc", default="64M", help="of all layouts, in a FILE of its own (default 64M)")
    parser.add_argument("--only", choices=("mount", "replay"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--brief", action="store_true")
    given = parser.parse_args()
    state = json.loads(given.state.read_text()) if given.state.is_file() else {}
    try:
        for pair in given.pairs:
            measure(pair, given, state)
    except ZtuneError as error:
        output.echo(f"neighbours: {error}", err=True)
        return error.exit_code
    found = {pair: mine for pair, mine in state.items() if pair in (given.pairs or PAIRS)}
    if given.json:
        output.print_json({pair: [_json(row) for row in rows(mine)] for pair, mine in found.items()})
    elif given.brief:
        brief(found)
    else:
        for pair, mine in found.items():
            show(pair, mine)
    return 0


def _json(row: Row) -> dict[str, Any]:
    mount = None if row.mount is None else vars(row.mount)
    return {**vars(row), "replay": vars(row.replay), "mount": mount, "error": row.error}


if __name__ == "__main__":
    started.script(main)
