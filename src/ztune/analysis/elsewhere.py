"""How far a choice carries: whether it is as good with other processors and another ARC.

TUNA (EuroSys '25) found that up to 63 % of the settings that tuners call best lose 30 % and more on another
machine. So the base, the layout to recommend and the runner-up are replayed with half and twice the ARC. With
other processors nothing is replayed again: what ZFS's work takes of them is known, and what else the recorded
host did, and is shared by more or fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ztune.analysis import units
from ztune.analysis.held import BeforeAfter, Held, held
from ztune.analysis.metrics import table
from ztune.analysis.standing import Standing
from ztune.store.records import HALF_ARC, TWICE_ARC, Trial
from ztune.units import listed

AMONG = 3
"""How many layouts are tried: the base, the one to recommend, and the best beside these."""
HALF_CORES, TWICE_CORES = "half the processors", "twice the processors"
_TIME = "modelled_s"


@dataclass(frozen=True)
class Elsewhere:
    """A layout's figure of the first metric to minimise under a condition: ``before`` as it is ranked,
    ``after`` there; None where it has no result there, and ``why``."""

    condition: str
    layout: str
    hash: str
    before: float
    after: float | None
    unit: str
    why: str = ""


def rows(now: Standing, trials: Sequence[Trial]) -> list[Elsewhere]:
    """Return what the layouts that were tried elsewhere come to there; nothing where none was."""
    return [row for _, found in _found(now, trials) for row in found]


def sentence(now: Standing, trials: Sequence[Trial]) -> str:
    """Return with what the choice is as good and with what not, as a sentence; "" where nothing was tried."""
    if now.chosen is None:
        return ""
    yes: list[str] = []
    no: list[str] = []
    unknown: list[str] = []
    for condition, found in _found(now, trials):
        known = [(one, one.after) for one in found if one.after is not None]
        said = held(now, [BeforeAfter(one.hash, one.layout, one.before, after) for one, after in known])
        if said is None or (said.better is None and len(known) < len(found)):
            unknown.append(condition)  # a rival without a result there may be the better one
        elif said.better is None:
            yes.append(condition)
        else:
            no.append(f"{condition}, where {_better(said)}")
    # What speaks against it comes first: the first screen has room for little.
    parts = [*(f"not the choice with {text}" for text in no)]
    parts.append(f"not known with {listed(unknown)}" if unknown else "")
    parts.append(f"the choice with {listed(yes)} too" if yes else "")
    text = "; ".join(filter(None, parts))
    return units.sentence(text) if text else ""


def _better(said: Held) -> str:
    assert said.better is not None
    share = 100 * (1 - said.better.after / said.mine.after)
    return f"{said.better.name} is better by {share:.0f} %"


def _found(now: Standing, trials: Sequence[Trial]) -> Iterator[tuple[str, list[Elsewhere]]]:
    """Give each condition with what is known there."""
    key = now.minimise[0] if now.minimise else ""
    there = [t for t in trials if t.condition in (HALF_ARC, TWICE_ARC)]
    tried = {t.layout_hash for t in there}
    places = [p.result for p in now.ranked if p.result.hash in tried]
    if not key or not places or any(t.status in {"pending", "running"} for t in there):
        return
    metric = table("modelled", now.found.per_operation)[key]
    for condition in (HALF_ARC, TWICE_ARC):
        by_hash = {t.layout_hash: t for t in there if t.condition == condition}
        if not by_hash:
            continue
        found: list[Elsewhere] = []
        for one in places:
            trial = by_hash.get(one.hash)
            after = metric.read(trial.result or {}) if trial is not None and trial.ok else None
            if (before := one.value(key)) is not None:
                why = "" if after is not None else "it was not tried" if trial is None else trial.error or ""
                found.append(Elsewhere(condition, one.name, one.hash, before, after, metric.unit, why))
        yield condition, found
    if key != _TIME or now.found.several:
        return  # no other figure of a replay has to do with processors
    for condition, times in ((HALF_CORES, 2.0), (TWICE_CORES, 0.5)):
        found = [
            Elsewhere(condition, one.name, one.hash, before, after, metric.unit)
            for one in places
            if (before := one.value(key)) is not None and (after := _on_cores(one.measure, times)) is not None
        ]
        if found:
            yield condition, found


def _on_cores(measure: Any, times: float) -> float | None:
    """Return the modelled seconds where each processor has ``times`` as much to do, or those of all the
    host's work where that no longer goes into the recorded time; None where it is not known what ZFS's work
    took, or there is but one to halve."""
    model = measure.get("model") or {}
    host = (measure.get("processor") or {}).get("host") or {}
    disks, cpu = model.get("disks_s"), model.get("processor_s")
    if disks is None or cpu is None or (times > 1 and int(host.get("cores") or 1) < 2):
        return None
    recorded, share = (float(model.get(key) or 0.0) for key in ("trace_s", "host_busy"))
    all_ = share * times * recorded
    return max(float(disks), float(cpu) * times, all_ if all_ > recorded else 0.0)
