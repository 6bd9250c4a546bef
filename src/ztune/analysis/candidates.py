"""From a run's trials to one entry per layout: repeats become medians, the incomparable is set apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ztune.analysis.metrics import METRICS, extract
from ztune.analysis.stats import Estimate, estimate
from ztune.store.records import Trial
from ztune.study import DurabilityClass, Layout
from ztune.study.durability import Judgement


@dataclass(frozen=True)
class Candidate:
    """One layout with all its finished trials.

    ``measure`` is that of the trial whose modelled time is the median (the first, for one replay): the place
    for detail that is not a metric, such as space by dataset.
    """

    name: str
    hash: str
    layout: Layout
    settings: Mapping[str, str]
    durability: DurabilityClass
    durability_reasons: tuple[str, ...]
    baseline: bool
    trials: tuple[int, ...]  # their numbers in the run
    estimates: Mapping[str, Estimate]
    measure: Mapping[str, Any] = field(repr=False)
    warnings: tuple[str, ...] = ()

    @cached_property
    def judged(self) -> Judgement:
        """What a power cut may lose, and what of that is not known."""
        return self.layout.judged()

    def value(self, metric: str) -> float | None:
        """Return the median of ``metric``, in its unit, or None where the engine didn't report it."""
        found = self.estimates.get(metric)
        return None if found is None else found.median


@dataclass(frozen=True)
class Failed:
    """A layout that has no result to compare, and why."""

    name: str
    hash: str
    trials: tuple[int, ...]
    reason: str
    baseline: bool = False


@dataclass(frozen=True)
class Collected:
    """The trials of one run, sorted into what can be compared and what can't."""

    candidates: tuple[Candidate, ...]
    failed: tuple[Failed, ...]
    pending: int  # trials that have not run yet
    engine: str  # the one engine version that the candidates share
    openzfs: str

    @property
    def baseline(self) -> Candidate | None:
        """The baseline's candidate, if it finished."""
        return next((c for c in self.candidates if c.baseline), None)


def collect(trials: Iterable[Trial]) -> Collected:
    """Group ``trials`` by layout. Results of different engine or OpenZFS versions are never mixed.

    Where versions differ, the pair of versions with the most finished trials is kept (the later one in the
    list where equal); layouts that only others ran are listed as failed with that reason.
    """
    everything = list(trials)
    finished = [t for t in everything if t.status == "ok"]
    versions = Counter((t.engine_version or "", t.openzfs_version or "") for t in finished)
    latest = {(t.engine_version or "", t.openzfs_version or ""): i for i, t in enumerate(finished)}
    keep = max(versions, key=lambda v: (versions[v], latest[v]), default=("", ""))

    groups: dict[str, list[Trial]] = defaultdict(list)
    for trial in everything:
        groups[trial.layout_hash].append(trial)
    candidates: list[Candidate] = []
    failed: list[Failed] = []
    pending = 0
    for group in groups.values():
        pending += sum(t.status in {"pending", "running"} for t in group)
        good = [
            t for t in group if t.status == "ok" and (t.engine_version or "", t.openzfs_version or "") == keep
        ]
        if good and extract(good[0].measure, "modelled_s") is not None:
            candidates.append(_candidate(good, baseline=any(t.is_baseline for t in group)))
            continue
        reason = _why_not(group, keep)
        if reason:
            first = group[0]
            failed.append(
                Failed(
                    first.layout_name,
                    first.layout_hash,
                    tuple(t.number for t in group if t.status not in {"pending", "running"}),
                    reason,
                    any(t.is_baseline for t in group),
                )
            )
    return Collected(tuple(candidates), tuple(failed), pending, *keep)


def _why_not(group: Sequence[Trial], keep: tuple[str, str]) -> str:
    """Return why a group without comparable results has none; empty if it merely has not run yet."""
    for trial in group:
        if trial.status == "failed":
            return trial.error or "it failed without a message"
    for trial in group:
        if trial.status == "ok":
            version = (trial.engine_version or "?", trial.openzfs_version or "?")
            if version != keep:
                return (
                    f"it was replayed by engine {version[0]} (OpenZFS {version[1]}), the others by "
                    f"{keep[0]} (OpenZFS {keep[1]}); screen it again to compare it"
                )
            return "the engine reported no modelled time"
    return ""


def _candidate(trials: Sequence[Trial], baseline: bool) -> Candidate:
    estimates: dict[str, Estimate] = {}
    for key in METRICS:
        values = [v for t in trials if (v := extract(t.measure, key)) is not None]
        if values:
            estimates[key] = estimate(values)
    middle = sorted(trials, key=lambda t: extract(t.measure, "modelled_s") or 0.0)[(len(trials) - 1) // 2]
    layout = trials[0].layout
    warnings: dict[str, None] = {}
    for trial in trials:
        for text in trial.warnings:
            warnings[str(text)] = None
    return Candidate(
        name=trials[0].layout_name,
        hash=trials[0].layout_hash,
        layout=layout,
        settings=layout.settings(),
        durability=layout.durability(),
        durability_reasons=tuple(layout.durability_reasons()),
        baseline=baseline,
        trials=tuple(t.number for t in trials),
        estimates=estimates,
        measure=middle.measure,
        warnings=tuple(warnings),
    )
