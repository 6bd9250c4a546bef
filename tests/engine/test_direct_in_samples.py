"""What a sample of Direct I/O has dirty: transaction groups end as often as in the whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import MIB, WRITE, Ops, replay, spec

DIRECT, RATE, RECORD, STEPS = 4, 4, 16 << 10, 12_000
DATA, TWICE = 0, 1
"""A doublewrite buffer is written again and again, and a sample has all of it."""


def measured(tmp: Path, noise: Path, part: int | None, flags: int) -> dict[str, Any]:
    """Write records of the data at random, each into the doublewrite buffer first, 500 a second."""
    whole, small = 256 * MIB, 2 * MIB
    r, ops = random.Random(3), Ops()
    for i in range(STEPS):
        record = r.randrange(whole // RECORD)
        ops.add(WRITE, TWICE, i * RECORD % small, RECORD, flags=flags, step=2_000_000)
        if part is None or record % RATE == part:
            at = record if part is None else record // RATE
            ops.add(WRITE, DATA, at * RECORD, RECORD, flags=flags, step=0)
    s: dict[str, Any] = spec(
        noise, size=[whole, small], properties={"recordsize": "16K"}, arc=256 * MIB,
        tunables={"zfs_dirty_data_max": 64 * MIB},
    )  # fmt: skip
    if part is not None:
        s |= {"sample": RATE, "arc_max": 256 * MIB // RATE}
        s["files"][DATA] |= {"size": whole // RATE, "sampled": True, "whole": whole, "whole_start": whole}
    found: dict[str, Any] = replay(tmp, s, ops)["measure"]
    return found


@pytest.mark.parametrize("flags", [DIRECT, 0])
def test_transaction_groups_end_as_often_as_in_the_whole(tmp_path: Path, noise: Path, flags: int) -> None:
    whole = measured(tmp_path, noise, None, flags)
    # By what is dirty: in 24 s, the time that groups have would end five.
    assert whole["txgs"] > 12
    for part in (0, 3):
        sample = measured(tmp_path, noise, part, flags)
        assert sample["txgs"] == pytest.approx(whole["txgs"], abs=1)
        written = [one["by_cause"]["metadata"]["write_bytes"] for one in (sample, whole)]
        assert written[0] == pytest.approx(written[1], rel=0.15)
