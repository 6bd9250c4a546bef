"""What a sample has of a layout's tunables."""

from __future__ import annotations

from typing import Any

import pytest

from ztune.places.engine_spec import sampled

MIB = 1 << 20


def spec(recordsize: int = 128 << 10, **tunables: int) -> dict[str, Any]:
    datasets = [
        {"name": "tank/data", "properties": {"recordsize": str(recordsize)}},
        {"name": "f", "filler": True},
    ]
    return {"arc_max": 1 << 30, "pools": [], "datasets": datasets, "tunables": tunables}


@pytest.mark.parametrize(
    ("of", "found", "expected"),
    [
        (2, spec(), 8 * MIB),
        (8, spec(), 2 * MIB),
        (64, spec(), MIB),  # a region: no less
        (64, spec(16 * MIB), 32 * MIB),  # two records, or none would be read ahead
        (8, spec(zfetch_max_distance=256 * MIB), 8 * MIB),
        (8, spec(zfetch_max_distance=MIB // 2), MIB // 2),
    ],
)
def test_how_far_ahead_a_sample_reads(of: int, found: dict[str, Any], expected: int) -> None:
    made = sampled(found, of, MIB)
    assert made["tunables"]["zfetch_max_distance"] == expected
    assert made["arc_max"] == (1 << 30) // of


def test_all_of_it_is_left_as_it_is() -> None:
    assert sampled(spec(), 1, MIB) == spec()
