"""Direct I/O and asynchronous I/O, as OpenZFS 2.3 in the kernel has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import FSYNC, MIB, O_DSYNC, READ, WRITE, Ops, check_sums, replay, spec

DIRECT = 4
AIO, RING = 1, 2
KIB = 1 << 10
TXG = {"zfs_txg_timeout": 3600}


def reads(n: int, flags: int, size: int = 16 * KIB, over: int = 16 * MIB) -> Ops:
    r = random.Random(7)
    ops = Ops()
    for _ in range(n):
        ops.add(READ, offset=r.randrange(over // size) * size, size=size, flags=flags)
    return ops


def measured(tmp: Path, noise: Path, ops: Ops, direct: str = "standard") -> dict[str, Any]:
    given = {"recordsize": "128K", "direct": direct}
    out = replay(tmp, spec(noise, size=16 * MIB, properties=given, tunables=TXG), ops)
    check_sums(out)
    found: dict[str, Any] = out["measure"]
    return found


def test_a_direct_read_takes_a_whole_record_from_the_disk_each_time(tmp_path: Path, noise: Path) -> None:
    past = measured(tmp_path, noise, reads(500, DIRECT))
    data = past["by_cause"]["data"]
    assert data["reads"] == 500 and data["read_bytes"] == 500 * 128 * KIB
    kept = measured(tmp_path, noise, reads(500, DIRECT), "disabled")["by_cause"]["data"]
    assert kept["read_bytes"] == 16 * MIB  # each record once
    assert measured(tmp_path, noise, reads(500, 0))["by_cause"]["data"] == kept
    forced = measured(tmp_path, noise, reads(500, 0), "always")["by_cause"]["data"]
    assert forced == data


def test_what_is_no_whole_page_goes_through_the_arc(tmp_path: Path, noise: Path) -> None:
    odd = reads(500, DIRECT, size=6 * KIB)
    found = [measured(tmp_path, noise, odd, how)["by_cause"] for how in ("standard", "always", "disabled")]
    assert found[0] == found[1] == found[2]
    assert found[0]["data"]["read_bytes"] <= 16 * MIB


def test_whole_records_are_written_at_once_and_the_log_points_to_them(tmp_path: Path, noise: Path) -> None:
    def each(flags: int, direct: str = "standard") -> dict[str, Any]:
        ops = Ops()
        for i in range(64):
            ops.add(WRITE, offset=i * 128 * KIB, size=128 * KIB, flags=flags)
            ops.add(WRITE, offset=i * 128 * KIB, size=128 * KIB, flags=flags)
        ops.add(FSYNC)
        return measured(tmp_path, noise, ops, direct)

    direct, cached = each(DIRECT), each(DIRECT, "disabled")
    assert direct["zil"]["itx_indirect"] == 128
    assert direct["by_cause"]["data"]["write_bytes"] >= 128 * 128 * KIB  # the second time, too
    assert cached["by_cause"]["data"]["write_bytes"] < 1.1 * 64 * 128 * KIB
    # The caller waits for the disk.
    waits = [m["model"]["write_latency_ms"]["mean"] for m in (direct, cached)]
    assert waits[0] > 10 * waits[1]
    assert cached["by_cause"] == each(0)["by_cause"]


def test_parts_of_records_go_through_the_arc(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, offset=i * 128 * KIB + 16 * KIB, size=16 * KIB, flags=DIRECT)
    for i in range(8, 16):  # from the middle of one record to the middle of the third behind it
        ops.add(WRITE, offset=i * MIB + 48 * KIB, size=384 * KIB, flags=DIRECT)
    found = measured(tmp_path, noise, ops)
    assert found["rmw_reads"] >= 64
    assert found["zil"]["itx_copied"] == 0
    assert found["by_cause"]["data"]["write_bytes"] == (64 + 8 * 4) * 128 * KIB


def test_direct_and_cached_calls_read_back_what_was_written_last(tmp_path: Path, half: Path) -> None:
    """Everything that is read is compared with what the engine remembers of all writes."""
    r = random.Random(11)
    ops = Ops(threads=4)
    for _ in range(4000):
        size = r.choice([4, 8, 12, 16, 64, 128, 256, 1024]) * KIB - r.choice([0, 0, 0, 512])
        at = r.randrange(12 * MIB // (4 * KIB)) * 4 * KIB
        flags = r.choice([0, DIRECT, DIRECT, DIRECT | 2])
        ops.add(r.choice([READ, WRITE]), offset=at, size=size, flags=flags, via=r.randrange(3),
                thread=r.randrange(4))  # fmt: skip
        if r.random() < 0.02:
            ops.add(FSYNC)
    for records in ("4K", "16K", "128K", "1M"):
        s = spec(half, size=8 * MIB, properties={"recordsize": records, "compression": "lz4"}, verify=True)
        out = replay(tmp_path, s, ops)
        check_sums(out)


def test_the_end_of_a_file_need_be_no_whole_page(tmp_path: Path, noise: Path) -> None:
    def read(size: int, at: int = 0) -> int:
        ops = Ops()
        for _ in range(20):
            ops.add(READ, offset=at, size=size, flags=DIRECT)
        s = spec(noise, size=3 * 128 * KIB - 1000, properties={"recordsize": "128K"}, tunables=TXG)
        found: int = replay(tmp_path, s, ops)["measure"]["by_cause"]["data"]["reads"]
        return found

    assert read(128 * KIB) == 20
    # As long as what it got: whole pages from the disk, the rest from the ARC, where the record then is.
    assert read(128 * KIB - 1000, 256 * KIB) == 2
    assert read(128 * KIB - 1000) == 1  # in the middle it is no call of Direct I/O


def latest(found: dict[str, Any]) -> float:
    worst: float = found["model"]["read_latency_ms"]["max"]
    return worst


def test_aio_makes_one_read_after_another_and_a_ring_all_at_once(tmp_path: Path, noise: Path) -> None:
    def waits(via: int) -> dict[str, Any]:
        r = random.Random(6)
        ops = Ops(step=1000, dur=50_000_000)
        for _ in range(200):
            ops.add(READ, offset=r.randrange(1 << 14) * 8192, size=8192, via=via)
        s = spec(noise, size=128 * MIB, profile="hdd", properties={"recordsize": "8K"})
        s["tunables"] = {"zfs_prefetch_disable": 1}
        found: dict[str, Any] = replay(tmp_path, s, ops)["measure"]
        return found

    call, aio, ring = waits(0), waits(AIO), waits(RING)
    assert aio["model"]["elapsed_s"] == call["model"]["elapsed_s"]
    assert latest(ring) > 2 * latest(aio)  # in the disk's queue together, which takes the nearest
    assert ring["model"]["elapsed_s"] < 0.75 * aio["model"]["elapsed_s"]


def test_closed_what_a_thread_does_between_calls_by_aio_takes_its_time(tmp_path: Path, noise: Path) -> None:
    def takes(via: int, dur: int) -> float:
        ops = Ops(step=1_000_000)
        for _ in range(200):
            ops.add(READ, offset=0, size=8192, via=via, dur=dur)
        found: float = replay(tmp_path, spec(noise, closed=True), ops)["measure"]["model"]["elapsed_s"]
        return found

    assert takes(AIO, 500_000_000) == pytest.approx(0.2, rel=0.05)
    assert takes(0, 1000) == pytest.approx(0.2, rel=0.05)


def test_a_rings_synchronous_writes_to_one_file_are_committed_one_by_one(tmp_path: Path, noise: Path) -> None:
    def log_writes(via: int) -> int:
        ops = Ops(step=1000, dur=50_000_000 if via else 1000)
        for i in range(64):
            ops.add(WRITE, offset=i * 8192, size=8192, via=via, flags=O_DSYNC)
        s = spec(noise, profile="hdd", properties={"recordsize": "8K"}, tunables=TXG)
        found: int = replay(tmp_path, s, ops)["measure"]["zil"]["writes"]
        return found

    assert log_writes(RING) == log_writes(0) >= 64


def test_a_rings_direct_writes_to_one_file_follow_each_other(tmp_path: Path, noise: Path) -> None:
    def writes(files: int) -> int:
        ops = Ops(step=1000, dur=50_000_000)
        for i in range(256):
            place = i // files * 16 * KIB
            ops.add(WRITE, i % files, offset=place, size=16 * KIB, via=RING, flags=DIRECT)
        s = spec(noise, size=[16 * MIB] * files, properties={"recordsize": "8K"}, tunables=TXG)
        found = replay(tmp_path, s, ops)["measure"]["by_cause"]["data"]
        assert found["write_bytes"] == 256 * 16 * KIB
        done: int = found["writes"]
        return done

    assert writes(1) == 512  # two records each, and nothing waits beside them to be joined
    assert writes(64) < 400
