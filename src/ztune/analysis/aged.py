"""What age does to the best layouts: a run's trials of the same layouts on pools with a past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ztune.analysis import units
from ztune.analysis.held import BeforeAfter, held
from ztune.analysis.metrics import table
from ztune.analysis.standing import Standing
from ztune.store.records import Trial
from ztune.study import Layout

BEST = 3
"""How many of the ranked layouts are tried on aged pools, beside the base."""


def young(layout: Layout, like: Layout) -> str:
    """Return the hash of ``layout`` at the age of ``like``."""
    return replace(layout, age=like.age).hash


def tried(now: Standing, trials: Sequence[Trial]) -> list[str]:
    """Return what the pools of the run's results were, in words: the base's own age first.

    A new pool is "new". ``now``: how the layouts stand at the base's own age.
    """
    base = now.found.base_layout
    ages = [None if base is None else base.age, *(t.layout.age for t in trials if t.ok)]
    return ["new" if age is None else _words(age.text(), age.words()) for age in dict.fromkeys(ages)]


def sentences(now: Standing, trials: Sequence[Trial]) -> list[str]:
    """Return one sentence for each age that layouts of the run were tried at beside the base's own.

    It says whether the choice changes with it. ``now``: how they stand at the base's own age.
    """
    base, chosen = now.found.base_layout, now.chosen
    if base is None or chosen is None:
        return []
    ages = list(dict.fromkeys(t.layout.age for t in trials if t.layout.age != base.age))
    out = []
    for age in ages:
        there = [t for t in trials if t.layout.age == age]
        where = "a new pool" if age is None else _named(age.text(), age.words())
        out.append(_sentence(now, base, there, where))
    return [text for text in out if text]


def _named(text: str, words: str) -> str:
    return f"a pool that is {_words(text, words)}" if " " not in text else f"a pool {words}"


def _words(text: str, words: str) -> str:
    return f"{text} ({words})" if " " not in text else words


def _sentence(now: Standing, base: Layout, there: Sequence[Trial], where: str) -> str:
    assert now.chosen is not None
    key = now.minimise[0]
    metric = table("modelled", now.found.per_operation)[key]
    found: list[BeforeAfter] = []
    for place in now.ranked:
        trial = next((t for t in there if young(t.layout, base) == place.result.hash), None)
        value = None if trial is None or not trial.ok else metric.read(trial.result or {})
        before = place.result.value(key)
        if value is not None and before is not None:
            found.append(BeforeAfter(place.result.hash, place.result.name, before, value))
    failed = [t for t in there if t.status == "failed"]
    lost = f" {failed[0].layout_name} has no result there: {failed[0].error}." if failed else ""
    said = held(now, found)
    if said is None:
        return "" if _waits(there) else f"Whether the choice holds on {where} is not known.{lost}"
    young_, old = said.shown(metric.unit)
    told = f"{said.mine.name} comes to {old} there, and without that age to {young_}"
    if said.better is not None:
        better = f"{said.better.name} is better with {units.show(said.better.after, metric.unit)}"
        return f"The choice changes with age: on {where}, {better}; {told}.{lost}"
    return f"The choice does not change with age: on {where}, {said.order}; {told}.{lost}"


def _waits(trials: Sequence[Trial]) -> bool:
    return any(t.status in {"pending", "running"} for t in trials)
