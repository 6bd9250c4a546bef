"""How soon real trials that follow a screening have a good layout: on complete grids, measured on a mount.

    python bench/follow.py [--times 200] [--write]         # searches; --write: the table of docs/search.md
    python bench/follow.py --screen [NAME …]               # records and replays, and runs nothing
    python bench/follow.py --measure [NAME …] [--minutes 8]    # goes on where it was cut; an hour for all

Each grid is recorded at a pace that its disks keep, every layout of it is replayed, and every layout then
runs on the mount as fast as it goes, in blocks. What each came to in each block is kept in
bench/data/follow/NAME.json, with what its replay foretold.

Runs are then made up as often as one likes: a layout's value in a block is its mean over the measured blocks
times what one of the grid's blocks was off by, drawn anew each time. ztune's own code chooses what joins and
when to stop; beside it the layouts that the screening has first, as ztune did before, and layouts at random.
A run has found a good layout if the one that leads at its end is, by the mean of all measured blocks, within
3 % of the best of the grid.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a process for each processor is faster

import started
from search import DOCS, put

from ztune import files, output, paths
from ztune.analysis import verdict
from ztune.analysis.basis import basis
from ztune.analysis.predicted import spearman
from ztune.analysis.resolve import Decision, decide, effects
from ztune.analysis.results import collect
from ztune.cli._live import LiveView
from ztune.cli._recording import record_workload
from ztune.errors import ZtuneError
from ztune.places import engine as engines
from ztune.places import named as places
from ztune.runs import asked, recordings, runner, screening
from ztune.runs.follow import Following, Foretold, ScreenedPrior
from ztune.runs.options import ScreenOptions, TrialOptions
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study
from ztune.study.loader import resolve_profiles

DATA = Path(__file__).parent / "data" / "follow"
BLOCKS = 4
NEAR = 0.03  # of the best: found


@dataclass(frozen=True)
class Grid:
    """A space whose every layout is measured. ``recorded``: parameters of the recording alone, its pace;
    ``measured``: of the trials alone."""

    name: str
    workload: str
    profile: str
    axes: Mapping[str, Sequence[str]]
    roles: Mapping[str, Sequence[str]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """Where its results are."""
        return DATA / f"{self.name}.json"

    def study(self) -> Study:
        """Return the study whose cross the grid is."""
        return resolve_profiles(
            Study.model_validate(
                {
                    "name": f"follow {self.name}",
                    "workload": self.workload,
                    "layout": {
                        "arc": "64M",
                        "pool": [{"name": "tank", "vdev": [{"profile": self.profile}]}],
                        "dataset": [
                            {"name": f"tank/{name}", "roles": list(roles)}
                            for name, roles in self.roles.items()
                        ],
                    },
                    "axes": {key: list(values) for key, values in self.axes.items()},
                    "cross": [list(self.axes)],
                }
            )
        )


_POSTGRES = {"scale": 10, "seconds": 8, "warmup": 1, "checkpoint_timeout": 30}
_TWO = {"data": ("data", "index", "temp"), "wal": ("wal",)}
_FAST = {"rate": "0"}
GRIDS = (
    Grid(
        "sqlite-ssd", "sqlite", "ssd-sata",
        {
            "data.recordsize": ("4K", "8K", "16K", "32K", "64K", "128K"),
            "data.compression": ("lz4", "zstd-3"),
        },
        {"data": ("data", "wal", "temp")},
        {"size": "112M", "seconds": 8, "warmup": 1}, {"rate": 60}, _FAST,
    ),
    Grid(
        "postgres-hdd", "postgres-oltp", "hdd-7200",
        {
            "data.recordsize": ("8K", "16K", "32K", "128K"),
            "data.compression": ("off", "lz4", "zstd-3"),
        },
        _TWO, _POSTGRES, {"rate": 40}, _FAST,
    ),
    Grid(
        "rocksdb-ssd", "rocksdb", "ssd-sata",
        {
            "data.recordsize": ("16K", "32K", "64K", "128K"),
            "data.compression": ("off", "lz4", "zstd-3"),
        },
        _TWO, {"size": "112M", "seconds": 8}, {"rate": 300}, _FAST,
    ),
    Grid(
        "postgres-ssd", "postgres-oltp", "ssd-sata",
        {
            "data.recordsize": ("8K", "32K", "128K"),
            "data.compression": ("lz4", "zstd-3"),
            "wal.recordsize": ("16K", "128K"),
        },
        _TWO, _POSTGRES, {"rate": 200}, _FAST,
    ),
    Grid(
        "mariadb-ssd", "mariadb-oltp", "ssd-sata",
        {
            "data.recordsize": ("16K", "32K", "64K", "128K"),
            "data.compression": ("off", "lz4", "zstd-3"),
        },
        _TWO, {"size": "112M", "seconds": 8, "warmup": 1}, {"rate": 40}, _FAST,
    ),
)  # fmt: skip


def state() -> Path:
    """Return the file that says which runs belong to which grid."""
    return paths.home() / "follow-bench.json"


def known() -> dict[str, dict[str, str]]:
    """Return grid → "screening" and "run" → id, as far as they are there."""
    found: dict[str, dict[str, str]] = json.loads(state().read_text()) if state().exists() else {}
    return found


def note(grid: Grid, what: str, run: str) -> None:
    """Keep that ``run`` is ``what`` of ``grid``."""
    found = known()
    found.setdefault(grid.name, {})[what] = run
    files.write(state(), output.json_text(found) + "\n")


def screened(store: Store, grid: Grid) -> Run:
    """Return the screening of a grid, every layout of it, made now where it is not there."""
    there = known().get(grid.name, {}).get("screening")
    if there is not None:
        return store.run(there)
    trace = recordings.recorded(
        grid.workload, {**grid.parameters, **grid.recorded}, {}, "follow",
        lambda made, path: record_workload(made, "auto", path),
    )  # fmt: skip
    with LiveView() as live:
        run = screening.start(
            store, trace, asked.suited(grid.study(), trace, None, None), engines.check(),
            ScreenOptions(budget=64), others={}, name=f"follow {grid.name}",
            command=["bench/follow.py", grid.name], observer=live,
        )  # fmt: skip
    note(grid, "screening", run.id)
    return run


def measure(store: Store, grid: Grid, minutes: float) -> Run:
    """Run every layout of a grid on a mount for as long as it may take, or go on with that."""
    before = screened(store, grid)
    there = known().get(grid.name, {}).get("run")
    with LiveView() as live:
        if there is not None:
            run = store.run(there)
            return runner.resume(store, run, places.again(run), live)
        names = [t.layout_hash for t in store.trials(before.id) if t.ok]
        task = asked.task_after(before, store, grid.measured, names, 1, native=True)
        request = runner.Request(
            study=task.study, layouts=task.layouts, job=task.job, place=places.make("mount", None),
            options=TrialOptions(blocks=(BLOCKS, BLOCKS), time_limit_s=minutes * 60), seed=None,
            name=f"follow {grid.name}", command=["bench/follow.py", grid.name], source_run=before.id,
        )  # fmt: skip
        ids = {run.id for run in store.runs()}
        try:
            return runner.start(store, request, live)
        finally:
            for run in store.runs():
                if run.id not in ids and run.name == f"follow {grid.name}":
                    note(grid, "run", run.id)


def export(store: Store, grid: Grid) -> None:
    """Write what is there of a grid's run: of each layout what was foretold, and each block's time per
    operation in s, null where there is none."""
    ids = known()[grid.name]
    before, run = store.run(ids["screening"]), store.run(ids["run"])
    replays, trials = store.trials(before.id), store.trials(run.id)
    prior = screening.prior_of(before, replays, len(replays))
    values = verdict.competing(run, collect(trials, basis(run)), "time")
    base = before.resolved_study.layout
    rows: list[dict[str, Any]] = [{"set": {}, "foretold": {}, "hash": base.hash}]
    for one, layout in zip(prior.layouts, prior.layouts_of(before.resolved_study), strict=True):
        kept = {key: one.ratios[key] for key in ("modelled_s", "written", "cpu_s") if key in one.ratios}
        row = {"set": dict(one.changes), "foretold": kept, "hash": layout.hash}
        rows.append({**row, "recommended": True} if one.recommended else row)
    blocks = sorted({block for row in values.values() for block in row})
    for row in rows:
        mine = values.get(str(row.pop("hash")), {})
        row["blocks"] = [float(f"{mine[b]:.5g}") if b in mine else None for b in blocks]
    head = {
        "name": grid.name, "workload": grid.workload, "version": run.job.get("version", ""),
        "parameters": {**grid.parameters, **grid.measured}, "recorded": dict(grid.recorded),
        "profile": grid.profile, "openzfs": run.versions.get("openzfs", ""),
        "engine": before.versions.get("engine", ""), "blocks": len(blocks),
    }  # fmt: skip
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "layouts": [\n{lines}\n]}}\n'
    json.loads(text)
    DATA.mkdir(parents=True, exist_ok=True)
    grid.file.write_text(text)


@dataclass(frozen=True)
class Measured:
    """A grid as it was measured: each layout's mean effect, what blocks were off by, and the prior."""

    grid: Grid
    blocks: int
    study: Study
    prior: ScreenedPrior
    level: Mapping[str, float]  # by hash, of the logarithm of the time per operation
    off: tuple[float, ...]
    between: float  # spread of blocks

    @classmethod
    def read(cls, grid: Grid) -> Measured:
        """Read what ``export`` wrote."""
        kept = json.loads(grid.file.read_text())
        study = grid.study()
        told = [
            Foretold(name=", ".join(f"{k}={v}" for k, v in row["set"].items()), changes=row["set"],
                     ratios=row["foretold"], recommended=row.get("recommended", False))
            for row in kept["layouts"] if row["set"]
        ]  # fmt: skip
        prior = ScreenedPrior(grid.name, len(told), tuple(told))
        hashes = [study.layout.hash, *(one.hash for one in prior.layouts_of(study))]
        listed = [row for row in kept["layouts"] if not row["set"]] + [
            row for row in kept["layouts"] if row["set"]
        ]
        values = {
            h: {b: x for b, x in enumerate(row["blocks"]) if x is not None}
            for h, row in zip(hashes, listed, strict=True)
        }
        level = effects(values)
        blocks = range(kept["blocks"])
        rest = {h: {b: math.log(x) - level[h] for b, x in row.items()} for h, row in values.items()}
        common = [fmean(row[b] for row in rest.values() if b in row) for b in blocks]
        count = sum(map(len, values.values()))
        # As many degrees of freedom are gone as there are layouts and blocks.
        free = math.sqrt(count / (count - len(values) - len(common) + 1))
        off = tuple((x - common[b]) * free for row in rest.values() for b, x in row.items())
        # Of a layout that ran once nothing is known: its rest is 0, and not drawn.
        off = tuple(x for x in off if x)
        return cls(grid, len(common), study, prior, level, off, pstdev(common))

    @property
    def noise(self) -> float:
        """The spread of one trial, a share."""
        return pstdev(self.off)

    @property
    def rank(self) -> float:
        """How well the screening has the order: Spearman's correlation."""
        told = {self.study.layout.hash: 1.0}
        for one, layout in zip(self.prior.layouts, self.prior.layouts_of(self.study), strict=True):
            told[layout.hash] = one.ratios["modelled_s"]
        return spearman([told[h] for h in self.level], list(self.level.values())) or 0.0

    def loss(self, name: str) -> float:
        """How much slower a layout is than the best, a share."""
        return math.expm1(self.level[name] - min(self.level.values()))

    @property
    def good(self) -> int:
        """How many layouts are good."""
        return sum(self.loss(name) <= NEAR for name in self.level)


@dataclass(frozen=True)
class Ended:
    """A run that was made up: what leads, which layouts ran beside the baseline, and how many trials."""

    grid: str
    method: str
    loss: float
    had: float  # the loss of the best of those that ran
    ran: int
    trials: int
    reason: str = ""


FOLLOW, BEST, RANDOM = "following the screening", "the first {} of the screening", "{} at random"


def ran(found: Measured, method: str, most: int, seed: int) -> Ended:
    """Make up one run of at most ``most`` layouts beside the baseline."""
    rng = random.Random(f"{found.grid.name}:{method}:{seed}")
    options = TrialOptions()
    base = found.study.layout.hash
    screened_order = [layout.hash for layout in found.prior.layouts_of(found.study)]
    following = None
    if method == FOLLOW:
        following = Following(found.study, replace(found.prior, most=most), options, seed)
        join = list(following.after("time", {}, (), (), None).next)
    elif method == RANDOM:
        join = rng.sample(screened_order, most)
    else:
        join = screened_order[:most]
    arms = [base, *join]
    values: dict[str, dict[int, float]] = {}
    least, last = options.blocks
    count, reason = 0, ""
    active = list(arms)
    decision: Decision | None = None
    for block in range(1, last + 1):
        common = rng.gauss(0.0, found.between)
        for arm in active:
            values.setdefault(arm, {})[block] = math.exp(found.level[arm] + common + rng.choice(found.off))
            count += 1
        decision = decide(values, resolution=options.resolution, looks=options.looks)
        assert decision is not None
        new: tuple[str, ...] = ()
        if following is not None:
            now = following.after("time", values, arms, (), decision)
            new, reason = now.next, now.reason
            arms += new
        again = {decision.leader, *decision.open} if decision.open else set()
        if block >= least and not again and not new:
            break
        active = arms if block < least else [a for a in arms if a in {base, *again, *new}]
    assert decision is not None
    best = min(found.loss(arm) for arm in values)
    loss = found.loss(decision.leader)
    return Ended(found.grid.name, method.format(most), loss, best, len(values) - 1, count, reason)


def table(grids: Sequence[Measured], done: Sequence[Ended]) -> list[str]:
    """Return the table of docs/search.md."""
    out = [
        "| grid | layouts × blocks | good | noise | rank | method | found | had | layouts | trials |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for found in grids:
        mine = [one for one in done if one.grid == found.grid.name]
        base = ", base too" if found.loss(found.study.layout.hash) <= NEAR else ""
        head = (
            f"| {found.grid.name} | {len(found.level)} × {found.blocks} | {found.good}{base} | "
            f"{found.noise:.1%} | {found.rank:.2f} |"
        )
        for method in dict.fromkeys(one.method for one in mine):
            some = [one for one in mine if one.method == method]
            out.append(
                f"{head} {method} | {fmean(one.loss <= NEAR for one in some):.0%} | "
                f"{fmean(one.had <= NEAR for one in some):.0%} | {fmean(one.ran for one in some):.1f} | "
                f"{fmean(one.trials for one in some):.1f} |"
            )
            head = "| | | | | |"
    return out


def replayed(task: tuple[Grid, str, int, int]) -> Ended:
    """Make up one run, in a process of its own."""
    grid, method, most, seed = task
    return ran(_measured(grid.name), method, most, seed)


@functools.cache
def _measured(name: str) -> Measured:
    return Measured.read(next(grid for grid in GRIDS if grid.name == name))


def compare(times: int, most: int, processes: int, chosen: Sequence[Grid]) -> list[str]:
    """Make up ``times`` runs of each way on each grid that is there; return the table."""
    there = [grid for grid in chosen if grid.file.exists()]
    ways = [(FOLLOW, most), (BEST, 3), (BEST, most), (RANDOM, most)]
    tasks = [(grid, *way, seed) for grid in there for way in ways for seed in range(times)]
    with multiprocessing.Pool(processes, started.worker) as pool:
        done = pool.map(replayed, tasks, chunksize=20)
    return table([_measured(grid.name) for grid in there], done)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--screen", action="store_true", help="record and replay, and run nothing")
    parser.add_argument("--minutes", type=float, default=8.0, help="no trial begins after so many")
    parser.add_argument("--export", action="store_true", help="write what was measured to bench/data")
    parser.add_argument("--times", type=int, default=200, help="runs that are made up, of each way")
    parser.add_argument("--most", type=int, default=5, help="layouts that may run beside the baseline")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="into docs/search.md")
    given = parser.parse_args()
    chosen = [grid for grid in GRIDS if not given.names or grid.name in given.names]
    if not (given.screen or given.measure or given.export):
        lines = compare(given.times, given.most, given.processes, chosen)
        print("\n".join(lines))
        if given.write:
            put(DOCS / "search.md", "follow", lines)
        return 0
    with Store.open() as store:
        for grid in chosen:
            try:
                begun = time.monotonic()
                if given.screen:
                    screened(store, grid)
                elif given.measure:
                    measure(store, grid, given.minutes)
                print(f"{grid.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
                if known().get(grid.name, {}).get("run") is not None:
                    export(store, grid)
            except ZtuneError as error:
                print(f"follow: {grid.name}: {error}", file=sys.stderr)
                return error.exit_code
            run = known().get(grid.name, {}).get("run")
            if run is not None:
                trials = store.trials(run)
                print(f"{grid.name}: {sum(t.ok for t in trials)} of {len(trials)} trials")
    return 0


if __name__ == "__main__":
    started.script(main)
