"""What a replay can tell apart is what docs/accuracy-tables.md says of it, layout by layout."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

from ztune.analysis.metrics import MEASURED
from ztune.claims import accuracy
from ztune.claims.accuracy import replayed, smallest

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "accuracy-tables.md").read_text()
LARGE = {"writes": (1, 5), "bytes": (2, 6), "reads": (3, 7), "busy": (8,)}  # of hard disk and flash


def share(cell: str) -> float:
    found = re.search(r"([+−-]?[\d.]+) %", cell)
    assert found is not None, cell
    return float(found[1].replace("−", "-")) / 100


def large(what: str) -> dict[str, list[float]]:
    """The errors of databases of 8 GB, each disk for itself: predicted / measured - 1 of each layout."""
    part = TEXT.split("## Databases of 8 GB")[1].split("\n### ")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines()]
    of_layouts = [r for r in rows if len(r) == 9 and r[1].endswith("%")]
    return {str(at): [share(r[at]) for r in of_layouts if r[at]] for at in LARGE[what]}


def small(column: int) -> dict[str, list[float]]:
    """The errors of flushes (2) or space (3), by load: predicted / measured - 1 of each layout."""
    part = TEXT.split("### Flushes and space")[1].split("\n#")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines()]
    found: dict[str, list[float]] = {}
    for row in (r for r in rows if len(r) == 4 and r[2].endswith("%")):
        load = row[0] or list(found)[-1]
        found.setdefault(load, []).append(share(row[column]))
    return found


def throughput_errors() -> dict[str, list[float]]:
    part = TEXT.split("## Predicted throughput")[1].split("\n## ")[0]
    found: dict[str, list[float]] = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and cells[4].endswith("%"):
            found.setdefault(cells[0], []).append(share(cells[4]))
    return found


def nine_in_ten(tables: dict[str, list[float]]) -> float:
    """The share within which nine in ten ratios of two layouts of one table are right."""
    apart = sorted(
        abs(math.log1p(a) - math.log1p(b))
        for table in tables.values()
        for a, b in itertools.combinations(table, 2)
    )
    return math.expm1(apart[int(len(apart) * 0.9)])


@pytest.mark.parametrize(
    ("constant", "tables"),
    [
        (accuracy.BYTES, large("bytes")),
        (accuracy.READS, large("reads")),
        (accuracy.WRITES, large("writes")),
        (accuracy.FLUSHES, small(2)),
        (accuracy.SPACE, small(3)),
        (accuracy.TIME, large("busy")),
        (accuracy.JOB, throughput_errors()),
    ],
)
def test_the_figures_are_those_of_the_page(constant: float, tables: dict[str, list[float]]) -> None:
    assert sum(map(len, tables.values())) >= 14
    assert constant == pytest.approx(math.ceil(nine_in_ten(tables) * 100) / 100)


def test_each_metric_that_a_replay_answers_has_one() -> None:
    found = {key: metric for key in MEASURED if (metric := replayed(key)) is not None}
    assert {"time", "written", "read", "space", "p50"} <= found.keys() and "cpu" not in found
    assert all(0 < smallest(metric) < 1 for metric in found.values())


def test_a_closed_replay_says_how_long_the_job_takes() -> None:
    assert replayed("written", closed=True) == replayed("written")
    job = replayed("time", closed=True)
    assert job is not None and smallest(job) == accuracy.JOB
    model = {"modelled_s": 1.0, "most_s": 2.0, "elapsed_s": 2.5}
    assert job.read({"measure": {"model": {**model, "speed": 0.9}}}) == 2.5
    assert job.read({"measure": {"model": model}}) is None


def test_the_page_of_the_studies_says_the_same() -> None:
    text = (DOCS / "studies.md").read_text()
    part = text.split("### What a replay can tell apart")[1].split("\n### ")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines()]
    told = {r[0]: share(r[1]) for r in rows if len(r) == 3 and r[1].endswith("%")}
    assert told == {
        "bytes written": accuracy.BYTES,
        "bytes read, read operations": accuracy.READS,
        "write operations": accuracy.WRITES,
        "flushes": accuracy.FLUSHES,
        "space": accuracy.SPACE,
        "modelled time, latencies": accuracy.TIME,
        "the job's time": accuracy.JOB,
    }
    prose = (
        f"modelled times apart from {accuracy.TIME:.0%} on, times of jobs from {accuracy.JOB:.0%} on, "
        f"bytes written from {accuracy.BYTES:.0%}"
    )
    assert prose in " ".join(text.split()).replace(" %", "%")
