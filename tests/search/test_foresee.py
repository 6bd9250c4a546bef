"""The model that real trials follow a screening by: what it learns, and how sure it is."""

from __future__ import annotations

import itertools
import math

import pytest

from ztune.search.follow import Foreseen, foresee
from ztune.search.space import SearchAxis

AXES = (SearchAxis("records", 4, (3.0, 4.0, 5.0, 7.0)), SearchAxis("compression", 2))
CELLS = {f"{i}{j}": (i, j) for i, j in itertools.product(range(4), range(2))}
BASE = "30"
TOLD = {"00": 0.5, "10": 0.55, "20": 0.7, "30": 1.0, "01": 0.4, "11": 0.44, "21": 0.56, "31": 0.8}


def ahead(measured: dict[str, dict[int, float]] | None = None, **more: object) -> Foreseen:
    options = {"reference": BASE, "gain": math.log(1.02), "seed": 1, **more}
    logs = {name: math.log(told) for name, told in TOLD.items()}
    values = {
        name: {b: math.log(value) for b, value in row.items()} for name, row in (measured or {}).items()
    }
    return foresee(AXES, CELLS, logs, values, **options)  # type: ignore[arg-type]


def test_without_a_measure_the_prior_has_the_order() -> None:
    now = ahead()
    assert now.order[:2] == ("01", "11") and now.order[-1] == "31" and BASE not in now.order
    assert now.mean["00"] == pytest.approx(math.log(0.5), abs=0.01) and now.mean[BASE] == 0.0


def test_what_was_foretold_and_measured_is_believed() -> None:
    now = ahead({BASE: {1: 2.0, 2: 2.2, 3: 2.1}, "01": {1: 0.8, 2: 0.88, 3: 0.84}})
    assert now.mean["01"] == pytest.approx(math.log(0.4), abs=0.02)
    assert now.chance < ahead({BASE: {1: 2.0}, "01": {1: 0.8}}).chance


def test_the_cost_of_one_setting_is_carried_to_all_that_have_it() -> None:
    now = ahead({BASE: {1: 1.0, 2: 1.0}, "01": {1: 0.7, 2: 0.7}})
    assert now.order[0] == "00"
    without = ahead()
    more = {name: now.mean[name] - without.mean[name] for name in CELLS}
    assert more["11"] > more["10"] + 0.05 and more["21"] > more["20"] + 0.05


def test_a_slow_block_says_nothing_of_its_layouts() -> None:
    now = ahead({BASE: {1: 1.0, 2: 3.0}, "01": {1: 0.4, 2: 1.2}})
    assert now.mean["01"] == pytest.approx(math.log(0.4), abs=0.03)
    # One that ran in the slow block alone is compared within it.
    late = ahead({BASE: {1: 1.0, 2: 3.0}, "01": {1: 0.4}, "00": {2: 1.5}})
    assert late.mean["00"] == pytest.approx(math.log(0.5), abs=0.05)


def test_noise_leaves_more_open() -> None:
    def chance(spread: float) -> float:
        row = {b: 0.4 * (1 + spread * (-1) ** b) for b in range(1, 5)}
        return ahead({BASE: dict.fromkeys(row, 1.0), "01": row}).chance

    assert chance(0.001) < chance(0.2)


def test_nothing_is_left_when_all_were_measured() -> None:
    now = ahead({name: {1: told} for name, told in TOLD.items()})
    assert now.order == () and now.chance == 0.0


def test_the_same_measures_give_the_same_answer_in_any_order() -> None:
    rows = {BASE: {1: 1.0, 2: 1.1}, "01": {1: 0.4, 2: 0.43}, "00": {2: 0.5}}
    turned = {name: dict(reversed(list(row.items()))) for name, row in reversed(list(rows.items()))}
    assert ahead(rows) == ahead(turned)
    assert ahead(rows, seed=2).mean == ahead(rows).mean


def test_unordered_and_constant_axes_go_together() -> None:
    axes = (*AXES, SearchAxis("fixed", 1))
    cells = {name: (*cell, 0) for name, cell in CELLS.items()}
    logs = {name: math.log(told) for name, told in TOLD.items()}
    now = foresee(axes, cells, logs, {}, reference=BASE, gain=0.02, seed=1)
    assert now.order == ahead().order


def test_two_layouts_without_a_difference_in_their_settings() -> None:
    cells = {"a": (0,), "b": (0,)}
    now = foresee([SearchAxis("one", 1)], cells, {"a": 0.0, "b": 0.0}, {}, reference="a", gain=0.02, seed=1)
    assert now.order == ("b",) and 0 <= now.chance <= 1
