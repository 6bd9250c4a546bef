"""Records that the trace does not touch may hold something else: they take the space of that, and no more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import FSYNC, MIB, READ, WRITE, Ops, replay, run, spec

SIZE = 96 * MIB
TOUCHED = SIZE // 8


def in_the_first_eighth(n: int) -> Ops:
    """Pages read and written at random at the begin of the file, every fortieth synced."""
    ops, rng = Ops(step=2_000_000), random.Random(3)
    for i in range(n):
        ops.add(READ if i % 3 else WRITE, offset=rng.randrange(TOUCHED // 8192) * 8192, size=8192)
        if i % 40 == 0:
            ops.add(FSYNC)
    return ops


def of_two(noise: Path, half: Path, **asked: Any) -> dict[str, Any]:
    """A spec whose file holds noise where it is touched; all else halves."""
    s = spec(noise, size=SIZE, properties={"compression": "lz4", "recordsize": "32K"}, **asked)
    s["content"]["data untouched"] = str(half)
    s["files"][0]["untouched"] = "data untouched"
    return s


@pytest.mark.parametrize("load", ["all", "touched"])
def test_what_is_not_touched_takes_space_alone(tmp_path: Path, noise: Path, half: Path, load: str) -> None:
    ops = in_the_first_eighth(2400)
    asked: dict[str, Any] = {"load": "touched"} if load == "touched" else {}
    found = replay(tmp_path, of_two(noise, half, **asked), ops)["measure"]
    alone = spec(noise, size=SIZE, properties={"compression": "lz4", "recordsize": "32K"}, **asked)
    as_noise = replay(tmp_path, alone, ops)["measure"]
    for count in ("reads", "read_bytes", "writes", "write_bytes"):
        assert found["by_cause"]["data"][count] == pytest.approx(
            as_noise["by_cause"]["data"][count], rel=0.02
        )
    # Each record of the first eighth is touched; half.bin shrinks to a half, in 4 KiB sectors.
    assert as_noise["space"]["allocated"] == pytest.approx(SIZE, rel=0.03)
    expected = TOUCHED + (SIZE - TOUCHED) * 5 / 8
    assert found["space"]["allocated"] == pytest.approx(expected, rel=0.05)
    assert found["space"]["compression_ratio"] == pytest.approx(SIZE / expected, rel=0.05)
    # It is no role whose calls are counted.
    assert [one["name"] for one in found["model"]["by_role"]] == ["data"]


def test_all_of_the_content_is_weighed(tmp_path: Path, noise: Path, half: Path) -> None:
    """What an eighth of a content comes to is chance: here one MiB of sixteen is noise."""
    mixed = tmp_path / "mixed.bin"
    mixed.write_bytes(noise.read_bytes()[:MIB] + half.read_bytes()[:MIB] * 15)
    space = [
        replay(tmp_path, of_two(noise, what, load="touched"), in_the_first_eighth(2400))["measure"]["space"]
        for what in (mixed, half)
    ]
    more = space[0]["allocated"] - space[1]["allocated"]
    assert more == pytest.approx((SIZE - TOUCHED) * 3 / 8 / 16, rel=0.05)


@pytest.mark.parametrize("load", ["all", "touched"])
def test_what_is_there_to_be_read_may_be_something_else(
    tmp_path: Path, noise: Path, half: Path, load: str
) -> None:
    """Each record is read and written once: it halves when read, to sectors of 4 KiB, and is noise since."""
    ops = Ops(step=2_000_000)
    for n in random.Random(3).sample(range(TOUCHED // 32768), TOUCHED // 32768):  # nothing is read ahead
        ops.add(READ, offset=n * 32768, size=32768)
        ops.add(WRITE, offset=n * 32768, size=32768)
    s = of_two(noise, half, **({"load": "touched"} if load == "touched" else {}))
    s["files"][0]["read"] = "data untouched"
    found = replay(tmp_path, s, ops)["measure"]
    assert found["by_cause"]["data"]["read_bytes"] == pytest.approx(TOUCHED * 5 / 8, rel=0.02)
    assert found["by_cause"]["data"]["write_bytes"] == pytest.approx(TOUCHED, rel=0.02)
    assert [one["name"] for one in found["model"]["by_role"]] == ["data"]
    # Without, they are read as they are written.
    alike = replay(tmp_path, of_two(noise, half, load=load), ops)["measure"]
    assert alike["by_cause"]["data"]["read_bytes"] == pytest.approx(TOUCHED, rel=0.02)


def test_a_content_that_is_not_there_is_one_sentence(tmp_path: Path, noise: Path, half: Path) -> None:
    s = of_two(noise, half)
    for key in ("untouched", "read"):
        done = run(tmp_path, {**s, "files": [{**s["files"][0], key: "nothing"}]}, in_the_first_eighth(3))
        assert done.returncode == 2
        assert f'spec: files[0].{key} is "nothing", which "content" does not have.' in done.stderr
