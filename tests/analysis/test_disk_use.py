"""What the disks of a trial did over time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ztune.analysis.disk_use import disk_use, median_trial
from ztune.analysis.results import collect
from ztune.onhost.layout import Layout
from ztune.store.records import Trial
from ztune.study.layout import parse_layout

KERNEL: dict[str, list[float | None]] = {
    "t": [100.0, 101.0, 103.0],
    "tank/data-0/0 reads": [0, 10, 10],
    "tank/data-0/0 read_bytes": [0, 81920, 81920],
    "tank/data-0/0 writes": [0, 20, 40],
    "tank/data-0/0 write_bytes": [0, 4096, 8192],
    "tank/data-0/0 flushes": [0, 5, 5],
    "tank/data-0/0 busy_ms": [0, 500, 1500],
    "tank/data-0/0 queue_ms": [0, 3000, 5000],
    "tank/data-0/1 reads": [0, 0, 0],
    "tank/data-0/1 busy_ms": [0, 0, 0],
    "tank/log-0/0 reads": [0, 0, 0],
    "tank/log-0/0 writes": [0, 7, 7],
    "tank/log-0/0 busy_ms": [0, 1000, 1000],
    "tank/log-0/0 queue_ms": [0, 0, 0],
}


def test_rates_of_the_kernel_s_disks_by_class() -> None:
    data, log = disk_use(KERNEL)
    assert (data.name, data.disks, data.edges) == ("tank data", 2, (0.0, 1.0, 3.0))
    first, second = data.intervals
    # One of two disks was at work for half of the first second, and for half of the two after it.
    assert (first.busy, second.busy) == (0.25, 0.25)
    assert (first.queued, second.queued) == (3.0, 1.0)
    # A flush is among the writes that the kernel counts.
    assert (first.operations, second.operations) == (30.0, 10.0)
    assert first.wait_s == pytest.approx(0.1)
    assert first.bytes == 81920 + 4096 and second.bytes == 2048
    assert data.whole.operations == pytest.approx(50 / 3)
    assert log.whole.operations == pytest.approx(7 / 3)
    assert [one.busy for one in log.intervals] == [1.0, 0.0]
    assert [one.wait_s for one in log.intervals] == [0.0, None]


def test_a_slowed_lab_reads_as_the_real_disks() -> None:
    [data, _] = disk_use(KERNEL, dilation=10.0)
    assert data.edges == pytest.approx((0.0, 0.1, 0.3))
    assert data.intervals[0].busy == 0.25 and data.intervals[0].queued == 3.0
    assert data.intervals[0].operations == pytest.approx(300.0)
    assert data.intervals[0].wait_s == pytest.approx(0.01)


def test_a_modelled_disk_has_no_queue_and_an_instant_one_no_time() -> None:
    mount: dict[str, list[float | None]] = {
        "t": [0.0, 2.0],
        "tank/data-0/0 reads": [0, 4],
        "tank/data-0/0 writes": [0, 6],
        "tank/data-0/0 flushes": [0, 2],
        "tank/data-0/0 busy_s": [0.0, 1.0],
    }
    [use] = disk_use(mount)
    assert (use.whole.busy, use.whole.queued, use.whole.wait_s) == (0.5, None, None)
    assert use.whole.operations == 6.0
    [instant] = disk_use(mount | {"tank/data-0/0 busy_s": [0.0, 0.0]})
    assert instant.whole.busy is None and instant.whole.operations == 6.0


def test_long_series_are_thinned_and_lose_nothing() -> None:
    n = 10_001
    series: dict[str, list[float | None]] = {
        "t": [float(i) for i in range(n)],
        "p/data-0/0 reads": [float(3 * i) for i in range(n)],
    }
    [use] = disk_use(series)
    assert len(use.intervals) <= 121 and use.edges[-1] == n - 1
    assert {one.operations for one in use.intervals} == {3.0}
    assert disk_use({"t": [1.0], "p/data-0/0 reads": [1.0]}) == ()


def test_the_trial_in_the_middle() -> None:
    layout: Layout = parse_layout(
        {
            "name": "base",
            "arc": "64M",
            "pool": [
                {"name": "tank", "vdev": [{"class": "data", "kind": "stripe", "disks": 1, "profile": "nvme"}]}
            ],
            "dataset": [{"name": "tank/data", "roles": ["data"]}],
        }
    )
    one = Trial(
        id=1, run_id="run", number=1, round=1, layout_name="base", layout_hash=layout.hash, layout=layout,
        target="mount", status="ok", error=None, spec_json=None, result=None, engine_version=None,
        openzfs_version=None, started=None, wall_s=1.0, is_baseline=True, block=1,
    )  # fmt: skip
    trials = [
        replace(one, id=i, number=10 + i, block=i, result={"measure": {"seconds": s, "operations": 10}})
        for i, s in ((1, 9.0), (2, 3.0), (3, 5.0))
    ]
    [cell] = collect(trials).layouts
    assert median_trial(cell, "time") == 13
    assert median_trial(cell, "unknown") == 11
