"""How near screening and the mount come to the real kernel: the same layouts in all three places.

    python bench/accuracy.py                    both workloads on both profiles; hours under emulation
    python bench/accuracy.py fio:hdd-7200       one workload on one profile (several may be named)
    python bench/accuracy.py --on mount …       without the lab: screening against the mount
    python bench/accuracy.py --layouts 4 …      only so many, from the best to the worst of the screening, and
                                                the baseline
    python bench/accuracy.py --run RUN          a measured run that is there already (by `ztune run --from`);
                                                those of one screening are judged as one
    python bench/accuracy.py --run RUN --against SCREENING
                                                … by another screening of the same study and parameters
    python bench/accuracy.py --run RUN --own RUN --late 0.25
                                                … and with what a mount's own work adds to a commit, by a run
                                                with `--disks instant`, added to the replay's; without trials
                                                whose answers came later than so many ms
    python bench/accuracy.py --done 0.95 …      trials whose job did less of the recorded operations than that
                                                are left out and named (0.98)
    python bench/accuracy.py --large 8G --saved DIR --state FILE postgres-oltp:hdd-7200 …
                                                on a mount, databases of that size, 60 s, an ARC of an eighth;
                                                goes on where it was cut, with what FILE says is there
    python bench/accuracy.py --markdown …       the tables of docs/accuracy-tables.md
    python bench/accuracy.py --brief …          a line for each measure of all layouts together

Each pair is recorded and screened (`ztune tune --study accuracy-…`), then run on the mount and in the lab
(`ztune run --from`). Counts are per operation of the job everywhere: absolute, not as multiples of a
baseline. The lab, whose ZFS is the kernel's, is what the others are held to; without it, the mount. Under
emulation only operations and bytes are held to the goal. Exit code 1 if a goal is missed.

--large loads each kind of pool once, into DIR, which should be on a file system that can copy by reference
(XFS, Btrfs) and have room for a database for each recordsize and compression of --layout; with --piece TIME
it ends after a piece of the trials, so that others can have the machine, and goes on when it is run again;
with --prepare it ends before them. Trials measure time: run them as real-time processes (`chrt -r 1`) where
the machine has other work, and heed what they say of answers that came late.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import started

from ztune.analysis.basis import basis
from ztune.analysis.metrics import MEASURED, number_at
from ztune.analysis.predicted import spearman
from ztune.analysis.results import LayoutResult, collect
from ztune.errors import ZtuneError
from ztune.store.db import Store
from ztune.store.records import Trial
from ztune.study import profiles
from ztune.trace.reader import Trace
from ztune.units import format_size, parse_size

PAIRS = tuple(f"{w}:{p}" for w in ("postgres-oltp", "fio") for p in ("hdd-7200", "ssd-sata"))
STUDIES = {
    "postgres-oltp": "accuracy-postgres", "mariadb-oltp": "accuracy-mariadb", "fio": "accuracy-fio"
}  # fmt: skip
# Short enough for an emulated machine; the database is larger than the ARC of 64 MiB all the same.
PARAMS = {
    # No warm-up: a replay begins with an empty ARC.
    "postgres-oltp": ["scale=8", "seconds=10", "rate=20", "warmup=0"],
    "mariadb-oltp": ["size=128M", "seconds=30", "rate=8", "warmup=0"],
    # Rates that stay whole numbers for each thread when slowed down 4 or 10 times.
    "fio": ["size=64M", "seconds=10", "rate_iops=160", "rwmixread=50"],
}
# What a hard disk keeps with each layout but some of 1M; and what a flash disk and two processors do.
LARGE_RATES = {
    "postgres-oltp": ("rate", 10, 100), "mariadb-oltp": ("rate", 5, 20), "fio": ("rate_iops", 60, 200)
}  # fmt: skip
LARGE: dict[str, list[str]] = {
    "postgres-oltp": ["seconds=60", "warmup=0"],
    "mariadb-oltp": ["seconds=60", "warmup=0"],
    "fio": ["seconds=60", "rwmixread=50"],
}
GOAL_ERROR, GOAL_RANK = 0.10, 0.9
REPLAY = "replay"
PLACES = ("lab", "mount", REPLAY)  # the first that is there is what the others are held to
_MEGA = 1e6


@dataclass(frozen=True)
class Compared:
    """One measure, where a replay has it (None: nowhere), and whether the goal of 10 % is for it.

    ``measured``: where a trial has it; None: it is a metric, by the measure's name.
    """

    label: str
    replayed: Callable[[LayoutResult], float | None]
    goal: bool = False
    total: bool = False  # not per operation
    measured: Callable[[LayoutResult], float | None] | None = None

    def at(self, key: str, cell: LayoutResult) -> float | None:
        """Return what was measured; ``key``: the measure's name."""
        return cell.value(key) if self.measured is None else self.measured(cell)


def _sum(*keys: str) -> Callable[[LayoutResult], float | None]:
    def read(candidate: LayoutResult) -> float | None:
        found = [candidate.value(key) for key in keys]
        return None if None in found else sum(v for v in found if v is not None)

    return read


def _read(*path: str) -> Callable[[LayoutResult], float | None]:
    def read(candidate: LayoutResult) -> float | None:
        found = [number_at(result, "measure", *path) for result in candidate.results.values()]
        known = [value for value in found if value is not None]
        return statistics.median(known) if known else None

    return read


def _calls(key: str, call: str) -> dict[str, Compared]:
    """Return the percentiles of a call, by the measure of a trial."""
    return {
        f"{key}_{p}": Compared(f"{key}, {p}", _read("model", f"{call}_latency_ms", p), total=True)
        for p in ("p50", "p95", "p99")
    }


def _by_job(key: str, call: str) -> dict[str, Compared]:
    """Return the figures of a call as the job itself measured it, which fio does, in the kernel too."""

    def read(figure: str) -> Callable[[LayoutResult], float | None]:
        def one(candidate: LayoutResult) -> float | None:
            found = [
                number_at(role, call, "latency_ms", figure)
                for result in candidate.results.values()
                for role in result["job"].get("details", {}).get("roles", {}).values()
                if (number_at(role, call, "operations") or 0) > 0
            ]
            known = [value for value in found if value is not None]
            return statistics.median(known) if known else None

        return one

    return {
        f"{key}_{f}": Compared(
            f"{key}, {f}", _read("model", f"{call}_latency_ms", f), total=True, measured=read(f)
        )
        for f in ("mean", "p50", "p90", "p99")
    }


# What a mount's own work adds to each: like to like, though percentiles of a sum are less than their sum.
OWN = ("commit", *(f"commit_{p}" for p in ("p50", "p95", "p99")))


def _log_sync(candidate: LayoutResult) -> float | None:
    """Return the mean ms of syncs of a log; what a call costs the job beside them is not in it."""
    found = [
        number_at(role, "sync_latency_ms", "mean")
        for result in candidate.results.values()
        for role in result["measure"]["model"].get("by_role", ())
        if role["name"] == "wal"
    ]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None


# By the measure of a trial: analysis/metrics.py. ``busy`` is the seconds for which the busiest disk worked.
COMPARED: dict[str, Compared] = {
    "ios": Compared("operations", _sum("write_ops", "read_ops"), goal=True),
    "bytes": Compared("bytes", _sum("written", "read"), goal=True),
    "writes": Compared("writes", _sum("write_ops")),
    "reads": Compared("reads", _sum("read_ops")),
    "written": Compared("bytes written", _sum("written")),
    "read": Compared("bytes read", _sum("read")),
    "flushes": Compared("flushes", _sum("flushes")),
    "amplification": Compared("amplification", _sum("write_amplification"), total=True),
    "space": Compared("space", _sum("allocated"), total=True),
    "busy": Compared("busy", _sum("busy_s")),
    "p50": Compared("latency, median", lambda _: None, total=True),
    # What zil_commit() takes, of all who call it, and what the database itself counts for its log's syncs.
    "commit": Compared("commit", _read("model", "sync_latency_ms", "mean"), total=True),
    "log_sync": Compared("log's sync", _log_sync, total=True),
    **_calls("commit", "sync"),
    # What waits for the disk is the tail. Where most reads find their block in the ARC, the median is that of
    # a hit: a replay takes nothing for it, a mount the copy. It says something only where most reads wait.
    "read_ms": Compared("read, mean", _read("model", "read_latency_ms", "mean"), total=True),
    **_calls("read", "read"),
    **_by_job("fsync", "sync"),
    **_by_job("pread", "read"),
}


@dataclass(frozen=True)
class Line:
    """One measure of one layout: place → value, per operation or in all."""

    layout: str
    measure: str
    values: dict[str, float]

    @property
    def reference(self) -> str:
        """The place that the others are held to."""
        return next(p for p in PLACES if p in self.values)

    def error(self, place: str) -> float | None:
        """Value there / value at the reference − 1; None where either is missing or nothing."""
        base = self.values[self.reference]
        return self.values[place] / base - 1 if place in self.values and base else None


def answered_late(trial: Trial) -> float:
    """Return by how many ms the answers of the trial's latest disk came after their modelled times."""
    rows = (trial.result or {}).get("measure", {}).get("by_vdev", ())
    return max(
        ((row.get("late_ms") or 0) / max(1, row["reads"] + row["writes"] + row["flushes"]) for row in rows),
        default=0.0,
    )


def did(trial: Trial, operations: int) -> float:
    """Return which share of so many operations the trial's job did."""
    done: int = (trial.result or {}).get("job", {}).get("operations", 0)
    return done / operations


def compare(
    places: dict[str, list[LayoutResult]],
    screened: list[LayoutResult],
    operations: int,
    own: Mapping[str, LayoutResult],
) -> list[Line]:
    """Return every measure of every layout that two places have; ``operations`` are those of the trace.

    ``own``: layouts, by name, on disks that take nothing.
    """
    known = {c.hash: c for c in screened}
    order = {cell.hash: cell.name for cells in places.values() for cell in cells}
    lines = []
    for layout, name in order.items():
        cells = {p: c for p, found in places.items() for c in found if c.hash == layout}
        for key, asked in COMPARED.items():
            values = {p: v for p in PLACES if p in cells and (v := asked.at(key, cells[p])) is not None}
            guess = asked.replayed(known[layout]) if layout in known else None
            if guess is not None and key in OWN and name in own:
                guess += own[name].value(key) or 0.0
            if guess is not None:
                values[REPLAY] = guess if asked.total else guess / operations
            if len(values) > 1:
                lines.append(Line(name, key, values))
    return lines


def by_source(run_ids: list[str]) -> list[list[str]]:
    """Return the measured runs in groups of those that came from the same screening. Raises ZtuneError."""
    groups: dict[str, list[str]] = {}
    with Store.open() as store:
        for run_id in run_ids:
            run = store.run(run_id)
            if not run.measured or not run.source_run:
                raise ZtuneError(f"run {run.id} was not made with `ztune run --from`")
            groups.setdefault(run.source_run, []).append(run.id)
    return list(groups.values())


def summed(lines: list[Line]) -> list[dict[str, Any]]:
    """Return how each place agrees with the reference over all layouts, measure by measure."""
    summary = []
    for key, asked in COMPARED.items():
        mine = [line for line in lines if line.measure == key]
        for place in PLACES[1:]:
            both = [(x, e) for x in mine if x.reference != place and (e := x.error(place)) is not None]
            if not both:
                continue
            worst, error = max(both, key=lambda pair: abs(pair[1]))
            pairs = [(x.values[place], x.values[x.reference]) for x, _ in both]
            summary.append(
                {
                    "place": place,
                    "measure": key,
                    "against": worst.reference,
                    "label": asked.label,
                    "layouts": len(both),
                    "spearman": spearman([a for a, _ in pairs], [b for _, b in pairs]),
                    "median_error": statistics.median(abs(e) for _, e in both),
                    "worst_error": error,
                    "worst_layout": worst.layout,
                }
            )
    return summary


def check_same(
    run_ids: list[str], source: str, measured: list[LayoutResult], screened: list[LayoutResult]
) -> None:
    """Raise ZtuneError where no layout that was ``measured`` was ``screened`` too."""
    if not measured or {c.hash for c in measured} & {c.hash for c in screened}:
        return
    why = ""
    for here, there in product(measured, screened):
        if here.name == there.name and not why:
            other = there.layout.canonical()
            differ = [k for k, v in here.layout.canonical().items() if other.get(k) != v]
            why = f': their "{here.name}" differs in {" and ".join(differ)}'
    raise ZtuneError(
        f"run {', '.join(run_ids)} and screening {source} have no layout in common{why}; screen by the study "
        "of the run, with the same --profile, which leaves the size that a study gives its disks out"
    )


def judge(
    run_ids: list[str],
    against: str | None = None,
    own: str | None = None,
    late: float | None = None,
    done: float = 0.0,
) -> dict[str, Any]:
    """Return the comparison of measured runs with the screening that they came from, as JSON values.

    Or with the screening ``against``, of a trace recorded with the same parameters (ZtuneError if not).
    ``own`` is a run on disks that take nothing; trials answered later than ``late`` ms are left out, and
    those whose job did less than ``done`` of the recorded operations.
    """
    with Store.open() as store:
        runs = {one: store.run(one) for one in run_ids}
        run = runs[run_ids[0]]
        source = store.run(against or str(run.source_run))
        workload = Trace.open(Path(source.trace_path)).manifest.workload
        operations = int(workload.result["operations"]) if workload is not None else 0
        if not operations:
            raise ZtuneError(f"the trace of run {source.id} does not say how many operations were recorded")
        trials: dict[str, list[Trial]] = {}
        short: dict[str, float] = {}
        for one, found in runs.items():
            for trial in store.trials(one):
                if not trial.ok or (late is not None and answered_late(trial) > late):
                    continue
                if (share := did(trial, operations)) < done:
                    short[f"{one}, trial {trial.number}, {trial.layout.name}"] = share
                else:
                    trials.setdefault(str(found.target["kind"]), []).append(trial)
        places = {place: list(collect(those).layouts) for place, those in trials.items()}
        screened = list(collect(store.trials(source.id)).layouts)
        instant = {c.name: c for c in collect(store.trials(own)).layouts} if own else {}
    for found in runs.values():
        if workload is None or (workload.name, workload.parameters) != (
            found.job["workload"],
            found.job["params"],
        ):
            raise ZtuneError(
                f"the trace of run {source.id} has another workload or other parameters than run {found.id}"
            )
    lines = compare(places, screened, operations, instant)
    cells = [cell for found in places.values() for cell in found]
    check_same(run_ids, source.id, cells, screened)
    return {
        "runs": {one: found.target["kind"] for one, found in runs.items()},
        "source_run": source.id,
        "workload": run.job["workload"],
        "params": run.job["params"],
        "profiles": sorted({v.profile for c in cells for p in c.layout.pools for v in p.vdevs}),
        "clocks": {str(found.target["kind"]): basis(found) for found in runs.values()},
        "dilation": max((found.target.get("dilation") or 1.0 for found in runs.values()), default=1.0),
        "operations": {
            "trace": operations,
            **{
                place: {c.name: [r["job"]["operations"] for r in c.results.values()] for c in cells}
                for place, cells in places.items()
            },
        },
        "left_out": short,
        "summary": summed(lines),
        "layouts": [
            {
                "layout": x.layout,
                "measure": x.measure,
                "values": x.values,
                "errors": {p: x.error(p) for p in x.values if p != x.reference},
            }
            for x in lines
        ],
    }


def _text(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    metric = MEASURED.get(key)
    return format_size(round(value)) if metric and metric.unit == "bytes" else f"{value:.4g}"


def _missed(found: dict[str, Any], row: dict[str, Any]) -> bool:
    """Say whether a goal that holds for this measure is missed: 10 %, or for times a rank of 0.9."""
    if COMPARED[row["measure"]].goal:
        return bool(abs(row["worst_error"]) > GOAL_ERROR)
    real = found["clocks"].get(row["against"]) == "measured"
    return row["measure"] == "busy" and real and (row["spearman"] or 0.0) < GOAL_RANK


def _heading(found: dict[str, Any]) -> str:
    runs = ", ".join(f"{run} ({kind})" for run, kind in found["runs"].items())
    clocks = ", ".join(f"{place}: {kind}" for place, kind in found["clocks"].items())
    return (
        f"{found['workload']} on {', '.join(found['profiles'])}: {runs} and screening {found['source_run']}; "
        f"times in the {clocks}; dilation {found['dilation']}"
    )


def show(found: dict[str, Any]) -> None:
    """Print one comparison."""
    print(f"\n{_heading(found)}")
    for row in found["layouts"]:
        values = "  ".join(
            f"{place} {_text(row['measure'], row['values'].get(place)):>10}"
            + (f" {row['errors'][place]:+7.1%}" if row["errors"].get(place) is not None else " " * 8)
            for place in PLACES
        )
        print(f"  {row['layout'][:38]:38} {COMPARED[row['measure']].label:15} {values}")
    for row in found["summary"]:
        rank = "none" if row["spearman"] is None else f"{row['spearman']:.2f}"
        print(
            f"  {row['place']} / {row['against']}: {row['label']:14} {row['layouts']} layouts: "
            f"Spearman {rank}, median error {row['median_error']:.1%}, "
            f"worst {row['worst_error']:+.1%} ({row['worst_layout']})"
            f"{'  GOAL MISSED' if _missed(found, row) else ''}"
        )


# The columns of docs/accuracy-tables.md: heading, measure, how a value is written.
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("operations", "ios", lambda v: f"{v:.3f}"),
    ("bytes", "bytes", lambda v: f"{v:,.0f}"),
    ("amplification", "amplification", lambda v: f"{v:.2f}"),
    ("space, MB", "space", lambda v: f"{v / _MEGA:,.1f}"),
    ("busy, ms", "busy", lambda v: f"{v * 1e3:.2f}"),
)


def markdown(found: dict[str, Any]) -> str:
    """Return one row per layout and place; each value with its error against the reference."""
    rows = {(row["layout"], row["measure"]): row for row in found["layouts"]}
    lines = [
        f"| layout | | {' | '.join(heading for heading, _, _ in COLUMNS)} |",
        f"| --- | --- |{' --- |' * len(COLUMNS)}",
    ]
    for layout in dict.fromkeys(row["layout"] for row in found["layouts"]):
        name = layout
        for place in PLACES:
            cells = []
            for _, key, written in COLUMNS:
                row = rows.get((layout, key), {"values": {}, "errors": {}})
                value, error = row["values"].get(place), row["errors"].get(place)
                note = "" if error is None else f" ({error:+.1%})".replace("-", "−").replace("%", " %")
                cells.append("" if value is None else written(value) + note)
            if any(cells):
                lines.append(f"| {name} | {place} | {' | '.join(cells)} |")
                name = ""
    return "\n".join(lines)


def ztune(*words: str) -> dict[str, Any]:
    """Run a command of ztune's with --json and return what it printed."""
    print("$ ztune", *words, file=sys.stderr, flush=True)
    done = started.run([Path(sys.executable).with_name("ztune"), *words, "--json"], stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        raise ZtuneError(f"`ztune {words[0]}` ended with exit code {done.returncode} (above)")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _spread(names: list[str], count: int) -> list[str]:
    """Return ``count`` of the names, the first and the last among them, at even distances."""
    if count >= len(names):
        return names
    step = (len(names) - 1) / max(1, count - 1)
    return [names[round(i * step)] for i in range(count)]


def measure(pair: str, given: argparse.Namespace) -> list[str]:
    """Record, screen and run one workload on one profile in each place; return the measured runs' ids."""
    workload, _, profile = pair.partition(":")
    if workload not in STUDIES or not profile:
        raise ZtuneError(f'"{pair}" is no pair; write WORKLOAD:PROFILE, such as fio:hdd-7200')
    params = [word for p in PARAMS[workload] for word in ("-p", p)]
    with tempfile.TemporaryDirectory(prefix="ztune-accuracy-") as out:
        study = ["--study", STUDIES[workload], "--profile", profile, "--budget", "16"]
        ztune("tune", workload, *study, "--out", f"{out}/o", *params)
        screened = json.loads(Path(f"{out}/o/run.json").read_text(encoding="utf-8"))
    names = _spread([row["layout"] for row in screened["layouts"] if not row["baseline"]], given.layouts)
    chosen = [word for name in names for word in ("--layouts", name)]
    runs = []
    for place in given.on or ("mount", "lab"):
        pace = ["--dilation", given.dilation] if given.dilation and place == "lab" else []
        words = ["--from", screened["run"], "--on", place, "--blocks", f"{given.blocks}", *chosen, *pace]
        words += ["--caches", "cold"]  # as a replay without a warm-up begins
        runs.append(str(ztune("run", *words)["run"]))
        print(f"accuracy: {pair} {place}: run {runs[-1]}", file=sys.stderr, flush=True)
    return runs


def _large_params(workload: str, profile: str, size: str) -> list[str]:
    name, rotational, flash = LARGE_RATES[workload]
    rate = rotational if profiles.find(profile).rotational else flash
    return [*LARGE[workload], f"size={size}", f"{name}={rate}"]


def measure_large(pair: str, given: argparse.Namespace) -> list[str]:
    """Record and screen one workload on one profile, and run a piece of its trials on a mount.

    Returns the measured runs' ids; what is done stands in the file ``given.state``.
    """
    workload, _, profile = pair.partition(":")
    if workload not in STUDIES or not profile:
        raise ZtuneError(f'"{pair}" is no pair; write WORKLOAD:PROFILE, such as fio:hdd-7200')
    state = json.loads(given.state.read_text()) if given.state.is_file() else {}
    mine = state.setdefault(f"{pair} {given.large}", {"screening": None, "runs": {}})

    def keep() -> None:
        given.state.write_text(json.dumps(state, indent=1))

    with tempfile.TemporaryDirectory(prefix="ztune-accuracy-") as name:
        # Not --profile: disks of one size, whatever their kind, hold pools that were loaded once.
        shipped = Path(__file__).parents[1] / "studies" / f"{STUDIES[workload]}.toml"
        study = Path(name) / "study.toml"
        study.write_text(shipped.read_text().replace('"hdd-7200"', f'"{profile}"'))
        if mine["screening"] is None:
            arc = format_size(parse_size(given.large) // 8)
            params = [word for p in _large_params(workload, profile, given.large) for word in ("-p", p)]
            words = ["--study", str(study), "--arc", arc, "--no-elsewhere"]
            ztune("tune", workload, *words, "--budget", "1", "--out", f"{name}/o", *params)
            tuned = json.loads(Path(f"{name}/o/run.json").read_text(encoding="utf-8"))["run"]
            with Store.open() as store:
                trace = store.run(tuned).trace_path
            # A mount is held against a replay of all, not of a sample.
            found = ztune("screen", str(trace), *words, "--budget", "16", "--sample", "1/1")
            mine["screening"] = str(found["run"])
            keep()
    if given.prepare:
        return []
    group = given.only or "all"
    if group in mine["runs"]:
        ztune("run", "--resume", mine["runs"][group])
    else:
        with Store.open() as store:
            trials = store.trials(mine["screening"])
        names = dict.fromkeys(t.layout.name for t in trials if (given.only or "") in t.layout.name)
        chosen = [word for one in _spread(list(names), given.layouts + 1) for word in ("--layouts", one)]
        words = ["--from", mine["screening"], "--on", "mount", "--blocks", f"{given.blocks}:{given.blocks}"]
        words += ["--caches", "cold", "--saved", str(given.saved), "--time-limit", given.piece]
        mine["runs"][group] = str(ztune("run", *words, *chosen)["run"])
        keep()
    return list(mine["runs"].values())


def brief(found: dict[str, Any]) -> str:
    """Return one row: layouts, and of each measure the median error, the worst two ways, and the rank."""
    cells = []
    for key in ("writes", "written", "reads", "busy", "commit", "log_sync"):
        lines = [x for x in found["layouts"] if x["measure"] == key and REPLAY in x["errors"]]
        errors = [x["errors"][REPLAY] for x in lines if x["errors"][REPLAY] is not None]
        row = next((r for r in found["summary"] if (r["place"], r["measure"]) == (REPLAY, key)), None)
        if row is None or not errors:
            cells.append("")
            continue
        rank = "" if row["spearman"] is None else f"; {row['spearman']:.2f}"
        low, high = (f"{round(100 * e):+d}".replace("-", "−").replace("+0", "0") for e in _ends(errors))
        cells.append(f"{row['median_error'] * 100:.1f} %, {low} … {high}{rank}")
    count = len({x["layout"] for x in found["layouts"]})
    return f"| {found['workload']}, {', '.join(found['profiles'])} | {count} | {' | '.join(cells)} |"


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", default=[], metavar="WORKLOAD:PROFILE")
    parser.add_argument("--on", action="append", choices=("mount", "lab"), help="only there; default on both")
    parser.add_argument(
        "--run", action="append", default=[], metavar="RUN", help="a measured run that is there already"
    )
    parser.add_argument("--against", metavar="RUN", help="the screening to judge by, instead of its own")
    parser.add_argument("--own", metavar="RUN", help="a run on instant disks: what a mount adds to commits")
    parser.add_argument("--late", type=float, metavar="MS", help="leave out trials answered later than this")
    parser.add_argument(
        "--done", type=float, default=0.98, help="leave out trials that did less of the recorded operations"
    )
    parser.add_argument("--layouts", type=int, default=15, help="how many besides the baseline")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--dilation", help="of the lab; default: the lab's own")
    parser.add_argument("--large", metavar="SIZE", help="databases of this size, on a mount")
    parser.add_argument("--saved", type=Path, help="with --large: where loaded pools are kept")
    parser.add_argument("--state", type=Path, help="with --large: what is done")
    parser.add_argument("--only", metavar="TEXT", help="with --large: layouts that have it in their name")
    parser.add_argument("--prepare", action="store_true", help="with --large: record and screen, try nothing")
    parser.add_argument("--piece", metavar="TIME", default="9m", help="with --large: begin no trial after it")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    try:
        if given.large and not (given.saved and given.state and given.pairs):
            parser.error("--large takes WORKLOAD:PROFILE, --saved and --state")
        do = measure_large if given.large else measure
        runs = given.run or [run for p in given.pairs or PAIRS for run in do(p, given)]
        if given.prepare:
            return 0
        groups = [runs] if given.against else by_source(runs)
        found = [judge(group, given.against, given.own, given.late, given.done) for group in groups]
    except ZtuneError as error:
        print(f"accuracy: {error}", file=sys.stderr)
        return error.exit_code
    for name, share in [row for one in found for row in one["left_out"].items()]:
        print(f"accuracy: left out: {name}: did {share:.1%} of the operations", file=sys.stderr)
    if given.json:
        print(json.dumps(found, indent=1))
    for one in found if not given.json else ():
        if given.brief:
            print(brief(one))
        elif given.markdown:
            print(f"{_heading(one)}\n\n{markdown(one)}\n")
        else:
            show(one)
    return int(any(_missed(one, row) for one in found for row in one["summary"]))


if __name__ == "__main__":
    started.script(main)
