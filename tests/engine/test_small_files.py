"""Small files: where they lie, and what it costs to read those that are all but empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_build import READ, Ops, replay, spec

from ztune.trace import content

COUNT, SIZE = 240, 16 << 10


def reads(order: range) -> Ops:
    """Each file read whole, one after the other, on an idle disk."""
    ops = Ops(step=50_000_000)
    for number in order:
        ops.add(READ, offset=0, size=SIZE, file=number)
    return ops


def of_small_files(pool: Path) -> dict[str, Any]:
    s = spec(pool, size=SIZE, properties={"compression": "lz4", "recordsize": "16K"}, profile="hdd")
    (file,) = s["files"]
    s["files"] = [{**file, "id": number} for number in range(COUNT)]
    return s


def test_those_made_one_after_the_other_do_not_lie_one_after_the_other(tmp_path: Path, noise: Path) -> None:
    """A transaction group writes its files in four parts, of each the last first.

    In one part, to read them from the last to the first would be one sequence, as a file is.
    """
    small = replay(tmp_path, of_small_files(noise), reads(range(COUNT - 1, -1, -1)))["measure"]
    whole = of_small_files(noise)
    whole["files"] = [{**whole["files"][0], "size": COUNT * SIZE}]
    ops = Ops(step=50_000_000)
    for number in range(COUNT):
        ops.add(READ, offset=number * SIZE, size=SIZE)
    large = replay(tmp_path, whole, ops)["measure"]
    assert small["physical"]["read_bytes"] == pytest.approx(large["physical"]["read_bytes"], rel=0.05)
    assert small["model"]["busy_s_max"] > 3 * large["model"]["busy_s_max"]


def test_one_that_is_all_but_empty_is_read_with_the_pointer_to_it(tmp_path: Path, noise: Path) -> None:
    empty = tmp_path / "empty.bin"
    empty.write_bytes(content.all_but_empty())
    as_others = of_small_files(noise)
    theirs = of_small_files(noise)
    theirs["content"]["embedded"] = str(empty)
    theirs["files"] = [{**file, "holds": "embedded"} for file in theirs["files"]]
    full, found = (replay(tmp_path, one, reads(range(COUNT)))["measure"] for one in (as_others, theirs))
    assert full["by_cause"]["data"]["read_bytes"] == COUNT * SIZE
    assert found["by_cause"]["data"]["reads"] == 0
    # What it holds is not its role.
    assert [role["name"] for role in found["model"]["by_role"]] == ["data"]
