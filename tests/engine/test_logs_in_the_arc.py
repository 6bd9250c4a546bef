"""How long a sample's data stay in its ARC beside a log, of which it has all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import FDATASYNC, MIB, READ, WRITE, Ops, replay, spec

RATE, RECORD, ARC, STEPS = 4, 128 << 10, 256 * MIB, 2000
DATA, LOG = 0, 1


def share_read(tmp: Path, noise: Path, again: int, part: int | None, *, looks: bool) -> float:
    """Return which share of the records that a job reads comes from the disk. It writes the records of its
    data, for each commits one of a log, and reads some ``again`` records later. ``part``: one of RATE of the
    data; ``looks``: whether it reads the first bytes of its log when it begins."""
    order = list(range(STEPS))
    random.Random(1).shuffle(order)
    ops, asked = Ops(dur=100_000), 0
    if looks:
        ops.add(READ, LOG, 0, 128)
    for i in range(STEPS):
        for op, record in ((WRITE, order[i]), (READ, order[i - again] if i >= again and i % 4 == 0 else -1)):
            if record >= 0 and (part is None or record % RATE == part):
                at = record if part is None else record // RATE
                ops.add(op, DATA, at * RECORD, RECORD, step=0)
                asked += op == READ
        ops.add(WRITE, LOG, (i + 1) * RECORD, RECORD)
        ops.add(FDATASYNC, LOG, step=39_000_000)
    whole = STEPS * RECORD
    s: dict[str, Any] = spec(
        noise, size=[whole, RECORD], properties={"recordsize": "128K"}, arc=ARC,
        tunables={"zfs_prefetch_disable": 1},
    )  # fmt: skip
    if part is not None:
        s |= {"sample": RATE, "arc_max": ARC // RATE}
        s["files"][DATA] |= {"size": whole // RATE, "sampled": True, "whole": whole, "whole_start": whole}
    cause = replay(tmp, s, ops)["measure"]["by_cause"]["data"]
    return float(cause["reads"] / asked / (1 if part is None else RATE))


@pytest.mark.parametrize("looks", [False, True])
def test_data_stay_in_a_sample_s_arc_as_long_as_in_the_whole_one(
    tmp_path: Path, noise: Path, looks: bool
) -> None:
    # Between the write and the read of a record data and log come that are this share of the ARC.
    for share, read in ((0.6, 0.0), (1.1, 1.0)):
        again = int(share * ARC / (2 * RECORD))
        for part in (None, 0, 1):
            found = share_read(tmp_path, noise, again, part, looks=looks)
            assert found == pytest.approx(read, abs=0.03), (share, part)
