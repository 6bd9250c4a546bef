"""How many writes of a sample are put together: as many as of the whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import FDATASYNC, MIB, WRITE, Ops, replay, spec

RECORD, RECORDS, ROUNDS = 32 << 10, 4000, 40


def written(tmp: Path, noise: Path, each: int, rate: int, part: int) -> tuple[float, float]:
    """Return how many writes of data and bytes a job has that changes ``each`` records anywhere and syncs
    them, over and over; ``part``: one of ``rate`` of them, each of which stands for as many."""
    ops, chance = Ops(dur=1000), random.Random(1)
    for _ in range(ROUNDS):
        for record in chance.sample(range(RECORDS), each):
            if record % rate == part:
                ops.add(WRITE, offset=record // rate * RECORD, size=RECORD, step=0)
        ops.add(FDATASYNC, step=100_000_000)
    whole = RECORDS * RECORD
    s: dict[str, Any] = spec(noise, size=[whole], properties={"recordsize": "32K"}, arc=512 * MIB)
    if rate > 1:
        s |= {"sample": rate, "arc_max": 512 * MIB // rate}
        s["files"][0] |= {"size": whole // rate, "sampled": True, "whole": whole, "whole_start": whole}
    measured = replay(tmp, s, ops)["measure"]
    (vdev,) = measured["by_vdev"]
    # OpenZFS itself counts those of the sample, and none that only stands in its queue for others.
    assert vdev["stat_write_bytes"] < (1.01 if rate == 1 else 0.5) * vdev["write_bytes"]
    cause = measured["by_cause"]["data"]
    return float(cause["writes"]), float(cause["write_bytes"])


@pytest.mark.parametrize("each", [40, 160])
def test_pages_that_a_sync_writes_find_as_many_others_in_the_queue(
    tmp_path: Path, noise: Path, each: int
) -> None:
    writes, size = written(tmp_path, noise, each, 1, 0)
    # They are put together: ten go at once, four fit into one of 128 KiB.
    assert ROUNDS * each / 4 < writes < 0.55 * ROUNDS * each
    for part in range(4):
        found, of = written(tmp_path, noise, each, 4, part)
        assert found / of == pytest.approx(writes / size, rel=0.2), part
