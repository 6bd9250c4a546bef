"""The search on spaces that are known in full. Counts of trials, no times."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Mapping
from statistics import median

import pytest

from ztune.search.propose import STARTS, Proposal, plainer, propose
from ztune.search.space import Cell, SearchAxis, SearchSpace

SIZES = SearchAxis("size", 6, (12.0, 13.0, 14.0, 15.0, 16.0, 17.0))
KINDS = SearchAxis("kind", 3)
BIAS = SearchAxis("bias", 2)


def bowl(cell: Cell) -> float:
    """Least at size 2, kind 1, bias 1; size and bias depend on each other."""
    size, kind, bias = cell[:3]
    return 0.3 * abs(size - 2) + (0.0, -0.2, 0.1)[kind] + (0.0, -0.1)[bias] * (size < 4)


def search(
    space: SearchSpace,
    values: Mapping[Cell, float | None],
    seed: int,
    count: int = 1,
    most: int = 200,
    start: Cell = (5, 1, 0),
) -> list[tuple[Proposal, dict[Cell, float | None]]]:
    """Search until nothing is left or ``most`` were tried; return each proposal with what was known then."""
    tried: dict[Cell, float | None] = {}
    steps = []
    while len(tried) < most:
        found = propose(space, tried, count, seed=seed, tolerance=0.03, start=start)
        steps.append((found, dict(tried)))
        if not found.cells:
            break
        tried.update({cell: values[cell] for cell in found.cells})
    return steps


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace([SIZES, KINDS, BIAS])


def test_it_finds_the_bottom_long_before_all_was_tried(space: SearchSpace) -> None:
    values = {cell: bowl(cell) for cell in space.cells()}
    best = min(values, key=values.__getitem__)
    took = []
    for seed, start in enumerate([(5, 1, 0), (0, 0, 0), (3, 2, 1), (1, 0, 1), (4, 2, 0)]):
        order = [cell for step, _ in search(space, values, seed, most=20, start=start) for cell in step.cells]
        assert order[0] == start
        assert len(set(order)) == len(order)
        took.append(order.index(best) + 1 if best in order else 99)
    assert median(took) <= 12 and max(took) <= 16  # of 36 cells; random takes 18, and 33 at worst


def test_the_chance_falls_and_is_none_before_there_is_a_model(space: SearchSpace) -> None:
    values = {cell: bowl(cell) for cell in space.cells()}
    steps = search(space, values, 1)
    chances = [step.chance for step, _ in steps]
    assert chances[:STARTS] == [None] * STARTS
    assert all(chance is not None and 0 <= chance <= 1 for chance in chances[STARTS:])
    assert chances[-1] == 0.0 and not steps[-1][0].cells  # all were tried: nothing is left
    assert len(steps[-1][1]) == 36
    least = min(values.values())
    for step, tried in steps:
        if step.chance is not None and step.chance < 0.01:
            assert min(v for v in tried.values() if v is not None) <= least + math.log(1.03)
            assert len(tried) < 36
            break
    else:
        pytest.fail("it was never sure")


def test_each_axis_has_another_value_before_there_is_a_chance() -> None:
    axes = [SearchAxis("size", 5, (1, 2, 3, 4, 5)), SearchAxis("word", 2), SearchAxis("never", 2)]
    space = SearchSpace(axes, lambda cell: cell[2] == 0)
    tried: dict[Cell, float | None] = {(i, 0, 0): float(i) for i in range(4)}
    step = propose(space, tried, 1, seed=1, tolerance=0.03)
    assert step.chance is None and step.unvaried == ("word",) and step.cells[0][1] == 1
    tried[step.cells[0]] = 9.0
    step = propose(space, tried, 1, seed=1, tolerance=0.03)  # no cell has another value of the third
    assert step.chance is not None and step.unvaried == ()


def test_the_same_is_proposed_for_the_same_and_other_starts_for_other_seeds(space: SearchSpace) -> None:
    values = {cell: bowl(cell) for cell in space.cells()}
    runs = [[step for step, _ in search(space, values, seed, most=9)] for seed in (3, 3, 4, 5)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or runs[0] != runs[3]


def test_several_at_once_are_different_and_new(space: SearchSpace) -> None:
    values = {cell: bowl(cell) for cell in space.cells()}
    for step, tried in search(space, values, 1, count=4, most=24):
        assert len(set(step.cells)) == len(step.cells) == 4
        assert not set(step.cells) & tried.keys()


def test_what_failed_is_not_proposed_again_and_its_neighbours_are_avoided(space: SearchSpace) -> None:
    # All of size 2 and below can't be replayed: the best that is left is size 3.
    values = {cell: None if cell[0] <= 2 else bowl(cell) for cell in space.cells()}
    order = [cell for step, _ in search(space, values, 2, most=20) for cell in step.cells]
    assert len(set(order)) == len(order)
    assert (3, 1, 1) in order
    assert sum(values[cell] is None for cell in order) < 10


def test_only_valid_cells_are_proposed_and_each_is_asked_about_once() -> None:
    asked: list[Cell] = []

    def valid(cell: Cell) -> bool:
        asked.append(cell)
        return not (cell[1] == 2 and cell[2] == 1)

    space = SearchSpace([SIZES, KINDS, BIAS], valid)
    steps = search(space, {cell: bowl(cell) for cell in itertools.product(range(6), range(3), range(2))}, 1)
    assert len(steps[-1][1]) == 30
    assert len(asked) == len(set(asked)) == 36
    assert (0, 0) not in space and (9, 0, 0) not in space and "abc" not in space


def test_a_space_without_a_valid_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="no valid cell"):
        propose(SearchSpace([KINDS], lambda _: False), {}, 1, seed=1, tolerance=0.03)


def test_a_space_of_one_cell_is_tried_and_done() -> None:
    space = SearchSpace([])
    assert propose(space, {}, 2, seed=1, tolerance=0.03).cells == ((),)
    assert propose(space, {(): 1.0}, 2, seed=1, tolerance=0.03) == Proposal((), 0.0)


def test_equal_values_tell_nothing_and_the_starts_go_on(space: SearchSpace) -> None:
    found = propose(space, dict.fromkeys(space.cells()[:9], 1.0), 2, seed=1, tolerance=0.03)
    assert found.chance is None and len(found.cells) == 2


def test_the_starts_have_every_value_of_small_axes(space: SearchSpace) -> None:
    values = {cell: bowl(cell) for cell in space.cells()}
    starts = [cell for step, _ in search(space, values, 7, most=STARTS) for cell in step.cells]
    assert len(starts) == STARTS
    assert {cell[1] for cell in starts} == {0, 1, 2} and {cell[2] for cell in starts} == {0, 1}


def test_a_large_space_is_searched_without_being_looked_at_as_a_whole() -> None:
    """Ten axes of four values: a million cells."""
    axes = [SearchAxis(f"axis {i}", 4, (0.0, 1.0, 2.0, 3.0)) for i in range(10)]
    asked = 0

    def valid(cell: Cell) -> bool:
        nonlocal asked
        asked += 1
        return cell[0] != 3

    space = SearchSpace(axes, valid)
    rng = random.Random(1)
    weight = [rng.random() for _ in axes]

    def worth(cell: Cell) -> float:
        return sum(w * abs(at - 1) for w, at in zip(weight, cell, strict=True))

    tried: dict[Cell, float | None] = {}
    while len(tried) < 24:
        found = propose(space, tried, 4, seed=1, tolerance=0.03, start=(2,) * 10)
        tried.update({cell: worth(cell) for cell in found.cells})
    assert all(cell[0] != 3 for cell in tried)
    assert asked < 50_000
    others = sorted(worth(tuple(rng.randrange(4) for _ in axes)) for _ in range(200))
    assert min(v for v in tried.values() if v is not None) < others[2]  # better than 197 of 200 at random


def test_values_that_seem_to_do_nothing_go_back_together() -> None:
    """Of four axes two do nothing; the model says so without having tried the plain cell."""
    idle = [SearchAxis("idle", 3), SearchAxis("also idle", 2)]
    space = SearchSpace([SIZES, KINDS, *idle])
    rng = random.Random(1)
    tried: dict[Cell, float | None] = {}
    for cell in rng.sample(space.cells(), 30):
        tried[cell] = 0.3 * abs(cell[0] - 2) + (0.0, -0.2, 0.1)[cell[1]]
    best, plain = (2, 1, 2, 1), (5, 0, 0, 0)
    tried[best] = -0.2
    tried.pop((2, 1, 0, 0), None)
    assert plainer(space, tried, best, plain, seed=1, tolerance=0.03) == (2, 1, 0, 0)
    # What is not valid is no step, and too little to tell changes nothing.
    fixed = SearchSpace(space.axes, lambda cell: cell[2] == 2)
    kept = {cell: value for cell, value in tried.items() if cell[2] == 2}
    assert plainer(fixed, kept, best, plain, seed=1, tolerance=0.03)[2] == 2
    assert plainer(space, {best: -0.2}, best, plain, seed=1, tolerance=0.03) == best


def test_nothing_of_the_model_s_fit_is_said_to_the_user() -> None:
    space = SearchSpace([SearchAxis("a", 36, tuple(map(float, range(36))))])
    rng = random.Random(4)  # with a parameter at its bound, of which scikit-learn warns
    noise: dict[Cell, float | None] = {cell: rng.random() for cell in rng.sample(space.cells(), 20)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert propose(space, noise, 2, seed=1, tolerance=0.05).cells


def test_what_is_known_of_a_large_space_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = [SearchAxis(f"a{i}", 12) for i in range(4)]
    whole, little = (SearchSpace(axes, lambda cell: sum(cell) % 3 > 0) for _ in range(2))
    tried: dict[Cell, float | None] = {(0, 0, 0, 1): 1.0}
    expected = propose(whole, tried, 4, seed=3, tolerance=0.05)
    monkeypatch.setattr("ztune.search.space._MOST_KNOWN", 100)
    assert propose(little, tried, 4, seed=3, tolerance=0.05) == expected
    assert len(little._known) <= 100 < len(whole._known)
