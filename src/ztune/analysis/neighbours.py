"""What two jobs on one pool lose to each other: a run's trials of the best layouts alone and together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from ztune.analysis import units
from ztune.analysis.held import BeforeAfter, held
from ztune.analysis.metrics import number_at, table
from ztune.analysis.paired import Ratio, paired
from ztune.analysis.standing import Standing
from ztune.onhost import latency
from ztune.store.records import BOTH, NEIGHBOUR, Run, Trial


@dataclass(frozen=True)
class Shared:
    """One figure of a job, or of both: alone and beside the other; None where a replay can't tell."""

    alone: float | None
    beside: float | None

    @property
    def ratio(self) -> float | None:
        """How many times as much it is beside the other; None where that means nothing."""
        if not self.alone or self.beside is None:
            return None
        return self.beside / self.alone


@dataclass(frozen=True)
class JobBeside:
    """What a job did on a layout alone and beside the other one.

    ``job``: its name; "both" for the two together, whose "alone" is the sum of what each does alone, of
    latencies the mean over the calls of both. ``ios`` and ``moved``: of the disks for its datasets, count and
    bytes, the log's blocks in the bytes alone. ``sync`` and ``read``: mean latency, ms. ``seconds``:
    modelled time.
    """

    layout: str
    hash: str
    job: str
    ios: Shared
    moved: Shared
    sync: Shared
    read: Shared
    seconds: Shared


def names(run: Run) -> tuple[str, str]:
    """Return what the two jobs of a run are called; two of one name are numbered."""
    kept: Mapping[str, Any] = run.options.get("beside") or {}
    first, other = str(run.study.get("workload") or PurePath(run.trace_path).stem), str(kept.get("name", ""))
    return (f"{first} (1)", f"{other} (2)") if first == other else (first, other)


def rows(now: Standing, trials: Sequence[Trial]) -> list[JobBeside]:
    """Return, for each layout that was tried beside a neighbour, its job, the neighbour, and both.

    ``now``: how the layouts stand without it.
    """
    first, other = names(now.run)
    out: list[JobBeside] = []
    for trial in trials:
        if trial.condition != BOTH or not trial.ok:
            continue
        mine = _measure(trials, trial, "")
        theirs = _measure(trials, trial, NEIGHBOUR)
        if mine is not None and theirs is not None:
            out += _rows(trial, first, other, mine, theirs)
    return out


def sentences(now: Standing, trials: Sequence[Trial]) -> list[str]:
    """Return whether the choice changes beside the neighbour, as a sentence; none without such trials."""
    there = [t for t in trials if t.condition == BOTH]
    if not there or now.chosen is None:
        return []
    _, other = names(now.run)
    metric = table("modelled")[now.minimise[0]]
    found = []
    for place in now.ranked:
        trial = next((t for t in there if t.ok and t.layout_hash == place.result.hash), None)
        after = None if trial is None else metric.read(trial.result or {})
        before = place.result.value(now.minimise[0])
        if after is not None and before is not None:
            found.append(BeforeAfter(place.result.hash, place.result.name, before, after))
    failed = [t for t in there if t.status == "failed"]
    lost = f" {failed[0].layout_name} has no result there: {failed[0].error}." if failed else ""
    said = held(now, found)
    if said is None:
        if any(t.status in {"pending", "running"} for t in there):
            return []
        return [f"Whether the choice holds beside {other} is not known.{lost}"]
    alone, together = said.shown(metric.unit)
    told = f"{said.mine.name} comes to {together} for both together, and alone to {alone}"
    if said.better is not None:
        value = units.show(said.better.after, metric.unit)
        better = f"{said.better.name} is better with {value} for both"
        return [f"The choice changes beside {other}: {better}; {told}.{lost}"]
    return [f"The choice does not change beside {other}: {said.order}; {told}.{lost}"]


def _measure(trials: Sequence[Trial], like: Trial, condition: str) -> Mapping[str, Any] | None:
    found = (t for t in trials if t.ok and t.layout_hash == like.layout_hash and t.condition == condition)
    return next((t.measure for t in found), None)


def _rows(
    trial: Trial, first: str, other: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[JobBeside]:
    both = trial.measure
    own = {str(d["name"]) for d in _datasets(mine)}
    parts = [
        (first, mine, [d for d in _datasets(both) if d["name"] in own]),
        (other, theirs, [d for d in _datasets(both) if d["name"] not in own]),
    ]
    out = []
    for job, alone, work in parts:
        names_of = {str(d["name"]) for d in work}
        out.append(
            JobBeside(
                trial.layout_name,
                trial.layout_hash,
                job,
                Shared(_ios(_datasets(alone)), _ios(work)),
                Shared(_moved(_datasets(alone)), _moved(work)),
                _latency("sync_latency_ms", alone, names_of, both),
                _latency("read_latency_ms", alone, names_of, both),
                Shared(_model(alone, "modelled_s"), None),
            )
        )
    a, b = out
    out.append(
        JobBeside(
            trial.layout_name,
            trial.layout_hash,
            "both",
            Shared(_sum(a.ios.alone, b.ios.alone), _sum(a.ios.beside, b.ios.beside)),
            Shared(_sum(a.moved.alone, b.moved.alone), _sum(a.moved.beside, b.moved.beside)),
            _pooled("sync_latency_ms", mine, theirs, both),
            _pooled("read_latency_ms", mine, theirs, both),
            Shared(_sum(a.seconds.alone, b.seconds.alone), _model(both, "modelled_s")),
        )
    )
    return out


def _datasets(measure: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(measure.get("by_dataset") or [])


def _ios(datasets: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(d["reads"] + d["writes"] for d in datasets))


def _moved(datasets: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(d["read_bytes"] + d["write_bytes"] + d["zil_bytes"] for d in datasets))


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _model(measure: Mapping[str, Any], key: str) -> float | None:
    value = (measure.get("model") or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _calls(measure: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """Return how many calls there were, and their mean latency in ms."""
    found = (measure.get("model") or {}).get(kind) or {}
    return float(found.get("count") or 0), float(found.get("mean") or 0.0)


def _latency(kind: str, alone: Mapping[str, Any], own: Collection[str], both: Mapping[str, Any]) -> Shared:
    """Return the mean latency of one job's calls, alone and beside the other: those on its ``own`` datasets.

    Results from before the engine told them by dataset have none beside the other.
    """
    count, mean = _calls(alone, kind)
    if not count:
        return Shared(None, None)
    by_dataset = (both.get("model") or {}).get("by_dataset") or []
    found = [(one[kind]["count"], one[kind]["mean"]) for one in by_dataset if one["name"] in own]
    there = sum(n for n, _ in found)
    return Shared(mean, sum(n * each for n, each in found) / there if there else None)


def _pooled(kind: str, a: Mapping[str, Any], b: Mapping[str, Any], both: Mapping[str, Any]) -> Shared:
    (n, x), (m, y) = _calls(a, kind), _calls(b, kind)
    count, mean = _calls(both, kind)
    return Shared((n * x + m * y) / (n + m) if n + m else None, mean if count else None)


FIGURES = (("per_second", "rate"), ("latency_mean", "ms"), ("latency_p99", "ms"), ("seconds", "s"))
"""What trials measure of a job, and its unit; ``seconds``: of a job that does a given amount of work."""


@dataclass(frozen=True)
class MeasuredBeside:
    """One figure of a job on a layout: medians over the blocks alone and beside the other, and how many times
    as much it is beside it, paired within blocks; None without a block that has both, and where it is 0 in
    one. ``together_s``: for how many seconds both ran, the median. ``few_calls``: how many a percentile rests
    on, where these are too few for it to be printed.
    """

    layout: str
    hash: str
    job: str
    figure: str
    unit: str
    alone: float
    beside: float
    ratio: Ratio | None
    together_s: float
    few_calls: int | None = None


def measured(run: Run, trials: Sequence[Trial]) -> list[MeasuredBeside]:
    """Return, for each layout of a measured run with two jobs, what each loses to the other."""
    other = str(run.job.get("beside") or "")
    if not other:
        return []
    first = str(run.job.get("workload", ""))
    called = (f"{first} (1)", f"{other} (2)") if first == other else (first, other)
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.ok:
            by_layout.setdefault(trial.layout_hash, []).append(trial)
    out = []
    for found in by_layout.values():
        both = {t.block: _job(t) for t in found if t.condition == BOTH}
        for name, alone, beside in (
            (called[0], _jobs(found, ""), both),
            (called[1], _jobs(found, NEIGHBOUR), {b: job["details"]["neighbour"] for b, job in both.items()}),
        ):
            out += _figures(found[0], name, alone, beside, both)
    return out


def _job(trial: Trial) -> Mapping[str, Any]:
    return (trial.result or {}).get("job") or {}


def _jobs(trials: Sequence[Trial], condition: str) -> dict[int, Mapping[str, Any]]:
    return {t.block: _job(t) for t in trials if t.condition == condition}


def _figures(
    trial: Trial,
    name: str,
    alone: Mapping[int, Mapping[str, Any]],
    beside: Mapping[int, Mapping[str, Any]],
    both: Mapping[int, Mapping[str, Any]],
) -> list[MeasuredBeside]:
    if not alone or not beside:
        return []
    together = median(float(job["details"]["together_s"]) for job in both.values())
    out: list[MeasuredBeside] = []
    for figure, unit in FIGURES:
        a, b = _values(alone, figure), _values(beside, figure)
        if figure == "seconds" and out and "latency_mean" in {one.figure for one in out}:
            continue  # a load of a given length
        if a and b and (any(a.values()) or any(b.values())):
            nothing = any(not a[k] or not b[k] for k in a.keys() & b.keys())
            ratio = None if nothing else paired(b, a)  # its logarithms would leave such a block out
            out.append(
                MeasuredBeside(
                    trial.layout_name,
                    trial.layout_hash,
                    name,
                    figure,
                    unit,
                    median(a.values()),
                    median(b.values()),
                    ratio,
                    together,
                    _few_calls((*alone.values(), *beside.values()), figure),
                )
            )
    return out


def _few_calls(jobs: Collection[Mapping[str, Any]], figure: str) -> int | None:
    share = latency.share_of(figure.removeprefix("latency_"))
    known = [n for job in jobs if (n := number_at(job, "operations")) is not None]
    return int(min(known)) if share is not None and known and not latency.tells(min(known), share) else None


def _values(jobs: Mapping[int, Mapping[str, Any]], figure: str) -> dict[int, float]:
    out = {}
    for block, job in jobs.items():
        if figure.startswith("latency_"):
            value = (job.get("latency_ms") or {}).get(figure.removeprefix("latency_"))
        else:
            value = job.get(figure)
        # A rate of 0 is that of a job that got nothing done; a duration or a latency of 0 is none.
        if isinstance(value, int | float) and (value > 0 or (value == 0 and figure == "per_second")):
            out[block] = float(value)
    return out
