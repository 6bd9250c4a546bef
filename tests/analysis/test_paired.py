"""The statistics of measured runs, on synthetic data with known truth."""

from __future__ import annotations

import math
import random

import pytest

from ztune.analysis.intervals import of_mean, student
from ztune.analysis.paired import LEVEL, blocks_needed, paired
from ztune.analysis.resolve import adjusted, decide


def data(
    seed: int, blocks: int, true: float, spread: float, tail: bool = False
) -> tuple[dict[int, float], dict[int, float]]:
    """Two layouts, the second ``true`` times the first; each block shares a disturbance of 10 %."""
    dice = random.Random(seed)
    a: dict[int, float] = {}
    b: dict[int, float] = {}
    for block in range(blocks):
        shared = math.exp(dice.gauss(0, 0.1))
        for out, factor in ((a, 1.0), (b, true)):
            noise = dice.gauss(0, spread)
            if tail and dice.random() < 0.1:  # another tenant, now and then
                noise += abs(dice.gauss(0, 5 * spread))
            out[block] = shared * factor * math.exp(noise)
    return a, b


def test_what_disturbs_a_block_cancels() -> None:
    a = {1: 10.0, 2: 100.0, 3: 1000.0}
    ratio = paired({k: v * 1.2 for k, v in a.items()}, a)
    assert (
        ratio is not None and ratio.mean == pytest.approx(1.2) and ratio.spread == pytest.approx(0, abs=1e-9)
    )
    assert ratio.low == pytest.approx(1.2) == ratio.high and ratio.n == 3


def test_only_common_blocks_count_and_one_block_has_no_interval() -> None:
    assert paired({1: 1.0}, {2: 1.0}) is None
    one = paired({1: 2.0, 2: 3.0}, {1: 1.0, 3: 5.0, 2: 0.0})
    assert one is not None and (one.n, one.mean, one.known) == (1, 2.0, False)
    assert (one.low, one.high) == (0.0, math.inf)


def test_an_interval_that_nobody_can_believe_is_not_shown() -> None:
    wild = paired({1: 1.0, 2: 30.0}, {1: 1.0, 2: 1.0})
    assert wild is not None and wild.known and wild.high > 1e9
    assert wild.text == "×5.48 (not known: 2 blocks)"


def test_three_values_on_one_side_do_not_exclude_zero() -> None:
    low, high = of_mean([0.01, 0.02, 0.05], LEVEL)
    assert low < 0 < high  # it happens by chance one time in four


@pytest.mark.parametrize(("blocks", "tail"), [(3, False), (5, False), (8, False), (5, True)])
def test_one_interval_is_wrong_about_one_time_in_twenty(blocks: int, tail: bool) -> None:
    cases, wrong = 400, 0
    for seed in range(cases):
        a, b = data(seed, blocks, 1.0, 0.03, tail)
        ratio = paired(a, b, seed=seed)
        assert ratio is not None
        wrong += not ratio.low <= 1 <= ratio.high
    # 5 % and three standard errors of 400 cases.
    assert wrong / cases <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / cases)


def ask(a: dict[int, float], b: dict[int, float], least: int, most: int) -> str | None:
    """Ask after each block, as a run does; return who was called worse first, None if nobody."""
    for n in range(least, most + 1):
        values = {"a": {k: a[k] for k in range(n)}, "b": {k: b[k] for k in range(n)}}
        decision = decide(values, resolution=0.02, looks=most - least + 1)
        assert decision is not None
        worse = [o.arm for o in decision.others if o.standing == "worse"]
        if worse:
            return worse[0]
        if decision.verdict == "equal":
            return None
    return None


def test_asking_again_and_again_finds_no_difference_where_there_is_none() -> None:
    cases = 200
    found = sum(ask(*data(seed, 8, 1.0, 0.03), 3, 8) is not None for seed in range(cases))
    assert found / cases <= 0.05


def test_a_difference_of_a_tenth_is_found() -> None:
    cases = 100
    found = [ask(*data(seed, 8, 1.1, 0.03), 3, 8) for seed in range(cases)]
    assert found.count("b") >= 0.9 * cases and found.count("a") == 0


def test_equal_within_the_resolution() -> None:
    values = {x: data(i, 6, 1.0, 0.002)[0] for i, x in enumerate("abc", start=1)}
    shared = values["a"]
    same = {x: {k: shared[k] * (1 + 0.001 * i) for k in shared} for i, x in enumerate("abc")}
    decision = decide(same, resolution=0.02)
    assert decision is not None and decision.verdict == "equal" and decision.needed is None
    assert {o.standing for o in decision.others} == {"equal"}


def test_worse_and_equal_together_are_resolved() -> None:
    base = {k: 1.0 + k / 10 for k in range(4)}
    decision = decide(
        {"a": base, "b": {k: v * 1.001 for k, v in base.items()}, "c": {k: v * 2 for k, v in base.items()}}
    )
    assert decision is not None and decision.verdict == "resolved" and decision.leader == "a"
    assert {o.arm: o.standing for o in decision.others} == {"b": "equal", "c": "worse"}


def test_how_many_more_blocks() -> None:
    # 10 % difference, 8 % spread of ratios: resolved where t · 0.08 / √n < ln 1.1, by hand n = 6.
    ratio = paired(
        {k: 1.1 * math.exp(v) for k, v in enumerate((0.08, -0.08, 0.08, -0.08))}, dict.fromkeys(range(4), 1.0)
    )
    assert ratio is not None
    n = blocks_needed(ratio, 0.02)
    assert n is not None
    half = student(0.975, n - 1) * ratio.spread / math.sqrt(n)
    before = student(0.975, n - 2) * ratio.spread / math.sqrt(n - 1)
    assert half < math.log(ratio.mean) <= before
    # More spread, more blocks; no hope is said as such.
    wide = paired({k: math.exp(v) for k, v in enumerate((3, -3, 3, -3))}, dict.fromkeys(range(4), 1.0))
    assert wide is not None and blocks_needed(wide, 0.02, most=1000) is None


def test_the_level_of_one_answer_pays_for_all_of_them() -> None:
    assert adjusted(1, 1) == 0.95
    assert 1 - adjusted(6, 4) == pytest.approx(0.05 / 24)


def test_nothing_to_compare() -> None:
    assert decide({}) is None and decide({"a": {}}) is None
    assert decide({"a": {1: 1.0}}) is None


def test_of_many_equal_layouts_hardly_any_is_called_worse() -> None:
    cases, wrong = 200, 0
    for seed in range(cases):
        dice = random.Random(seed)
        values = {
            f"layout {i}": {block: math.exp(dice.gauss(0, 0.03)) for block in range(10)} for i in range(10)
        }
        decision = decide(values, resolution=0.0001)
        assert decision is not None
        wrong += any(o.standing == "worse" for o in decision.others)
    # The leader is the least of ten: by the nine comparisons with it alone, one case in eight was wrong.
    assert wrong / cases <= 0.05
