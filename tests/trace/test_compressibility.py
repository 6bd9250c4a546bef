"""Where the blocks are drawn of which is measured how they compress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ztune.trace.compressibility import _spread, sample_files


@pytest.mark.parametrize(("total", "most"), [(1, 4096), (300, 4096), (4096, 4096), (5000, 4096), (10**9, 64)])
def test_however_many_pieces_are_taken_lie_evenly_over_all(total: int, most: int) -> None:
    numbers = _spread(total, most, np.random.default_rng(3))
    assert len(numbers) == len(set(numbers.tolist())) and numbers.min() >= 0 and numbers.max() < total
    assert len(numbers) == min(total, most) or total > 2 * most
    for taken in (16, 64):
        if total >= 8 * taken:
            quarters = np.bincount(numbers[:taken] * 4 // total, minlength=4)
            assert abs(quarters - taken / 4).max() <= 1


def test_tables_that_compress_differently_have_their_shares(tmp_path: Path) -> None:
    rng, files = np.random.default_rng(4), {}
    for number in range(40):
        fresh = 7000 if number < 10 else 900  # bytes of a page that repeat nowhere
        page = np.zeros((128, 8192), np.uint8)
        page[:, :fresh] = rng.integers(0, 256, (128, fresh), np.uint8)
        path = tmp_path / f"{number:02}"
        path.write_bytes(page.tobytes())
        files[str(path)] = "data"
    truth = 8192 / (0.25 * 7000 + 0.75 * 900)
    for seed in range(8):
        [found] = sample_files(files, [131072], ["lz4"], seed=seed)[0]
        assert found.ratio == pytest.approx(truth, rel=0.2), seed
