"""Units, metrics and statistics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztune.analysis import units
from ztune.analysis.metrics import REPLAYED, resolve
from ztune.analysis.stats import Estimate, differs, estimate, ratio
from ztune.errors import InputError
from ztune.onhost.words import OBJECTIVES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.50 KiB"),
        (1 << 30, "1.00 GiB"),
        (1023 << 20, "1.00 GiB"),
        (12.5, "12.5 B"),
    ],
)
def test_amount(value: float, text: str) -> None:
    assert units.amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.00045, "450 µs"),
        (0.0255, "25.5 ms"),
        (35.71, "35.7 s"),
        (1200, "20 min"),
        (8000, "2.22 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.0,), "×1.00"),
        ((1.12,), "×1.12"),
        ((0.5,), "×0.50"),
        ((0.35, 0.0058, 0.35), "×0.35 (0.0058 … 0.35)"),
        ((171.0, 0.4, 2000.0), "×171 (0.40 … 2,000)"),
        ((0.0005,), "×0.00050"),
        ((0.0,), "×0"),
        ((None,), "–"),
    ],
)
def test_every_ratio_is_a_factor(numbers: tuple[float | None, ...], text: str) -> None:
    assert units.times(*numbers) == text


def test_a_setting_keeps_its_name_at_the_beginning_of_a_sentence() -> None:
    assert units.sentence("damaged data is returned") == "Damaged data is returned."
    assert units.sentence("full_page_writes=off tears pages") == "full_page_writes=off tears pages."
    assert units.sentence("sync=disabled loses seconds.") == "sync=disabled loses seconds."


def test_share_has_no_idle_digits() -> None:
    assert units.show(0.05, "share") == "5%"
    assert units.show(0.125, "share") == "12.5%"


@pytest.mark.parametrize(
    "value, text",
    [(0, "0.00"), (0.0043, "0.0043"), (0.0996, "0.10"), (0.37, "0.37"), (9.996, "10.0"), (1234.5, "1,234")],
)
def test_rates_keep_figures_that_say_something(value: float, text: str) -> None:
    assert units.show(value, "rate") == text


def test_every_objective_is_a_metric_and_reads_the_same_number() -> None:
    for key, (path, unit) in OBJECTIVES.items():
        node: object = 7.0
        for part in reversed(path):
            node = {part: node}
        assert REPLAYED[key].read({"measure": node}) == 7.0
        assert (REPLAYED[key].unit, resolve(key)) == (unit, key)


def test_aliases_and_unknown_metrics() -> None:
    assert [resolve(n) for n in ("time", "space", " wear ")] == ["modelled_s", "allocated", "written"]
    with pytest.raises(InputError, match='"speed" can\'t be minimised; use one of time'):
        resolve("speed")


def test_a_metric_is_a_number_or_nothing() -> None:
    assert REPLAYED["modelled_s"].read({"measure": {"model": {"modelled_s": 2}}}) == 2.0
    for bad in ({}, {"model": None}, {"model": {"modelled_s": "2"}}, {"model": {"modelled_s": True}}):
        assert REPLAYED["modelled_s"].read({"measure": bad}) is None
    assert REPLAYED["modelled_s"].read({"measure": {"model": {"modelled_s": math.nan}}}) is None


def test_one_replay_has_no_interval() -> None:
    assert estimate([3.0]) == Estimate(1, 3.0)


def test_few_repeats_give_their_range_and_many_a_bootstrap() -> None:
    few = estimate([3.0, 1.0, 2.0])
    assert (few.median, few.low, few.high, few.kind) == (2.0, 1.0, 3.0, "range")
    many = estimate([float(v) for v in range(1, 22)])
    assert many.kind == "bootstrap 95 %"
    assert many.low is not None and many.high is not None
    assert 4 < many.low < 11 < many.high < 18  # the median of 1 … 21 is 11; its interval is inside the range
    assert many == estimate([float(v) for v in range(1, 22)])  # the same records, the same report


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=30))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    got = estimate(values)
    assert min(values) <= got.median <= max(values)
    if got.low is not None and got.high is not None:
        assert min(values) <= got.low <= got.median <= got.high <= max(values)


def test_no_values_is_a_fault() -> None:
    with pytest.raises(ValueError, match="no values"):
        estimate([])


def test_ratio_of_nothing() -> None:
    assert ratio(0, 0) == 1.0
    assert ratio(5, 0) is None
    assert ratio(None, 5) is None


def test_differs_by_share_and_interval() -> None:
    assert not differs(Estimate(1, 104.0), Estimate(1, 100.0), 0.05)
    assert differs(Estimate(1, 106.0), Estimate(1, 100.0), 0.05)
    assert differs(Estimate(1, 1.0), Estimate(1, 0.0), 0.05)
    assert not differs(Estimate(1, 1.0), None, 0.05)
    wide = Estimate(5, 120.0, 95.0, 140.0, "bootstrap 95 %")
    assert not differs(wide, Estimate(5, 100.0, 90.0, 110.0, "bootstrap 95 %"), 0.05)
    assert differs(wide, Estimate(5, 90.0, 88.0, 92.0, "bootstrap 95 %"), 0.05)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 0.5))
def test_differs_does_not_depend_on_the_order(a: float, b: float, within: float) -> None:
    assert differs(Estimate(1, a), Estimate(1, b), within) == differs(Estimate(1, b), Estimate(1, a), within)


def test_a_ratio_that_is_the_same_each_time_has_no_interval() -> None:
    assert units.times(1.0, 1.0, 1.0) == "×1.00 (the same each time)"
    assert units.times(1.0, 0.9, 1.1) == "×1.00 (0.90 … 1.10)"
