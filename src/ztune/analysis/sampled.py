"""How far the figures of a sample may be from those of all: by samples that have no region in common.

The base and the layout to recommend are replayed with several of the samples that a rate has. What these
differ by says how far one of them is from all, with Student's t, since there are few, and the correction for
a finite population, since all of them together are the whole. On top comes by how much all of them may be off
together (``ALIKE``), which no comparison of samples shows. The larger share of the two layouts counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ztune.analysis import units
from ztune.analysis.intervals import student
from ztune.analysis.metrics import Metric, number_at, table
from ztune.store.records import PART, Run, Trial
from ztune.units import format_size, listed

LEVEL = 0.95
SHOWN = ("modelled_s", "read", "written", "write_ops", "allocated", "zil_bytes")
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
    most, at 95 %; empty where one sample alone was replayed. ``times``: the least and the most modelled time
    of the layout that the screening ended with, over the base's in the same sample; None without it."""

    of: int
    region: int
    samples: int
    within: Mapping[str, float]
    times: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "rate": f"1/{self.of}",
            "region": self.region,
            "samples": self.samples,
            "level": LEVEL,
            "within": dict(self.within),
            "times": self.times,
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
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.ok and (not trial.condition or trial.condition.startswith(PART)):
            by_layout.setdefault(trial.layout_hash, []).append(trial)
    several = [sorted(found, key=lambda t: t.condition) for found in by_layout.values() if len(found) > 1]
    within: dict[str, float] = {}
    for key in SHOWN:
        metric = table("modelled")[key]
        shares = [share for found in several if (share := _share(metric, found, of)) is not None]
        if shares:
            within[key] = max(shares)
    samples = max((len(found) for found in several), default=1)
    return SampleError(of, region, samples, within, _times(several))


def _times(several: Sequence[Sequence[Trial]]) -> tuple[float, float] | None:
    """Return ``SampleError.times`` of the trials of each layout that several samples were replayed of."""
    read = table("modelled")["modelled_s"].read
    base = {t.condition: read(t.result or {}) for found in several for t in found if t.is_baseline}
    ratios = [
        mine / theirs
        for found in several
        for t in found
        if not t.is_baseline
        and (theirs := base.get(t.condition))
        and (mine := read(t.result or {})) is not None
    ]
    return (min(ratios), max(ratios)) if len(ratios) > 1 else None


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
    if found.times is not None:
        least, most = (units.times(one) for one in found.times)
        text += (
            " Sample by sample the layout that the screening ended with has "
            + (least if least == most else f"{least} to {most}")
            + " of the base's modelled time."
        )
    return text
