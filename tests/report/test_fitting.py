"""Tables in terminals of any width: folded or in blocks, never cut off."""

from __future__ import annotations

import pytest
from rich.console import Console

from ztune.output import Text
from ztune.report.measured import Line, places

HEADS = ["runs", "disk I/Os per op", "bytes moved per op", "mean latency (emulated)", "to baseline"]
ROWS = [
    ["2", "5.33", "92.1 KiB", "110 ms", "×0.95 (0.81 … 1.13)"],
    ["2", "5.35", "151 KiB", "66.5 ms", ""],
]


@pytest.mark.parametrize("durability", ["nothing-acknowledged", "last-seconds"])
@pytest.mark.parametrize("width", [40, 60, 72, 79, 80, 81, 90, 99, 100, 105, 110, 120, 160])
def test_no_figure_is_cut_off(width: int, durability: str) -> None:
    lines = [
        Line(1, "data.recordsize=8K", True, Text(""), durability, ROWS[0]),
        Line(2, "base", False, Text("  (baseline)"), "nothing-acknowledged", ROWS[1]),
    ]
    console = Console(width=width)
    with console.capture() as captured:
        console.print(places(HEADS, lines))
    printed = captured.get()
    assert all(len(line) <= width for line in printed.splitlines())
    words = set(printed.split())
    for text in (*HEADS, *(cell for row in ROWS for cell in row)):
        assert set(text.split()) <= {word.strip(",") for word in words}, printed
