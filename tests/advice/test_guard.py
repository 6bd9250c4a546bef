"""What is never recommended: checksum=off, and what can lose more than is allowed and more than today."""

from __future__ import annotations

from dataclasses import replace

import evidence as ev
import pytest

from ztune.advice import guard
from ztune.advice.recommend import MEANING, promise, recommend
from ztune.errors import InputError
from ztune.study import DurabilityClass, Layout, Objective
from ztune.study.layout import parse_layout, with_settings

BASE = parse_layout(ev.base_layout())
BARE = with_settings(BASE, {"data.checksum": "off"}, "no checksums")
UNSYNCED = with_settings(BASE, {"data.sync": "disabled", "wal.sync": "disabled"}, "unsynced")
NOTHING, LAST, CORRUPT = DurabilityClass.NOTHING, DurabilityClass.LAST_SECONDS, DurabilityClass.CORRUPT


@pytest.mark.parametrize("base", [BASE, BARE, None])
@pytest.mark.parametrize("allowed", list(DurabilityClass))
def test_no_objective_and_no_base_allow_checksum_off(base: Layout | None, allowed: DurabilityClass) -> None:
    with pytest.raises(InputError, match=r"checksum=off on \S+, which ztune never recommends"):
        guard.check(BARE, base, allowed)


def test_what_loses_more_than_allowed_and_than_today_is_refused() -> None:
    for base in (BASE, None):
        with pytest.raises(InputError, match="of durability class last-seconds, weaker than"):
            guard.check(UNSYNCED, base, NOTHING)
    guard.check(UNSYNCED, BASE, LAST)  # the user can live with that
    guard.check(UNSYNCED, UNSYNCED, NOTHING)  # and does so today
    guard.check(BASE, UNSYNCED, NOTHING)


def test_a_base_that_is_exposed_in_direct_io_allows_nothing_else() -> None:
    exposed = replace(with_settings(BASE, {"slog": "nvme"}, "log"), direct=("data",))
    guard.check(exposed, exposed, NOTHING)
    with pytest.raises(InputError, match="of durability class corrupt, weaker than"):
        guard.check(exposed, BASE, NOTHING)
    unsynced = with_settings(exposed, {"data.sync": "disabled", "wal.sync": "disabled"}, "unsynced")
    with pytest.raises(InputError, match="of durability class last-seconds, weaker than"):
        guard.check(unsynced, exposed, NOTHING)


def test_disks_that_ignore_flushes_are_not_recommended() -> None:
    liar = with_settings(BASE, {"pool.tank.data": "raid-ignores-flushes"}, "cached")
    with pytest.raises(InputError, match=r"class corrupt, weaker .*raid-ignores-flushes\) ignore flushes"):
        guard.check(liar, BASE, LAST)
    assert promise(liar, None) == MEANING[CORRUPT]
    log = with_settings(BASE, {"slog": "raid-ignores-flushes"}, "fast log")
    with pytest.raises(InputError, match="of durability class last-seconds, weaker than"):
        guard.check(log, BASE, NOTHING)


def test_nothing_is_promised_of_disks_that_nobody_declared() -> None:
    ours = replace(BASE, disks={"hdd-7200": "not-known"})
    said = promise(ours, None)
    assert said.startswith("By its settings a power cut loses nothing")
    assert said.endswith("but nobody has declared that the disks of hdd-7200 keep what is flushed.")
    guard.check(ours, ours, NOTHING)  # the settings are as good as they were
    unsynced = promise(replace(UNSYNCED, disks={"hdd-7200": "not-known"}), None)
    assert "can lose the last seconds" in unsynced and "hdd-7200 may not." in unsynced
    for cache in ("volatile", "protected", "none"):
        assert promise(replace(BASE, disks={"hdd-7200": cache}), None) == MEANING[NOTHING]


def test_what_nobody_declared_is_no_match_for_the_base() -> None:
    odd = with_settings(BASE, {"database.made_up": "on"}, "odd")
    with pytest.raises(InputError, match="made_up=on: nobody has declared"):
        guard.check(odd, BASE, CORRUPT)


def test_an_objective_that_allows_anything_gets_the_best_layout_with_checksums() -> None:
    """Its class alone would have let the layout without checksums into the ranking, in the first place."""
    run = ev.run(Objective(durability=CORRUPT))
    measures = {"base": 9.0, "no checksums": 1.0, "unsynced": 5.0}
    trials = []
    for i, layout in enumerate((BASE, BARE, UNSYNCED), start=1):
        measure = ev.toy_measure(layout)
        measure["model"] = {**measure["model"], "modelled_s": measures[layout.name]}
        trials.append(ev.trial(layout, i, measure, baseline=layout is BASE))
    found = recommend(run, trials)
    assert found.layout_name == "unsynced"
    assert [row.layout for row in found.set_apart] == ["no checksums"]
