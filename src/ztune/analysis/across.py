"""One recording on the same layouts under several versions of OpenZFS, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ztune.analysis.metrics import REPLAYED
from ztune.store.db import Store
from ztune.store.records import Run, Trial

COMPARED = ("modelled_s", "read_ops", "write_ops", "read", "written", "allocated")


@dataclass(frozen=True)
class LayoutAcross:
    """One layout. ``values``: version → metric → value; of versions in which it failed: ``failed``, why."""

    name: str
    hash: str
    baseline: bool
    values: Mapping[str, Mapping[str, float]]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class VersionChange:
    """What a version makes of a metric, as ratios to the first version: of the middle layout, the least, the
    most, and how many layouts these are."""

    median: float
    low: float
    high: float
    layouts: int


@dataclass(frozen=True)
class Across:
    """``versions``: of OpenZFS, the one first that the others are compared with. ``runs``: their ids."""

    versions: tuple[str, ...]
    runs: tuple[str, ...]
    layouts: tuple[LayoutAcross, ...]

    def ratio(self, layout: LayoutAcross, version: str, metric: str) -> float | None:
        """Return a layout's metric in ``version`` over that in the first one; None where one is unknown."""
        before = layout.values.get(self.versions[0], {}).get(metric)
        after = layout.values.get(version, {}).get(metric)
        if before is None or after is None:
            return None
        if before == 0:
            return 1.0 if after == 0 else None
        return after / before

    def change(self, version: str, metric: str) -> VersionChange | None:
        """Return what ``version`` makes of ``metric`` over all layouts; None where none can be compared."""
        ratios = [r for one in self.layouts if (r := self.ratio(one, version, metric)) is not None]
        return VersionChange(median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None


def family(store: Store, run: Run) -> list[Run]:
    """Return the runs of a screening, one for each version of OpenZFS that it was made with, the first first.

    A run that has no others beside it is alone in the list.
    """
    if run.measured:
        return [run]
    first = run if run.source_run is None else store.run(run.source_run)
    return [first, *(r for r in store.runs() if r.source_run == first.id and not r.measured)]


def across(runs: Sequence[tuple[Run, Sequence[Trial]]]) -> Across:
    """Set the runs of one recording side by side, each with its own version of OpenZFS, the first first.

    Layouts come in the order of the first run. A run that was made again with the same version counts once:
    the last.
    """
    runs = [(run, [t for t in trials if not t.condition]) for run, trials in runs]
    by_version = {run.versions["openzfs"]: (run, {t.layout_hash: t for t in trials}) for run, trials in runs}
    layouts = []
    for first in runs[0][1]:
        trials = {v: t for v, (_, found) in by_version.items() if (t := found.get(first.layout_hash))}
        layouts.append(
            LayoutAcross(
                first.layout_name,
                first.layout_hash,
                first.is_baseline,
                {version: _values(trial) for version, trial in trials.items() if trial.ok},
                {version: _why(trial) for version, trial in trials.items() if not trial.ok},
            )
        )
    return Across(tuple(by_version), tuple(run.id for run, _ in by_version.values()), tuple(layouts))


def _values(trial: Trial) -> dict[str, float]:
    read = {key: REPLAYED[key].read(trial.result or {}) for key in COMPARED}
    return {key: value for key, value in read.items() if value is not None}


def _why(trial: Trial) -> str:
    return trial.error or f"it is {trial.status}"
