"""Pairs that differ in one setting, and what they say."""

from __future__ import annotations

import itertools

import evidence as ev
from candidates_made import candidate

from ztune.analysis.candidates import collect
from ztune.analysis.effects import ABSENT, effects, pair_to, pairs, span


def test_pairs_are_exactly_those_that_differ_in_one_setting() -> None:
    found = collect(ev.trials()).candidates
    got = {frozenset((p.a.name, p.b.name)) for p in pairs(found)}
    wanted = {
        frozenset((a.name, b.name))
        for a, b in itertools.combinations(found, 2)
        if sum(a.settings.get(k) != b.settings.get(k) for k in {*a.settings, *b.settings}) == 1
    }
    assert got == wanted
    assert len(pairs(found)) == len(got)  # each once


def test_a_setting_that_one_side_lacks_is_a_difference() -> None:
    with_, without = (
        candidate("with", 2, settings={"a": "1", "tunable.x": "9"}),
        candidate("without", 1, settings={"a": "1"}),
    )
    (pair,) = pairs([with_, without])
    assert (pair.factor, pair.before, pair.after) == ("tunable.x", "9", ABSENT)
    assert pair.ratio("modelled_s") == 0.5
    assert pair.flipped().ratio("modelled_s") == 2.0
    assert (
        pair_to([with_, without], with_, "tunable.x", "5") == pair
    )  # at its default it is not listed at all


def test_effects_are_turned_towards_the_reference() -> None:
    field = [
        candidate("a", 10, settings={"r": "128K", "c": "lz4"}),
        candidate("b", 5, settings={"r": "8K", "c": "lz4"}),
        candidate("c", 20, settings={"r": "128K", "c": "off"}),
        candidate("d", 16, settings={"r": "8K", "c": "off"}),
    ]
    got = {(e.factor, e.after): e for e in effects(pairs(field), {"r": "128K", "c": "lz4"})}
    record = got["r", "8K"]
    assert len(record.pairs) == 2
    time = record.spans["modelled_s"]
    assert (time.low, time.median, time.high) == (0.5, 0.65, 0.8)
    assert (time.low_layout, time.high_layout) == ("b", "d")
    assert record.depends("modelled_s", 0.05)  # an interaction: the effect differs with compression
    assert not record.depends("allocated", 0.05)
    assert got["c", "off"].spans["modelled_s"].low == 2.0


def test_pairs_between_two_other_values_are_left_out() -> None:
    field = [candidate(v, 1.0 + i, settings={"r": v}) for i, v in enumerate(("8K", "16K"))]
    assert effects(pairs(field), {"r": "128K"}) == []


def test_a_weaker_class_is_marked() -> None:
    found = collect(ev.trials()).candidates
    base = next(c for c in found if c.baseline)
    marked = {(e.factor, e.after) for e in effects(pairs(found), base.settings) if e.durability_changes}
    assert ("data.sync", "disabled") in marked
    assert ("data.recordsize", "8K") not in marked


def test_span_without_ratios() -> None:
    a, b = candidate("a", 0, settings={"x": "1"}), candidate("b", 5, settings={"x": "2"})
    assert span(pairs([a, b]), "modelled_s") is None  # from nothing to something has no ratio
    assert span(pairs([a, b]), "allocated") is not None
