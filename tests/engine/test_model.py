"""The device model alone, under sanitizers."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path

import pytest
from engine_build import PLAIN, spec

MS = 1_000_000
SYNC_READ, SYNC_WRITE, ASYNC_READ, ASYNC_WRITE = 0, 1, 2, 3
TB = 1 << 40


def model(tmp_path: Path, profile: str, lines: list[str]) -> tuple[list[int], float]:
    s = spec(tmp_path / "unused")
    for p in s["profiles"].values():
        p["size"] = TB
    (tmp_path / "spec.json").write_text(json.dumps(s))
    done = subprocess.run(
        [str(PLAIN), "model", str(tmp_path / "spec.json"), profile],
        input="".join(x + "\n" for x in lines),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout.split()
    return [int(x) for x in out[:-1]], float(out[-1])


def test_hdd_random_read_is_seek_and_half_a_rotation(tmp_path: Path) -> None:
    done, busy = model(tmp_path, "hdd", [f"io 0 {SYNC_READ} {TB // 3} 4096"])
    expected = 8.5 + 60000 / 7200 / 2 + 0.05 + 4096 / 180e3
    assert done[0] / MS == pytest.approx(expected, rel=1e-3)
    assert busy == pytest.approx(done[0] / 1e9)


def test_hdd_seek_curve(tmp_path: Path) -> None:
    times = []
    for share in (0.001, 0.1, 1 / 3, 0.6, 0.99):
        done, _ = model(tmp_path, "hdd", [f"io 0 {SYNC_READ} {int(TB * share)} 4096"])
        times.append(done[0])
    assert times == sorted(times)
    half_rotation = 60000 / 7200 / 2
    assert times[0] / MS < 1.0 + 0.6 + half_rotation + 0.1
    assert times[-1] / MS == pytest.approx(16 + half_rotation, rel=0.02)


def test_hdd_sequential_runs_at_the_disk_s_rate(tmp_path: Path) -> None:
    n, size = 1000, 131072
    _, busy = model(tmp_path, "hdd", [f"io 0 {ASYNC_WRITE} {i * size} {size}" for i in range(n)])
    assert busy == pytest.approx(n * (size / 170e6 + 50e-6), rel=0.01)


def test_sync_waits_for_one_async_at_most(tmp_path: Path) -> None:
    lines = [f"io 0 {ASYNC_WRITE} {i * TB // 200} 4096" for i in range(100)]
    lines.append(f"io 0 {SYNC_READ} {TB // 2} 4096")
    done, busy = model(tmp_path, "hdd", lines)
    one = done[1] - done[0]
    alone, _ = model(tmp_path, "hdd", [f"io 0 {SYNC_READ} {TB // 2} 4096"])
    assert done[-1] <= one + alone[0] + 20 * MS < done[-2]
    assert busy > 100 * one / 1e9 * 0.9


def test_flush_waits_for_the_write(tmp_path: Path) -> None:
    done, _ = model(tmp_path, "hdd", [f"io 0 {SYNC_WRITE} 0 4096", "flush 0 0"])
    assert (done[1] - done[0]) / MS == pytest.approx(60000 / 7200 + 1.0 + 0.05, rel=1e-3)
    done, _ = model(tmp_path, "nvme", [f"io 0 {SYNC_WRITE} 0 4096", "flush 0 0"])
    assert (done[1] - done[0]) / 1000 == pytest.approx(55, rel=1e-3)


def test_flash_latency_channels_and_bandwidth(tmp_path: Path) -> None:
    done, _ = model(tmp_path, "nvme", [f"io 0 {SYNC_READ} 0 4096"])
    assert done[0] / 1000 == pytest.approx(80 + 5, rel=0.01)
    # 32 channels take 32 requests at once, the 33rd waits.
    done, _ = model(tmp_path, "nvme", [f"io 0 {SYNC_READ} {i * 4096} 4096" for i in range(33)])
    assert done[31] < 2 * done[0] < done[32] + done[0]
    assert done[32] > 1.9 * done[0]
    # Large requests are bound by the interface.
    _, busy = model(tmp_path, "nvme", [f"io 0 {ASYNC_WRITE} 0 {1 << 20}"] * 1000)
    assert busy == pytest.approx(1000 * (1 << 20) / 2000e6, rel=0.01)


@pytest.mark.parametrize("profile", ["hdd", "nvme"])
def test_never_finished_before_it_came_never_negative(tmp_path: Path, profile: str) -> None:
    r = random.Random(5)
    lines, arrivals, t = [], [], 0
    for _ in range(3000):
        t += int(2 ** r.uniform(0, 24))
        arrivals.append(t)
        if r.random() < 0.1:
            lines.append(f"flush {t} {r.randrange(2)}")
        else:
            size = int(2 ** r.uniform(9, 24))
            lines.append(f"io {t} {r.randrange(4)} {r.randrange(TB - size)} {size}")
    done, busy = model(tmp_path, profile, lines)
    assert all(d > a for d, a in zip(done, arrivals, strict=True))
    assert math.isfinite(busy) and 0 < busy <= max(done) / 1e9 * 1.01
