"""The disk in no time: rates and latencies against closed formulas, contents against what flushes promise."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ztune.disk.expected import LINK_MB_S, ReadWrite, expected, mean_seek_ms, seek_ms
from ztune.disk.server import arguments
from ztune.study import profiles
from ztune.study.profile import FlashProfile, HddProfile

SIZE = 64 << 30
"""Small gaps pass under the head: they are rare only if the disk is large."""


def load(checked: Path, profile: HddProfile | FlashProfile, seconds: float, *words: object) -> Any:
    argv = [str(checked / "disk-check"), "load", *arguments(profile, SIZE), "--"]
    rw, pattern, bs, depth, flushes = words
    argv += [str(w) for w in (rw, pattern, bs, depth, seconds, flushes)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def variant(name: str, **changes: Any) -> HddProfile | FlashProfile:
    return profiles.find(name).model_copy(update=changes)


# Seconds of the disk: as many as the mean needs; sequential writes fill this machine's memory.
CASES = [
    ("random", "read", 8192, 1, 40.0, 0.2),
    ("random", "read", 8192, 16, 40.0, 0.2),
    ("random", "write", 8192, 1, 40.0, 0.2),
    ("random", "write", 8192, 16, 40.0, 0.2),
    ("sequential", "read", 131072, 1, 1.0, 0.2),
    ("sequential", "read", 131072, 16, 1.0, 0.2),
    ("sequential", "write", 131072, 1, 1.0, 0.2),
    ("sequential", "write", 131072, 16, 1.0, 0.2),
]


@pytest.mark.parametrize(("pattern", "rw", "bs", "qd", "hdd_s", "flash_s"), CASES)
@pytest.mark.parametrize("name", ["hdd-7200", "hdd-uncached", "ssd-sata", "nvme", "usb-slow"])
def test_the_profile_is_met(
    checked: Path, name: str, pattern: Any, rw: ReadWrite, bs: int, qd: int, hdd_s: float, flash_s: float
) -> None:
    profile = variant("hdd-7200", cache_mb=0.0) if name == "hdd-uncached" else profiles.find(name)
    slow = profile.kind == "hdd" or name == "usb-slow"
    seconds = 40.0 if name == "usb-slow" else hdd_s if slow else flash_s
    got = load(checked, profile, seconds, rw, pattern, bs, qd, 0)
    want = expected(profile, rw, pattern, bs, qd)
    within = 0.05 if slow and pattern == "random" else 0.02
    assert got["iops"] == pytest.approx(want.iops, rel=within)
    assert got["latency_ms"] == pytest.approx(want.latency_ms, rel=within)


@pytest.mark.parametrize("pattern", ["random", "sequential"])
@pytest.mark.parametrize("name", ["hdd-7200", "hdd-uncached", "ssd-sata", "nvme"])
def test_a_flush_after_each_write_costs_what_the_profile_says(checked: Path, name: str, pattern: Any) -> None:
    profile = variant("hdd-7200", cache_mb=0.0) if name == "hdd-uncached" else profiles.find(name)
    got = load(checked, profile, 40.0 if profile.kind == "hdd" else 0.2, "write", pattern, 8192, 1, 1)
    want = expected(profile, "write", pattern, 8192, 1, fsync=True)
    assert want.flush_ms is not None
    assert got["iops"] == pytest.approx(want.iops, rel=0.03)
    assert got["flush_ms"] == pytest.approx(want.flush_ms, rel=0.03)


def test_a_write_does_not_wait_for_a_read_that_is_longer(checked: Path) -> None:
    # Half reads of 77 µs, half writes of 28: on 8 channels the rate is that of their mean, 52.5 µs.
    profile = variant("ssd-sata", read_mb_s=5000.0, write_mb_s=5000.0)
    got = load(checked, profile, 0.5, "mixed", "random", 4096, 8, 0)
    assert got["iops"] == pytest.approx(8e6 / 52.5, rel=0.08)


def test_the_seek_curve_has_its_mean() -> None:
    profile = profiles.find("hdd-7200")
    assert isinstance(profile, HddProfile)
    steps = 20000
    mean = sum(2 * (1 - x) * seek_ms(profile, x) for x in ((i + 0.5) / steps for i in range(steps))) / steps
    assert mean == pytest.approx(mean_seek_ms(profile), rel=1e-3)
    assert seek_ms(profile, 0) == 0 and seek_ms(profile, 1 / 3) == pytest.approx(profile.seek_avg_ms)
    assert seek_ms(profile, 1) == pytest.approx(profile.seek_full_ms)
    assert not math.isclose(seek_ms(profile, 1e-9), 0)


def fuzzed(checked: Path, kind: str, words: list[str], seed: int) -> dict[str, int]:
    """Play random requests and power cuts; the program fails where a promise is broken."""
    shape = (
        ["hdd=1", "rpm=7200", "seek_track_ms=0.8", "seek_avg_ms=8.5", "seek_full_ms=17", "flush_ms=0.5"]
        if kind == "hdd"
        else ["hdd=0", "channels=8", "read_us=77", "write_us=28", "flush_us=1500"]
    )
    rates = ["size=4194304", "read_mb_s=175", "write_mb_s=150", "overhead_us=100"]
    argv = [str(checked / "disk-check"), "fuzz", *rates, *shape, *words, "--", str(seed), "15000"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("lazy", [0, 1])
@pytest.mark.parametrize("cache", [0, 65536, 8 << 20])
@pytest.mark.parametrize("kind", ["hdd", "flash"])
def test_contents_survive_as_promised(checked: Path, kind: str, cache: int, lazy: int) -> None:
    for seed in (1, 2):
        got = fuzzed(checked, kind, [f"cache={cache}", f"lazy={lazy}"], seed)
        assert got["done"] > 5000 and got["cuts"] > 10
        assert (got["cut_bytes"] > 0) == (cache > 0), (
            "power cuts must take what was only cached, and only that"
        )


@pytest.mark.parametrize("cache", [65536, 8 << 20])
@pytest.mark.parametrize("kind", ["hdd", "flash"])
def test_a_protected_cache_keeps_what_was_acknowledged(checked: Path, kind: str, cache: int) -> None:
    for seed in (1, 2):
        got = fuzzed(checked, kind, [f"cache={cache}", "protected=1"], seed)
        assert got["done"] > 5000 and got["cuts"] > 10 and got["cut_bytes"] == 0


@pytest.mark.parametrize("kind", ["hdd", "flash"])
def test_a_disk_that_ignores_flushes_loses_what_it_said_was_flushed(checked: Path, kind: str) -> None:
    got = fuzzed(checked, kind, [f"cache={8 << 20}", "ignores_flushes=1"], 1)
    assert got["done"] > 5000 and got["cuts"] > 10 and got["cut_bytes"] > 0 and got["broken"] > 0
    # The same with flushes that are heard: the check above can see the difference.
    assert fuzzed(checked, kind, [f"cache={8 << 20}"], 1)["broken"] == 0


@pytest.mark.parametrize("name", ["raid-protected", "raid-ignores-flushes"])
def test_a_controllers_cache_answers_a_flush_at_once(checked: Path, name: str) -> None:
    profile = profiles.find(name)
    # Long before a gigabyte is full a write takes its way into the cache, and the flush its command.
    got = load(checked, profile, 1.0, "write", "random", 8192, 1, 1)
    each = 2 * profile.overhead_us / 1e3 + 8192 / LINK_MB_S / 1e3
    assert got["iops"] == pytest.approx(1e3 / each, rel=0.03)
    assert got["flush_ms"] == pytest.approx(profile.overhead_us / 1e3, rel=0.03)
    # And with little of it, as fast as the disk behind it.
    small = profile.model_copy(update={"cache_mb": 2.0})
    got = load(checked, small, 60.0, "write", "random", 8192, 1, 1)
    assert got["iops"] == pytest.approx(
        expected(small, "write", "random", 8192, 1, fsync=True).iops, rel=0.05
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["size=1"], "size=1 is not a number from"),
        (["size=nan"], "size=nan is not a number"),
        (["colour=red"], "unknown key 'colour'"),
        (["hdd=1"], "needed are size="),
        (["rpm"], "'rpm' is not KEY=VALUE"),
        (["read_mb_s=-3"], "read_mb_s=-3 is not a number from"),
        (["channels=100000"], "channels=100000 is not a number from 1 to 256"),
    ],
)
def test_bad_options_are_said(checked: Path, words: list[str], said: str) -> None:
    argv = [str(checked / "disk-check"), "load", *words, "--", "read", "random", "4096", "1", "1", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr
