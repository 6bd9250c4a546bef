"""The search on complete grids of real recordings (bench/grids.py): counts of trials, no times."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import search as bench

GRIDS = sorted(bench.DATA.glob("*.json"))
HELD_OUT = [space for space in bench.problems() if space.held_out]


def test_there_are_grids_of_six_databases_and_they_are_small() -> None:
    spaces = [bench.read(file) for file in GRIDS]
    assert len(spaces) >= 6
    assert sum(file.stat().st_size for file in GRIDS) < 1 << 20
    for space in spaces:
        assert len(space.values) >= 81 and space.base in space.values
        assert 1 <= sum(map(space.good, space.values)) < len(space.values)


@pytest.mark.parametrize("space", HELD_OUT, ids=[space.name for space in HELD_OUT])
def test_a_good_layout_is_found_sooner_than_at_random(space: bench.Space) -> None:
    ours = [bench.replayed((space, "ztune", seed)).found for seed in range(5)]
    chance = [bench.replayed((space, "random", seed)).found for seed in range(50)]
    # Where good layouts are many, random finds one as soon.
    assert median(ours) <= max(8, median(chance) / 3)


def test_the_rounds_of_before_begin_with_each_value_alone() -> None:
    space = HELD_OUT[0]
    cells = list(bench.by_rounds(space, 0))
    assert cells[0] == space.start(0) and len(set(cells)) == len(cells)
    alone = sum(axis.size - 1 for axis in space.axes)
    for cell in cells[1 : 1 + alone]:
        assert sum(a != b for a, b in zip(cell, cells[0], strict=True)) == 1


def test_the_score_is_1_for_the_best_and_0_for_what_random_comes_to() -> None:
    space = HELD_OUT[0]
    best = bench.Replayed(space.name, "x", 0, 1, (space.best,))
    assert bench.score(space, [best]) == pytest.approx(1.0)
    draws = [bench.replayed((space, "random", seed)) for seed in range(400)]
    assert bench.score(space, draws) == pytest.approx(0.0, abs=0.2)
