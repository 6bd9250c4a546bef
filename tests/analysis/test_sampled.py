from __future__ import annotations

import math

import numpy as np
import pytest

from ztune.analysis.sampled import ALIKE, SHOWN, alike, half_width


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
