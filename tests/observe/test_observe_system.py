"""The host's counters: their arithmetic by hand, and a real run held against psutil's own reading."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from ztune.observe import system
from ztune.observe.system import Sampler, parse_meminfo, parse_pressure


def test_meminfo_is_bytes() -> None:
    assert parse_meminfo(["MemFree:   12 kB", "HugePages_Total:  3", "Dirty: 0 kB"]) == {
        "MemFree": 12288,
        "Dirty": 0,
    }


def test_pressure_of_some_and_all_tasks() -> None:
    lines = [
        "some avg10=0.12 avg60=0.00 avg300=0.00 total=123456",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=99",
        "nonsense",
    ]
    assert parse_pressure(lines) == {"some": 123456, "full": 99}


def test_what_sar_d_shows_of_a_disk() -> None:
    then = {"reads": 10.0, "read_bytes": 0.0, "read_ms": 5.0, "writes": 100.0, "write_bytes": 4096.0}
    then |= {"write_ms": 50.0, "busy_ms": 1000.0, "queue_ms": 2000.0, "flushes": 1.0, "flush_ms": 4.0}
    now = {"reads": 30.0, "read_bytes": 81920.0, "read_ms": 105.0, "writes": 180.0, "write_bytes": 659456.0}
    now |= {"write_ms": 210.0, "busy_ms": 1500.0, "queue_ms": 2600.0, "flushes": 5.0, "flush_ms": 12.0}
    assert system._disk(then, now, 2.0) == pytest.approx(
        {
            "reads_per_s": 10,
            "writes_per_s": 40,
            "read_bytes_per_s": 40960,
            "write_bytes_per_s": 327680,
            "read_wait_s": 0.005,
            "write_wait_s": 0.002,
            "service_s": 0.005,
            "queue_count": 0.3,
            "busy_share": 0.25,
            "flushes_per_s": 2,
            "flush_wait_s": 0.002,
        }
    )


def test_shares_of_the_processors_add_up() -> None:
    then = dict.fromkeys(("user_s", "system_s", "idle_s", "iowait_s", "steal_s"), 1.0)
    then |= {"context_switches": 0.0, "forks": 0.0}
    now = {"user_s": 3.0, "system_s": 2.0, "idle_s": 6.0, "iowait_s": 2.0, "steal_s": 1.0}
    found = system._cpu(then, now | {"context_switches": 20.0, "forks": 2.0}, 4.0)
    assert found["user_share"] == 0.25 and found["system_share"] == 0.125
    assert found["iowait_share"] == 0.125 and found["idle_share"] == 0.5
    assert sum(v for k, v in found.items() if k.endswith("_share")) == pytest.approx(1)
    assert found["context_switches_per_s"] == 5 and found["forks_per_s"] == 0.5


def test_caches_and_log_of_zfs() -> None:
    arc = system._arc(
        {"hits": 10.0, "misses": 0.0, "size": 5.0}, {"hits": 40.0, "misses": 10.0, "size": 7.0}, 10
    )
    assert arc == {"size_bytes": 7, "hits_per_s": 3, "misses_per_s": 1, "hit_share": 0.75}
    zil = system._RATES["zil"]({"zil_commit_count": 5.0}, {"zil_commit_count": 25.0, "zil_new": 3.0}, 2.0)
    assert zil == {"commits_per_s": 10}


def _written(folder: Path) -> None:
    with (folder / "file").open("wb", 0) as file:
        for _ in range(16):
            file.write(os.urandom(256 << 10))
            os.fsync(file.fileno())


def test_a_run_agrees_with_psutil(tmp_path: Path) -> None:
    origin = time.monotonic() - 100
    sampler = Sampler(0.2, origin)
    outer, times = psutil.disk_io_counters(perdisk=True), psutil.cpu_times()
    sampler.start()
    inner = psutil.disk_io_counters(perdisk=True)
    _written(tmp_path)
    time.sleep(0.7)
    inner_end = psutil.disk_io_counters(perdisk=True)
    sampler.stop()
    sampler.stop()
    outer_end, times_end = psutil.disk_io_counters(perdisk=True), psutil.cpu_times()
    disks = sampler.disks({"no such disk": "tank"})
    for disk in disks:
        # What is between two readings of psutil's is in ours, and ours is within two others.
        for name, ours in (
            ("write_bytes", disk.write_bytes),
            ("write_count", disk.writes),
            ("read_count", disk.reads),
        ):
            least = getattr(inner_end[disk.name], name) - getattr(inner[disk.name], name)
            most = getattr(outer_end[disk.name], name) - getattr(outer[disk.name], name)
            assert least <= ours <= most
        assert disk.busy_share is not None and 0 <= disk.busy_share <= 1
        size = Path(f"/sys/block/{disk.name}/queue/logical_block_size").read_text()
        assert disk.logical_sector == int(size)
    assert {d.name for d in disks} >= {
        name
        for name in inner
        if Path("/sys/block", name).exists()
        and inner_end[name].write_count > inner[name].write_count
    }  # fmt: skip
    series = sampler.series()
    cpu = series["cpu"]
    assert len(cpu.t) >= 3 and all(100 <= t <= 130 for t in cpu.t) and sorted(cpu.t) == cpu.t
    assert all(
        s.t[-1] == cpu.t[-1] and all(len(c) == len(s.t) for c in s.columns.values()) for s in series.values()
    )
    total = sum(times_end[:8]) - sum(times[:8])
    assert cpu.whole["idle_share"] == pytest.approx((times_end.idle - times.idle) / total, abs=0.1)
    memory = series["memory"]
    assert memory.whole["available_bytes"] == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert not sampler.limits and 0 < sampler.own_cpu_seconds < sampler.seconds / 5


def test_a_long_window_keeps_a_bounded_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "MOST_ROWS", 6)
    monkeypatch.setattr(system, "_SHARE", 1.0)
    sampler = Sampler(0.02)
    sampler.start()
    time.sleep(0.8)
    sampler.stop()
    cpu = sampler.series()["cpu"]
    assert len(cpu.t) <= 8 and cpu.t[-1] == pytest.approx(sampler.seconds, abs=0.1)
