"""An observation's tables."""

from __future__ import annotations

from observations import observation

from ztune.report import observed_sheets


def test_an_interval_that_says_nothing_has_no_figure() -> None:
    """Samples of files that are all but empty said that they compress to the half, give or take 409,575 %."""
    compressed = [
        {"recordsize": 1 << 20, "algorithm": name, "blocks": 2, "ratio": 2.0, "stored_ratio": 2.0} | bounds
        for name, bounds in (("zstd-3", {"low": 1.0, "high": 8192.0}), ("lz4", {"low": 1.9, "high": 2.1}))
    ]
    files = {"role": "data", "count": 1, "bytes": 1 << 26, "allocated": 1 << 26, "compressed": compressed}
    (sheet,) = [
        one for one in observed_sheets.other_sheets(observation(files=[files])) if "Sampled" in one.title
    ]
    assert [row[-1] for row in sheet.rows] == ["> 100%", "5%"]
