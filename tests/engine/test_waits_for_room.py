"""How long the calls of a sample wait for room among what is dirty."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import MIB, WRITE, Ops, replay, spec

RATE, RECORD, SIZE, ARC = 8, 128 << 10, 1024 * MIB, 1024 * MIB


def overloaded(tmp: Path, noise: Path, part: int | None) -> dict[str, Any]:
    """Return the model of four threads that write faster than the disk does; ``part``: one record in RATE."""
    r = random.Random(1)
    ops = Ops(step=400_000)
    for _ in range(4000):
        record, thread = r.randrange(SIZE // RECORD), r.randrange(4)
        if part is None:
            ops.add(WRITE, offset=record * RECORD, size=RECORD, thread=thread)
        elif record % RATE == part:
            ops.add(WRITE, offset=record // RATE * RECORD, size=RECORD, thread=thread)
        else:
            ops.t += ops.step
    s = spec(
        noise, size=SIZE, properties={"recordsize": "128K"}, arc=ARC, profile="hdd", host_memory=2 << 30,
        tunables={"zfs_dirty_data_max": 32 * MIB},
    )  # fmt: skip
    if part is not None:
        s |= {"sample": RATE, "arc_max": ARC // RATE}
        s["files"][0] |= {"size": SIZE // RATE, "sampled": True, "whole": SIZE, "whole_start": SIZE}
    model: dict[str, Any] = replay(tmp, s, ops)["measure"]["model"]
    return model


def test_a_wait_for_room_is_the_sample_s_and_not_once_more_for_each_call_it_stands_for(
    tmp_path: Path, noise: Path
) -> None:
    whole = overloaded(tmp_path, noise, None)
    assert whole["thread_wait_s_max"] > 2 * whole["trace_s"]  # nearly all of its time is such waits
    for part in range(2):
        found = overloaded(tmp_path, noise, part)
        for key in ("elapsed_s", "thread_wait_s_max", "modelled_s"):
            assert found[key] == pytest.approx(whole[key], rel=0.2), key
        latency, all_of_it = found["write_latency_ms"], whole["write_latency_ms"]
        assert latency["mean"] == pytest.approx(all_of_it["mean"], rel=0.3)
        # Most calls find room at once.
        assert latency["p50"] == pytest.approx(all_of_it["p50"], abs=0.1)
