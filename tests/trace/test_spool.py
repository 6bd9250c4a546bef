from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ztune.trace.spool import PART_ROWS, Rows, Spool, from_members, members
from ztune.trace.writer import EVENT_DTYPE


def events(n: int) -> Rows:
    rng = np.random.default_rng(1)
    rows = np.zeros(n, EVENT_DTYPE)
    rows["t"] = np.cumsum(rng.integers(1_000, 100_000, n))[rng.permutation(n)] if n else []
    rows["dur"] = rng.integers(1_000, 90_000, n)
    rows["op"], rows["file"], rows["file2"], rows["size"] = 1, rng.integers(0, 40, n), -1, 8192
    rows["offset"] = rng.integers(0, 1 << 17, n) * 8192
    return rows


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_what_is_packed_comes_back(n: int) -> None:
    rows = events(n)
    before = rows.copy()
    found = from_members(members(rows), EVENT_DTYPE, n)
    assert (found == before).all() and (rows == before).all()
    found["t"] = 0  # may be written to


def test_a_spool_gives_its_parts_again_and_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", EVENT_DTYPE)
    first, second = events(10), events(PART_ROWS + 5)
    spool.add(first)
    spool.add(second[:0])
    spool.add(second)
    spool.close()
    parts = spool.parts()
    assert len(parts) == len(spool) == 3
    for _ in range(2):
        found = np.concatenate([part() for part in parts])
        assert (found == np.concatenate([first, second])).all()
    assert (tmp_path / "spool").stat().st_size == spool.bytes < 20 * len(second)
