from __future__ import annotations

import math
from dataclasses import replace

import evidence as ev
import numpy as np
import pytest

from ztune.analysis.sampled import ALIKE, ROWS, SHOWN, alike, error, half_width, of_ratios, sentence
from ztune.store.records import Trial
from ztune.study import Layout


def test_one_sample_says_nothing_of_how_far_off_it_is() -> None:
    assert math.isnan(half_width([3.0], 8))


def test_all_samples_are_the_whole() -> None:
    assert half_width([1.0, 2.0, 4.0], 1) == 0.0


def test_what_is_off_in_each_sample_alike_is_in_the_interval() -> None:
    values = [102.0, 102.1, 101.9, 102.0]  # of 100
    assert half_width(values, 4) < 2.0
    assert half_width(values, 4, alike("modelled_s", 4)) >= 2.0
    assert alike("modelled_s", 1) == 0.0
    assert alike("modelled_s", 16) == 2 * alike("modelled_s", 4)
    assert set(ALIKE) == set(SHOWN)
    # Commits meet in other numbers in a sample of any rate, and not where all is replayed.
    assert alike("zil_bytes", 1) == 0.0
    assert alike("zil_bytes", 16) - alike("zil_bytes", 4) == pytest.approx(2 * ALIKE["zil_bytes"])
    assert alike("zil_bytes", 2) > ALIKE["zil_bytes"]


@pytest.mark.parametrize("of", [8, 32])
def test_the_interval_covers_the_whole_in_nineteen_of_twenty_cases(of: int) -> None:
    rng, covered, times = np.random.default_rng(1), 0, 2000
    for _ in range(times):
        regions = rng.gamma(2.0, 1.0, 50 * of)
        parts = regions.reshape(of, -1).sum(axis=1) * of
        covered += abs(parts[0] - parts.mean()) <= half_width(parts[:4].tolist(), of)
    assert 0.93 <= covered / times <= 0.995


def test_the_choice_is_held_against_the_base_sample_by_sample() -> None:
    base, other = ev.layouts()[:2]

    def of(layout: Layout, condition: str, seconds: float) -> Trial:
        # As they are stored: the other parts of the base are no baseline of the ranking.
        own = layout is base and not condition
        space = {"allocated": 1000 * seconds * (2 if layout is base else 1)}
        made = ev.trial(layout, 1, {"model": {"modelled_s": seconds}, "space": space}, baseline=own)
        return replace(made, target=f"replay, {condition}" if condition else "replay")

    run = ev.run(options={"sample": 4, "region": 1 << 20})
    mine = [of(base, "", 10.0), of(base, "part 1", 20.0), of(other, "", 5.0), of(other, "part 1", 12.0)]
    found = error(run, mine)
    assert found is not None and found.times == (0.5, 0.6)
    said = "the layout that the screening ended with, over the base, has ×0.50 to ×0.60 of its modelled time"
    assert f"{said} and ×0.25 to ×0.30 of its space." in sentence(run, mine)
    alone = error(run, mine[:2])
    assert alone is not None and alone.times is None


def test_the_ratio_of_two_layouts_is_known_as_well_as_it_is_the_same_in_each_sample() -> None:
    """A LevelDB at 1/2: how much there is of each kind of record differs, not what a layout makes of it."""
    base, other = ev.layouts()[:2]

    def of(layout: Layout, condition: str, space: float) -> Trial:
        measure = {"model": {"modelled_s": 5.0}, "space": {"allocated": space}}
        made = ev.trial(layout, 1, measure, baseline=layout is base and not condition)
        return replace(made, target=f"replay, {condition}" if condition else "replay")

    run = ev.run(options={"sample": 2, "region": 1 << 20})
    trials = [of(base, "", 34.0), of(base, "part 1", 24.8), of(other, "", 31.4), of(other, "part 1", 23.0)]
    found, whole = of_ratios(run, trials), error(run, trials)
    assert whole is not None and whole.within["allocated"] > 1.5
    assert found["allocated"] < 0.04
    assert of_ratios(ev.run(), trials) == {} == of_ratios(run, trials[:1]) == of_ratios(run, trials[:2])


@pytest.mark.parametrize(("share", "known"), [(0.09, True), (0.1, False), (None, True)])
def test_rows_by_an_index_leave_modelled_time_without_an_interval(share: float | None, known: bool) -> None:
    measure = {"model": {"modelled_s": 5.0}, "space": {"allocated": 100.0}}
    first = ev.trial(ev.layouts()[0], 1, measure, baseline=True)
    trials = [first, replace(first, is_baseline=False, target="replay, part 1")]
    run = ev.run(options={"sample": 4, "region": 1 << 20}, outcome={} if share is None else {ROWS: share})
    found = error(run, trials)
    assert found is not None and found.rows is not known and "allocated" in found.within
    assert ("modelled_s" in found.within) is known
    assert sentence(run, trials).startswith("1/4 of the data" if known else "Modelled time is up to 3 times")
    assert found.to_json()["rows_by_index"] is not known
