"""How far the figures of a sample may be from those of all: by samples that have no region in common.

The base and the layout to recommend are replayed with several of the samples that a rate has. What these
differ by says how far one of them is from all, with Student's t, since there are few, and the correction for
a finite population, since all of them together are the whole. On top comes by how much all of them may be off
together (``ALIKE``), which no comparison of samples shows. The larger share of the two layouts counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from ztune.analysis import units
from ztune.analysis.intervals import student
from ztune.analysis.metrics import Metric, number_at, table
from ztune.store.records import PART, Run, Trial
from ztune.units import format_size, listed

LEVEL = 0.95
SHOWN = ("modelled_s", "read", "written", "write_ops", "allocated", "zil_bytes")
_COMPARED = ("modelled_s", "written", "allocated")
ROWS = "rows_by_index"
"""Where the outcome of a run of a sample, on hard disks, keeps to which share of its reads one was asked for
ahead (posix_fadvise): rows by an index, in the order of the table."""
ROWS_COUNT = 0.1
"""From that share on modelled time has no interval: where all reads were such the disk was 1.4 to 2.7 times
as busy in samples, in all of them alike (docs/accuracy.md, Rows of a table by an index)."""
NEXT_TO_NOTHING = 0.001
"""Of the largest figure of its unit: one that is smaller has no share worth saying."""
ALIKE = {
    "modelled_s": 0.03, "read": 0.01, "written": 0.02, "write_ops": 0.03, "allocated": 0.02,
    "zil_bytes": 0.02,
}  # fmt: skip
"""Metric → by which share of it samples may be off together, for each halving of the rate: how blocks are put
together to writes depends on how long the runs of them are. Chosen on bench/sampling.py's recordings at 1/4
(docs/accuracy.md), and of bytes read on a made-up terabyte at 1/128 (docs/sampling.md)."""
OF_COMMITS = {"written": 0.03, "write_ops": 0.03, "zil_bytes": 0.04}
"""Metric → by which share of it samples of any rate may be off together besides: commits meet in other
numbers where a thread makes some of its calls only. Chosen on RocksDB's 8 GB at 1/2, which writes little but
its log (docs/accuracy.md)."""


@dataclass(frozen=True)
class SampleError:
    """What of a run was sampled. ``within``: metric → the share of the figure by which one sample is off at
    most, at 95 %; empty where one sample alone was replayed. ``ratios``: metric → the least and the most of
    the layout that the screening ended with, over the base's in the same sample; empty without it.
    ``rows``: whether rows by an index make a hard disk too busy."""

    of: int
    region: int
    samples: int
    within: Mapping[str, float]
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rows: bool = False

    @property
    def times(self) -> tuple[float, float] | None:
        """The ``ratios`` of the modelled time; None without them."""
        return self.ratios.get("modelled_s")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "rate": f"1/{self.of}",
            "region": self.region,
            "samples": self.samples,
            "level": LEVEL,
            "within": dict(self.within),
            "times": self.times,
            "ratios": dict(self.ratios),
            "rows_by_index": self.rows,
        }


def half_width(values: Sequence[float], of: int, alike: float = 0.0) -> float:
    """Return by how much the first of ``values``, each of another of ``of`` samples, may be off at 95 %;
    NaN for fewer than two. ``alike``: by which share all samples may be off together."""
    if len(values) < 2:
        return math.nan
    t = student((1 + LEVEL) / 2, len(values) - 1)
    # Of all samples: what is not in the first is what makes it wrong.
    return t * stdev(values) * math.sqrt(1 - 1 / of) + alike * abs(fmean(values))


def alike(key: str, of: int) -> float:
    """Return by which share of the metric ``key`` the samples of 1/``of`` may be off together."""
    return ALIKE.get(key, 0.0) * math.log2(of) + (OF_COMMITS.get(key, 0.0) if of > 1 else 0.0)


def error(run: Run, trials: Sequence[Trial]) -> SampleError | None:
    """Return what was sampled and how far off it may be; None where all was replayed."""
    of, region = run.options.get("sample") or 1, run.options.get("region") or 0
    if of == 1:
        return None
    several = _several(trials)
    within: dict[str, float] = {}
    for key in SHOWN:
        metric = table("modelled")[key]
        shares = [share for found in several if (share := _share(metric, found, of)) is not None]
        if shares:
            within[key] = max(shares)
    rows = (run.outcome.get(ROWS) or 0.0) >= ROWS_COUNT
    if rows:
        within.pop("modelled_s", None)
    samples = max((len(found) for found in several), default=1)
    ratios = {key: (min(by), max(by)) for key in SHOWN if len(by := _ratios(key, trials)) > 1}
    return SampleError(of, region, samples, within, ratios, rows)


def of_ratios(run: Run, trials: Sequence[Trial]) -> dict[str, float]:
    """Return by which share of it one layout's figure over another's may be off at 95 %, by metric; empty
    where all was replayed, or one sample alone.

    Of a sample that has too few of the large records, every layout's space is too little. So their ratio is
    known much better than the figures themselves: it is told by what it was in each of several samples.
    """
    of = run.options.get("sample") or 1
    found = {key: by for key in SHOWN if of > 1 and len(by := _ratios(key, trials)) > 1}
    return {key: half_width(by, of) / fmean(by) for key, by in found.items()}


def _several(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials of each layout that several samples were replayed of, sample by sample."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.ok and (not trial.condition or trial.condition.startswith(PART)):
            by_layout.setdefault(trial.layout_hash, []).append(trial)
    return [sorted(found, key=lambda t: t.condition) for found in by_layout.values() if len(found) > 1]


def _ratios(key: str, trials: Sequence[Trial]) -> list[float]:
    """Return, sample by sample, a metric of the layout that several samples were replayed of, over the base's
    in the same sample; nothing without it."""
    read = table("modelled")[key].read
    base = next((t.layout_hash for t in trials if t.is_baseline), None)
    several = _several(trials)
    theirs = {t.condition: read(t.result or {}) for found in several for t in found if t.layout_hash == base}
    return [
        mine / other
        for found in several
        for t in found
        if t.layout_hash != base and (other := theirs.get(t.condition)) and (mine := read(t.result or {}))
    ]


def _share(metric: Metric, trials: Sequence[Trial], of: int) -> float | None:
    values = [v for t in trials if (v := metric.read(t.result or {})) is not None]
    mean = fmean(values) if values else 0.0
    if len(values) < 2 or mean <= 0:
        return None
    if metric.unit == "bytes":
        moved = number_at(trials[0].result or {}, "measure", "physical", "write_bytes") or 0.0
        moved += number_at(trials[0].result or {}, "measure", "physical", "read_bytes") or 0.0
        if mean < NEXT_TO_NOTHING * moved:
            return None
    return half_width(values, of, alike(metric.key, of)) / mean


def sentence(run: Run, trials: Sequence[Trial]) -> str:
    """Return what was sampled and how far figures may be off, in a sentence or two; "" where all was."""
    found = error(run, trials)
    if found is None:
        return ""
    what = f"1/{found.of} of the data is replayed"
    if found.rows:
        what = (
            "Modelled time is up to 3 times too long: in a sample a hard disk seeks too far for rows that "
            f"are read by an index; --sample 1/1 replays all. {what}"
        )
    how = (
        f"A sample has one region of {format_size(found.region)} in {found.of}, more of a role that has few, "
        "and each that stands out, with that part of the ARC; of the logs it has every call."
    )
    if not found.within:
        what += ", and no other sample of it, so how far off figures may be is not known" if trials else ""
        return f"{what}. {how}"
    metrics = table("modelled")
    shares = [f"{metrics[key].label} ±{max(100 * share, 0.1):.1f} %" for key, share in found.within.items()]
    text = (
        f"{what}: {listed(shares)}. Judged by {found.samples} samples that have no other region in common, "
        f"{100 * LEVEL:.0f} % of such figures are so near to what all would give. {how}"
    )
    said = [
        f"{least if least == most else f'{least} to {most}'} of its {metrics[key].label}"
        for key in _COMPARED
        if key in found.ratios
        for least, most in [tuple(map(units.times, found.ratios[key]))]
    ]
    if said:
        text += (
            f" Sample by sample the layout that the screening ended with, over the base, has {listed(said)}."
        )
    return text
