"""Writes of a sample that somebody waits for: as many are put together as of the whole, in as long."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_build import FDATASYNC, MIB, WRITE, Ops, group, replay, spec

RECORD, RECORDS = 32 << 10, 4000


@dataclass(frozen=True)
class Synced:
    """What a job took that changes records anywhere and syncs them, over and over."""

    writes: float
    """Of data, for each of its bytes."""
    logged: float
    """Bytes of the log, for each that was written of data."""
    mean_ms: float
    busy_s: float


def synced(tmp: Path, noise: Path, each: int, rate: int, part: int, profile: str = "nvme") -> Synced:
    """Replay a job that syncs ``each`` records at a time; ``part``: one of ``rate`` of them, each of which
    stands for as many."""
    rounds, step = (40, 100) if each > 1 else (400, 50)
    ops, chance = Ops(dur=1000), random.Random(1)
    for _ in range(rounds):
        mine = [record for record in chance.sample(range(RECORDS), each) if record % rate == part]
        for record in mine:
            ops.add(WRITE, offset=record // rate * RECORD, size=RECORD, step=0)
        if mine:
            ops.add(FDATASYNC, step=0)
        ops.t += step * 1_000_000 * (10 if profile == "hdd" and each > 1 else 1)
    whole = RECORDS * RECORD
    s: dict[str, Any] = spec(
        noise, size=[whole], properties={"recordsize": "32K"}, arc=512 * MIB, profile=profile
    )
    if rate > 1:
        s |= {"sample": rate, "arc_max": max(512 // rate, 64) * MIB}
        s["files"][0] |= {"size": whole // rate, "sampled": True, "whole": whole, "whole_start": whole}
    measured = replay(tmp, s, ops)["measure"]
    (vdev,) = measured["by_vdev"]
    # OpenZFS itself counts those of the sample, and none that only stands in its queue for others.
    assert vdev["stat_write_bytes"] < (1.01 if rate == 1 else 0.5) * vdev["write_bytes"]
    data, log, model = measured["by_cause"]["data"], measured["by_cause"]["zil"], measured["model"]
    size, latency = data["write_bytes"], model["sync_latency_ms"]
    return Synced(data["writes"] / size, log["write_bytes"] / size, latency["mean"], model["busy_s_max"])


@pytest.mark.parametrize("each", [40, 160])
def test_pages_that_a_sync_writes_find_as_many_others_in_the_queue(
    tmp_path: Path, noise: Path, each: int
) -> None:
    whole = synced(tmp_path, noise, each, 1, 0)
    # They are put together: ten go at once, four fit into one of 128 KiB.
    assert 1 / 4 < whole.writes * RECORD < 0.55
    for part in range(4):
        found = synced(tmp_path, noise, each, 4, part)
        assert found.writes == pytest.approx(whole.writes, rel=0.2), part
        # What the log says of them is where they are.
        assert found.logged == pytest.approx(whole.logged, rel=0.3), part
        assert found.mean_ms == pytest.approx(whole.mean_ms, rel=0.2), part


def test_a_hard_disk_takes_as_long_for_them(tmp_path: Path, noise: Path) -> None:
    whole = synced(tmp_path, noise, 160, 1, 0, "hdd")
    for part in range(2):
        found = synced(tmp_path, noise, 160, 4, part, "hdd")
        assert found.mean_ms == pytest.approx(whole.mean_ms, rel=0.2), part
        assert found.busy_s == pytest.approx(whole.busy_s, rel=0.2), part


@pytest.mark.parametrize(("profile", "rate"), [("nvme", 16), ("hdd", 4), ("hdd", 9), ("hdd", 16)])
def test_too_few_to_put_together_count_as_if_they_were(
    tmp_path: Path, noise: Path, profile: str, rate: int
) -> None:
    """Up to 1 MiB goes into one write of a hard disk; ten at once go there, of what the pages stand for."""
    whole = synced(tmp_path, noise, 160, 1, 0, profile)
    for part in range(2):
        found = synced(tmp_path, noise, 160, rate, part, profile)
        assert found.writes == pytest.approx(whole.writes, rel=0.2), part


@pytest.mark.parametrize("profile", ["nvme", "hdd"])
def test_one_page_alone_waits_for_no_others(tmp_path: Path, noise: Path, profile: str) -> None:
    whole = synced(tmp_path, noise, 1, 1, 0, profile)
    for rate in (4, 8):
        found = synced(tmp_path, noise, 1, rate, 0, profile)
        assert found.mean_ms == pytest.approx(whole.mean_ms, rel=0.35), rate


def test_one_page_alone_is_put_together_with_none(tmp_path: Path, noise: Path) -> None:
    whole = synced(tmp_path, noise, 1, 1, 0)
    for rate in (4, 16):
        found = synced(tmp_path, noise, 1, rate, 0)
        assert found.writes == pytest.approx(whole.writes, rel=0.02), rate


def test_blocks_of_the_log_that_are_put_together_are_the_log_s_alone(tmp_path: Path, noise: Path) -> None:
    """A write of several has no bookmark, so whose it is its parts tell."""
    ops, chance, records, rate = Ops(dur=1000), random.Random(2), 4000, 4
    for _ in range(5):
        for record in chance.sample(range(records // rate), records // rate // 2):
            ops.add(WRITE, offset=record * 16384, size=16384, step=0)
        ops.add(FDATASYNC, step=0)
        ops.t += 3_000_000_000
    whole, disks = records * 16384, [group("data", "stripe", 1, "hdd"), group("log", "stripe", 1, "hdd")]
    s = spec(
        noise, size=[whole // rate], properties={"recordsize": "16K"}, vdevs=disks,
        tunables={"zfs_txg_timeout": 3600},
    )  # fmt: skip
    s |= {"sample": rate}
    s["files"][0] |= {"sampled": True, "whole": whole, "whole_start": whole}
    measured = replay(tmp_path, s, ops)["measure"]
    causes, zil = measured["by_cause"], measured["zil"]
    [_, log] = measured["by_vdev"]
    assert 0 < log["stat_writes"] < zil["bytes"] / (128 << 10) / rate  # they were
    assert zil["writes"] == zil["slog_writes"] == pytest.approx(log["writes"])
    [dataset] = measured["by_dataset"]
    data, metadata = causes["data"]["writes"], causes["metadata"]["writes"]
    assert data <= dataset["writes"] <= data + metadata
