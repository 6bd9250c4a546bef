"""Rules of thumb for the record size on trial: what each would choose, and how far that is from the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from ztune.analysis.metrics import REPLAYED
from ztune.claims.studies import SWEEP
from ztune.store.records import Run, Trial
from ztune.study import Layout
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.units import format_size, parse_size

METRICS = ("modelled_s", "written", "read")
"""What a choice is judged by, each alone: metrics of a replay of which less is better."""
RULES = {
    "page": "the database's page size",
    "mean": "mean write size",
    "commonest": "commonest write size",
    "files": "median file size",
}
FEWEST = 3
"""Record sizes that make a sweep."""
_NOT_SWEPT = ("wal", "source")
"""Roles that are only appended to or only read: no rule of thumb is about their records."""


@dataclass(frozen=True)
class RoleSizes:
    """What a recording shows of one role, in bytes; None where nobody knows.

    ``commonest``: the least size of the power-of-two bucket with the most writes.
    """

    role: str
    written: int
    page: int | None
    mean: float | None
    commonest: int | None
    files: float | None


@dataclass(frozen=True)
class RecordSizeSweep:
    """Trials of one job that differ in one role's record size alone.

    ``condition``: disks and ARC; ``trials``: record size in bytes → RUN/N; ``values``: metric → record size →
    value; ``chosen``: rule → record size in bytes, of the rules that have one.
    """

    job: str
    workload: str
    sizes: RoleSizes
    condition: str
    trials: Mapping[str, str]
    values: Mapping[str, Mapping[str, float]]
    chosen: Mapping[str, int]

    def best(self, metric: str) -> tuple[int, float]:
        """Return the record size with the least of ``metric``, the smallest of such, and the value."""
        found = self.values[metric]
        size = min(found, key=lambda s: (found[s], int(s)))
        return int(size), found[size]

    def score(self, rule: str, metric: str) -> float | None:
        """Return how many times the best of the sweep the rule's choice has of ``metric``; None where the
        rule has no choice, or its choice was not tried."""
        value = self.values[metric].get(str(self.chosen.get(rule)))
        least = self.best(metric)[1]
        return None if value is None else 1.0 if value == least else value / least if least else math.inf


def role_sizes(trace: Trace) -> dict[str, RoleSizes]:
    """Return what ``trace`` shows of each role. Raises InputError for a damaged trace."""
    from ztune.trace.summary import summarise  # Polars takes a quarter of a second to load

    found = {}
    for group in summarise(trace, files=0).roles:
        if group.role is None:
            continue
        writes = group.writes
        found[group.role] = RoleSizes(
            role=group.role,
            written=writes.bytes,
            page=trace.manifest.page_size.get(group.role),  # type: ignore[call-overload]
            mean=writes.mean if writes.count else None,
            commonest=max(writes.sizes, key=lambda s: (writes.sizes[s], s)) if writes.count else None,
            files=_median_file(trace.manifest.files, group.role),
        )
    return found


def _median_file(files: Iterable[TraceFile], role: str) -> float | None:
    sizes = [max(f.size_start, f.size_end) for f in files if f.role == role and not f.deleted]
    return median(sizes) if sizes else None


def swept_role(sizes: Mapping[str, RoleSizes]) -> str | None:
    """Return the role whose record size is worth a sweep: the one most is written to, logs aside."""
    able = [each for each in sizes.values() if each.role not in _NOT_SWEPT and each.written]
    return max(able, key=lambda each: each.written).role if able else None


def choices(sizes: RoleSizes) -> dict[str, int]:
    """Return rule → the record size that it chooses, bytes: the nearest power of two from 4K to 1M."""
    given = {"page": sizes.page, "mean": sizes.mean, "commonest": sizes.commonest, "files": sizes.files}
    return {rule: _nearest(value) for rule, value in given.items() if value}


def _nearest(size: float) -> int:
    return min(SWEEP[-1], max(SWEEP[0], 1 << round(math.log2(size))))


def sweeps(
    replays: Iterable[tuple[Run, Trial]], sizes: Mapping[str, RoleSizes], job: str, workload: str
) -> list[RecordSizeSweep]:
    """Return the sweeps that ``replays`` hold, all of one recording and one version of the engine."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, tuple[Run, Trial]]] = {}
    for run, trial in replays:
        settings = trial.layout.settings()
        for role in sizes:
            dataset = trial.layout.dataset_of(role)
            if not trial.ok or dataset is None or role in _NOT_SWEPT or not sizes[role].written:
                continue
            key = f"{dataset.key}.recordsize"
            rest = tuple((k, v) for k, v in settings.items() if k != key)
            found.setdefault((role, rest), {}).setdefault(parse_size(settings[key]), (run, trial))
    out = []
    before: dict[tuple[str, str], dict[str, str]] = {}
    for (role, rest), by_size in found.items():
        if len(by_size) < FEWEST:
            continue
        ordered = {str(size): by_size[size] for size in sorted(by_size)}
        values = {
            metric: {size: REPLAYED[metric].read(t.result or {}) for size, (_, t) in ordered.items()}
            for metric in METRICS
        }
        known = {
            metric: {size: value for size, value in of.items() if value is not None}
            for metric, of in values.items()
        }
        if all(len(of) == len(ordered) for of in known.values()):
            where = condition(next(iter(by_size.values()))[1].layout, role)
            # A second sweep under the same condition says what else sets it apart.
            first = before.setdefault((role, where), dict(rest))
            apart = [f"{k}={v}" for k, v in rest if first.get(k) != v]
            cited = {size: f"{run.id}/{trial.number}" for size, (run, trial) in ordered.items()}
            out.append(
                RecordSizeSweep(
                    job=job,
                    workload=workload,
                    sizes=sizes[role],
                    condition=", ".join([where, *apart]),
                    trials=cited,
                    values=known,
                    chosen=choices(sizes[role]),
                )
            )
    return out


def condition(layout: Layout, role: str) -> str:
    """Return the disks that ``role`` lies on, and the ARC."""
    dataset = layout.dataset_of(role)
    disks = "" if dataset is None else layout.pool(dataset.pool).vdev_text("data")
    return f"{disks}, ARC {format_size(layout.arc)}"
