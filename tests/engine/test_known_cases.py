"""Cases whose outcome follows from how OpenZFS works."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import needs
import pytest
from engine_build import (
    COPY,
    CREATE,
    FALLOCATE,
    FSYNC,
    KEEP_SIZE,
    MIB,
    O_DSYNC,
    PROFILES,
    PUNCH,
    READ,
    READ_AHEAD,
    RENAME,
    SYNC,
    TRUNCATE,
    UNLINK,
    WARM,
    WRITE,
    ZERO,
    Ops,
    check_sums,
    group,
    modelled,
    overwrites,
    replay,
    run,
    spec,
)

from ztune.trace.ops import PAUSES


def test_small_records_overwrite_without_reading(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=16 * MIB, properties={"recordsize": "8K"}, tunables={"zfs_txg_timeout": 3600})
    out = replay(tmp_path, s, overwrites(1000, 8192, 16 * MIB))
    check_sums(out)
    m = out["measure"]
    assert m["rmw_reads"] == 0
    assert 0.7 < m["write_amplification"] < 1.4  # some of the 1000 fall on the same record
    assert m["logical"] == {
        "reads": 0,
        "read_bytes": 0,
        "writes": 1000,
        "write_bytes": 1000 * 8192,
        "syncs": 0,
    }


def test_what_is_asked_to_be_read_ahead_is_there_when_it_is_read(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=64 * MIB, properties={"recordsize": "16K"}, profile="hdd")
    places = random.Random(5).sample(range(64 * MIB // 16384), 100)

    def done(ahead: bool) -> dict[str, Any]:
        ops = Ops(step=50_000_000)
        for place in places:
            if ahead:
                ops.add(READ_AHEAD, offset=place * 16384, size=8192)
            ops.add(READ, offset=place * 16384, size=8192)
        measure: dict[str, Any] = replay(tmp_path, s, ops)["measure"]
        return measure

    told, not_told = done(True), done(False)
    # The same reads of the disk, for which nobody waits.
    assert told["arc"]["demand_data_misses"] == 0 and told["arc"]["prefetch_data_misses"] == 100
    assert not_told["arc"]["demand_data_misses"] == 100
    assert told["logical"] == not_told["logical"]
    assert told["by_cause"]["data"]["reads"] == not_told["by_cause"]["data"]["reads"] == 100
    assert told["model"]["read_latency_ms"]["max"] < 0.2 < 5 < not_told["model"]["read_latency_ms"]["p50"]


def test_large_records_read_and_rewrite(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=256 * MIB, properties={"recordsize": "128K"})
    out = replay(tmp_path, s, overwrites(1500, 8192, 256 * MIB))
    check_sums(out)
    m = out["measure"]
    assert 10 < m["write_amplification"] < 18
    # Each first touch of a record reads it whole.
    assert 700 < m["rmw_reads"] <= 1500
    assert m["rmw_read_bytes"] == m["by_cause"]["data"]["read_bytes"]
    assert 120 << 10 < m["rmw_read_bytes"] / m["rmw_reads"] <= 128 << 10


@pytest.mark.parametrize(
    ("logbias", "slog", "kind", "main_sync_data", "on_slog"),
    [
        ("latency", False, "itx_needcopy", False, False),
        ("latency", True, "itx_needcopy", False, True),
        ("throughput", False, "itx_indirect", True, False),
        ("throughput", True, "itx_indirect", True, True),
    ],
)
def test_log_and_bias(
    tmp_path: Path, noise: Path, logbias: str, slog: bool, kind: str, main_sync_data: bool, on_slog: bool
) -> None:
    vdevs = [group("data", "stripe", 1)] + ([group("log", "stripe", 1)] if slog else [])
    s = spec(noise, properties={"recordsize": "8K", "logbias": logbias}, vdevs=vdevs)
    s["tunables"] = {"zfs_txg_timeout": 3600}
    r = random.Random(1)
    ops = Ops()
    n = 300
    for _ in range(n):
        ops.add(WRITE, offset=r.randrange(1024) * 8192, size=8192)
        ops.add(FSYNC)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    m = out["measure"]
    assert m["zil"]["commits"] == n
    assert m["zil"][kind] == n
    assert m["zil"]["itx_copied"] == 0
    # The log's last block before was of a small commit, so the first of these are in two; versions differ.
    assert n <= m["zil"]["writes"] <= n + 2
    assert m["zil"]["slog_writes"] == (m["zil"]["writes"] if on_slog else 0)
    # 8 KB of data and a header need 12 KB of log; a pointer alone 4 KB.
    assert m["zil"]["bytes"] == pytest.approx(n * (4096 if logbias == "throughput" else 12288), rel=0.02)
    if main_sync_data:
        assert m["by_cause"]["data"]["writes"] >= n
    # Each commit flushes the log's disk, and the main disk too if data went there.
    assert m["physical"]["flushes"] >= n * (2 if slog and main_sync_data else 1)
    assert m["physical"]["flushes"] < n * (2 if slog and main_sync_data else 1) + 40
    assert m["model"]["sync_latency_ms"]["count"] == n
    assert m["model"]["sync_latency_ms"]["p50"] > 0


def test_immediate_write_size(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    ops.add(WRITE, offset=0, size=65536)
    ops.add(FSYNC)
    s = spec(noise, properties={"recordsize": "128K"})
    assert replay(tmp_path, s, ops)["measure"]["zil"]["itx_indirect"] == 1
    s["tunables"] = {"zfs_immediate_write_sz": 131072}
    assert replay(tmp_path, s, ops)["measure"]["zil"]["itx_needcopy"] == 1


def test_a_block_that_its_group_has_written_goes_to_the_log_too(tmp_path: Path, noise: Path) -> None:
    """Syncs that come while their transaction group is on its way to a slow disk, beyond what the ARC holds:
    the block has left the cache, and is read to be logged."""
    ops = Ops()
    for i in range(200):
        ops.add(WRITE, offset=(i % 100) * MIB, size=65536, step=5_000_000)
        if i % 10 == 9:
            ops.add(FSYNC, thread=1 + i % 4)
    small = {"zfs_dirty_data_max": 16 * MIB, "zfs_txg_timeout": 1}
    s = spec(noise, size=128 * MIB, properties={"recordsize": "1M"}, profile="hdd", tunables=small)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    zil = out["measure"]["zil"]
    assert zil["itx_indirect"] == 200 and zil["commits"] == 20
    # Blocks of the log with pointers only; the records' own blocks are data.
    assert 0 < zil["bytes"] < MIB


def test_sync_property(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for i in range(20):
        ops.add(WRITE, offset=i * 4096, size=4096)
    for i in range(20):
        ops.add(WRITE, offset=i * 4096, size=4096, flags=O_DSYNC)
    zil = {}
    for sync in ("standard", "always", "disabled"):
        out = replay(tmp_path, spec(noise, properties={"recordsize": "4K", "sync": sync}), ops)
        zil[sync] = out["measure"]["zil"]
    # The first in two or three blocks, as the log's last one before was small.
    assert 20 <= zil["standard"]["writes"] <= 22
    assert 40 <= zil["always"]["writes"] <= 42
    assert zil["disabled"]["writes"] == 0
    assert zil["standard"]["itx_copied"] == 20  # O_DSYNC carries its data in the record at once
    assert zil["always"]["itx_copied"] == 40


def test_compression_and_sector_size(tmp_path: Path, half: Path) -> None:
    used = {}
    for ashift, comp in ((9, "off"), (9, "lz4"), (9, "zstd-3"), (12, "lz4"), (13, "lz4")):
        s = spec(half, size=32 * MIB, ashift=ashift, properties={"recordsize": "16K", "compression": comp})
        out = replay(tmp_path, s, Ops())
        space = out["measure"]["space"]
        used[ashift, comp] = space["allocated"]
        # The data, its block pointers, and little else.
        assert 32 * MIB <= space["logical"] <= 35 * MIB
        if comp == "off":
            assert space["compression_ratio"] == pytest.approx(1.0, abs=0.1)
        if (ashift, comp) == (9, "zstd-3"):
            assert 1.8 < space["compression_ratio"] < 2.2
    assert used[9, "off"] == pytest.approx(32 * MIB, rel=0.06)
    assert used[9, "zstd-3"] < 0.6 * used[9, "off"]
    # 16 KB compress to a bit more than 8 KB: three sectors of 4 KB, two of 8 KB (nothing gained).
    assert used[9, "lz4"] < used[12, "lz4"] < used[13, "lz4"]
    assert used[13, "lz4"] == pytest.approx(used[9, "off"], rel=0.08)


def test_what_was_just_freed_takes_no_space(tmp_path: Path, noise: Path) -> None:
    """OpenZFS keeps it for two more transaction groups; a file that was rewritten is not larger for that."""
    s = spec(noise, size=32 * MIB, properties={"recordsize": "128K", "compression": "off"})
    ops = Ops(step=1_000_000)
    for _ in range(2):
        for i in range(256):
            ops.add(WRITE, offset=i * 131072, size=131072)
        ops.add(SYNC, -1)
    space = replay(tmp_path, s, ops)["measure"]["space"]
    assert space["allocated"] == pytest.approx(32 * MIB, rel=0.06)


@pytest.mark.parametrize(
    ("kind", "disks", "factor"),
    [
        ("stripe", 2, 1.0),
        ("mirror", 2, 2.0),
        ("mirror", 3, 3.0),
        ("raidz1", 3, 1.5),
        ("raidz2", 4, 2.0),
        ("raidz3", 5, 2.5),
    ],
)
def test_redundancy_multiplies_writes(
    tmp_path: Path, noise: Path, kind: str, disks: int, factor: float
) -> None:
    s = spec(
        noise,
        size=8 * MIB,
        properties={"recordsize": "128K"},
        vdevs=[group("data", kind, disks, size=1 << 30)],
    )
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, offset=i * 131072, size=131072)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    m = out["measure"]
    assert len(m["by_vdev"]) == disks
    assert m["by_cause"]["data"]["write_bytes"] == pytest.approx(8 * MIB * factor, rel=0.05)  # raidz pads
    assert min(v["writes"] for v in m["by_vdev"]) > 0


def test_copies_property(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, offset=i * 131072, size=131072)
    written = {}
    for copies in ("1", "2"):
        s = spec(noise, size=8 * MIB, properties={"recordsize": "128K", "copies": copies})
        written[copies] = replay(tmp_path, s, ops)["measure"]["by_cause"]["data"]["write_bytes"]
    assert written == {"1": 8 * MIB, "2": 16 * MIB}


def test_special_vdev(tmp_path: Path, noise: Path) -> None:
    vdevs = [group("data", "stripe", 1, "hdd"), group("special", "mirror", 2)]
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, offset=i * 8192, size=8192)
    for small, data_on_special in (("0", False), ("16K", True)):
        s = spec(
            noise, size=8 * MIB, properties={"recordsize": "8K", "special_small_blocks": small}, vdevs=vdevs
        )
        out = replay(tmp_path, s, ops)
        check_sums(out)
        by = {v["name"]: v["write_bytes"] for v in out["measure"]["by_vdev"]}
        assert by["special-0/0"] == by["special-0/1"] > 0
        # Only labels and uberblocks go to the main disk if all blocks are small.
        assert (by["data-0/0"] < 64 * 8192) == data_on_special


def test_several_pools_and_datasets(tmp_path: Path, noise: Path) -> None:
    s = spec(noise)
    s["pools"].append({"name": "fast", "ashift": 12, "vdevs": [group("data", "stripe", 1)]})
    s["datasets"] = [
        {"name": "tank/data", "properties": {"recordsize": "8K", "compression": "off"}},
        {"name": "fast/db/wal", "properties": {"recordsize": "128K", "compression": "off"}},
    ]
    s["files"] = [
        {"id": 0, "dataset": "tank/data", "size": 16 * MIB, "content": "data"},
        {"id": 1, "dataset": "fast/db/wal", "size": 16 * MIB, "content": "data"},
    ]
    ops = Ops()
    for i in range(200):
        ops.add(WRITE, 0, offset=i * 8192, size=8192)
        ops.add(WRITE, 1, offset=i * 8192, size=8192)
        ops.add(FSYNC, 1)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    m = out["measure"]
    ds = {d["name"]: d for d in m["by_dataset"]}
    assert ds["tank/data"]["zil_bytes"] == 0
    assert ds["fast/db/wal"]["zil_bytes"] == m["zil"]["bytes"] > 0
    assert ds["tank/data"]["write_bytes"] >= 200 * 8192
    assert {v["pool"] for v in m["by_vdev"]} == {"tank", "fast"}
    assert {d["name"] for d in m["space"]["datasets"]} == {"tank/data", "fast/db/wal"}


def test_primarycache(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for _ in range(4):
        for i in range(200):
            ops.add(READ, offset=i * 8192, size=8192)
    reads = {}
    for cache in ("all", "metadata"):
        s = spec(noise, size=16 * MIB, properties={"recordsize": "8K", "primarycache": cache})
        s["tunables"] = {"zfs_prefetch_disable": 1}
        m = replay(tmp_path, s, ops)["measure"]
        reads[cache] = m["by_cause"]["data"]["reads"]
    assert reads["all"] == 200
    assert reads["metadata"] > 2 * reads["all"]


def test_prefetch_switch(tmp_path: Path, noise: Path) -> None:
    ops = Ops()
    for i in range(500):
        ops.add(READ, offset=i * 8192, size=8192)
    fetched = {}
    for off in (0, 1):
        s = spec(
            noise, size=16 * MIB, properties={"recordsize": "8K"}, tunables={"zfs_prefetch_disable": off}
        )
        fetched[off] = replay(tmp_path, s, ops)["measure"]["arc"]["prefetch_data_misses"]
    assert fetched[0] > 100
    assert fetched[1] == 0


def test_cache_device(tmp_path: Path, noise: Path) -> None:
    vdevs = [group("data", "stripe", 1), group("cache", "stripe", 1)]
    s = spec(
        noise, size=128 * MIB, properties={"recordsize": "16K"}, vdevs=vdevs, tunables={"l2arc_noprefetch": 0}
    )
    r = random.Random(2)
    ops = Ops(step=2_000_000)
    for _ in range(12000):
        ops.add(READ, offset=r.randrange(8192) * 16384, size=16384)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    m = out["measure"]
    assert m["l2arc"]["write_bytes"] > 8 * MIB
    assert m["l2arc"]["hits"] > 100


def test_nobody_waits_for_what_a_cache_device_is_fed_with(tmp_path: Path, noise: Path) -> None:
    vdevs = [group("data", "stripe", 1), group("cache", "stripe", 1, "hdd")]
    s = spec(
        noise,
        size=128 * MIB,
        properties={"recordsize": "128K"},
        vdevs=vdevs,
        tunables={"l2arc_noprefetch": 0},
    )
    ops = Ops(step=20_000_000)
    for i in range(1024):
        ops.add(READ, offset=i * 128 * 1024, size=128 * 1024)
    m = replay(tmp_path, s, ops)["measure"]
    busy = {disk["class"]: disk["busy_s"] for disk in m["by_vdev"]}
    assert busy["cache"] > busy["data"]
    assert m["model"]["busy_s_max"] == busy["data"]


def test_groups_follow_trace_time(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, properties={"recordsize": "8K"}, tunables={"zfs_txg_timeout": 5})
    out = replay(tmp_path, s, overwrites(200, 8192, 8 * MIB, step=100_000_000))  # 20 s
    assert out["measure"]["model"]["trace_s"] == pytest.approx(19.9, abs=0.2)
    assert 4 <= out["measure"]["txgs"] <= 5
    s["tunables"] = {"zfs_txg_timeout": 1}
    assert (
        19 <= replay(tmp_path, s, overwrites(200, 8192, 8 * MIB, step=100_000_000))["measure"]["txgs"] <= 21
    )
    # Dirty data ends a group early: 16 MB at 20 % of 80 MB.
    s = spec(noise, size=64 * MIB, properties={"recordsize": "8K"})
    s["tunables"] = {"zfs_txg_timeout": 3600, "zfs_dirty_data_max": 80 * MIB}
    m = replay(tmp_path, s, overwrites(6000, 8192, 64 * MIB, step=10_000))["measure"]
    assert 3 <= m["txgs"] <= 6


def appended(n: int, step: int) -> Ops:
    """Return writes of 8 KiB, one behind the other, each with its sync."""
    ops = Ops(step=step)
    for i in range(n):
        ops.add(WRITE, offset=i * 8192, size=8192)
        ops.add(FSYNC)
    return ops


def test_the_write_cache_of_a_disk_is_the_profiles(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", tunables={"zfs_txg_timeout": 3600})
    ops = appended(400, step=50_000)
    # Behind a cache that answers flushes at once a commit takes its way into it, protected or not.
    for cache in ("protected", "ignores-flushes"):
        s["profiles"] = {**PROFILES, "hdd": {**PROFILES["hdd"], "cache": cache, "cache_mb": 1024}}
        m = replay(tmp_path, s, ops)["measure"]["model"]
        assert m["sync_latency_ms"]["p99"] < 1, cache
    # Without one each commit waits for the medium: the next place has just passed the head.
    s["profiles"] = {**PROFILES, "hdd": {**PROFILES["hdd"], "cache": "none"}}
    m = replay(tmp_path, s, ops)["measure"]["model"]
    assert m["sync_latency_ms"]["p50"] > 4
    s["profiles"] = {**PROFILES, "hdd": {**PROFILES["hdd"], "cache": "battery"}}
    refused = run(tmp_path, s, ops)
    assert refused.returncode == 2 and "profiles.hdd.cache" in refused.stderr


def test_the_first_commit_finds_its_log(tmp_path: Path, noise: Path) -> None:
    """As in a database in use; without one it waits for the transaction group that makes it."""
    s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", tunables={"zfs_txg_timeout": 3600})
    ops = appended(20, step=50_000_000)
    m = replay(tmp_path, s, ops)["measure"]
    assert m["model"]["sync_latency_ms"]["p99"] < 40
    # The last group alone.
    assert m["txgs"] == 1


def test_slow_disk_is_held_up_not_piled_up(tmp_path: Path, noise: Path) -> None:
    """Recorded on a fast disk, replayed on a slow one: latency stays that of one commit."""
    s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", tunables={"zfs_txg_timeout": 3600})
    ops = appended(400, step=50_000)
    m = replay(tmp_path, s, ops)["measure"]["model"]
    # A rotation (8.3 ms) and 1 ms for the flush; what is cached is where the head is, or comes round.
    assert 9.3 < m["sync_latency_ms"]["p50"] < 19
    assert m["sync_latency_ms"]["p99"] < 40
    assert m["thread_wait_s_max"] == pytest.approx(400 * m["sync_latency_ms"]["mean"] / 1000, rel=0.1)
    assert m["lag_s"] > 3
    assert m["elapsed_s"] == pytest.approx(m["trace_s"] + m["lag_s"])
    # Commits follow each other: of as many as the trace has, so many have ended when its time is over.
    assert len(m["kept"]) == 100
    assert m["kept"][-1] == pytest.approx(m["trace_s"] / m["elapsed_s"], abs=0.01)


def test_a_random_read_is_a_seek_and_half_a_rotation(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=128 * MIB, properties={"recordsize": "8K"}, profile="hdd")
    s["tunables"] = {"zfs_prefetch_disable": 1}
    r = random.Random(6)
    reads = [r.randrange(1 << 14) * 8192 for _ in range(300)]
    found = {}
    for depth in (1, 8):
        ops = Ops(step=1)
        for at in reads:
            ops.add(READ, offset=at, size=8192, via=2 if depth > 1 else 0, dur=depth)
        m = replay(tmp_path, s, ops)["measure"]["model"]
        found[depth] = m["elapsed_s"] / len(reads)
    # All lie within a 32nd of the disk, and a pointer's block is read first now and then.
    turn = 60 / 7200
    assert turn / 2 + 0.001 < found[1] < turn / 2 + 0.006
    # Of several at a time the disk takes the nearest.
    assert found[8] < 0.75 * found[1]


@pytest.mark.parametrize("copies", [False, True])
def test_closed_a_thread_goes_on_when_it_would_have(tmp_path: Path, noise: Path, copies: bool) -> None:
    """Thinks 1 ms after each commit, which took 20 ms when recorded and takes 0.1 ms on this disk. A thread
    that copies does so in an open replay too."""
    ops, flags = Ops(step=0, dur=0), PAUSES if copies else 0
    for i in range(100):
        ops.add(WRITE, offset=i * 8192, size=8192, step=1_000, flags=flags)
        ops.add(FSYNC, dur=20_000_000, step=21_000_000, flags=flags)
    found = {}
    for closed in (False, True):
        s = spec(noise, properties={"recordsize": "8K"}, closed=closed)
        found[closed] = replay(tmp_path, s, ops)["measure"]["model"]
    if not copies:
        assert found[False]["elapsed_s"] == pytest.approx(2.1, rel=0.02)
    for one in (found[True], *([found[False]] if copies else [])):
        waits = one["thread_wait_s_max"]
        assert one["elapsed_s"] == pytest.approx(0.1 + waits, rel=0.02) and waits < 0.05


def test_closed_the_wait_for_another_s_commit_is_as_long_as_that_commit(tmp_path: Path, noise: Path) -> None:
    """Two threads take turns with a log: each writes 1 ms after the other's sync, which took 20 ms."""
    ops = Ops(step=0, dur=0)
    for i in range(100):
        ops.add(WRITE, offset=i * 8192, size=8192, thread=i % 2, step=1_000)
        ops.add(FSYNC, thread=i % 2, dur=20_000_000, step=21_000_000)
    s = spec(noise, properties={"recordsize": "8K"}, closed=True)
    found = replay(tmp_path, s, ops)["measure"]["model"]
    # Both threads' waits, one after the other, and the work between; the second begins 21 ms after the first.
    waits = 2 * found["thread_wait_s_max"]
    assert waits < 0.06 and 0.1 + waits < found["elapsed_s"] < 0.121 + waits
    assert found["most_recorded_s"] == pytest.approx(2.0, rel=0.02)
    assert 0.9 * found["elapsed_s"] < found["most_s"] < found["elapsed_s"]


@pytest.mark.parametrize(("operations", "known"), [(100, True), (93, True), (80, False), (200, False)])
def test_closed_an_operation_takes_from_one_sync_of_its_thread_to_the_next(
    tmp_path: Path, noise: Path, operations: int, known: bool
) -> None:
    """Two clients, each with a log: 5 ms of work and a sync, 50 times. A third syncs twice and is none.
    Where there are not as many syncs as operations, what one takes is not known.
    """
    ops = Ops(step=0, dur=0)
    for i in range(50):
        for thread in range(2):
            ops.add(WRITE, file=thread, offset=i * 8192, size=8192, thread=thread)
            ops.add(FSYNC, file=thread, thread=thread)
        if i in (10, 40):
            ops.add(FSYNC, file=1, thread=2)
        ops.t += 5_000_000
    s = spec(noise, size=[8 * MIB] * 2, properties={"recordsize": "8K"}, closed=True)
    s["operations"] = operations
    model = replay(tmp_path, s, ops)["measure"]["model"]
    assert ("operation_latency_ms" in model) is known
    if known:
        # The last twentieth is the job's end, and a client's first sync ends nothing that is known to begin.
        took = model["operation_latency_ms"]
        assert 90 <= took["count"] <= 96
        assert took["mean"] == pytest.approx(5.0 + model["sync_latency_ms"]["mean"], rel=0.1)


def test_closed_who_comes_first_has_the_next_turn_at_a_log(tmp_path: Path, noise: Path) -> None:
    """Three threads read, each a lot in every third round, and then commit in turns. In the recorded order
    all would wait for who reads a lot, in each round.
    """
    rounds, places = 60, random.Random(1).sample(range(1 << 13), 1 << 13)
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for thread in range(3):
            ops.add(WRITE, offset=(3 * i + thread) * 8192, size=8192, thread=thread, step=1_000)
            ops.add(FSYNC, thread=thread, dur=100_000, step=101_000)
            for _ in range(50 if i % 3 == thread else 0):
                ops.add(READ, file=1, offset=places.pop() * 8192, size=8192, thread=thread)
    s = spec(noise, size=[64 * MIB] * 2, properties={"recordsize": "8K"}, closed=True)
    s["load"] = "touched"
    s["operations"] = 3 * rounds
    model = replay(tmp_path, s, ops)["measure"]["model"]
    # The reads of one thread follow each other; those of three do not.
    reads_s = 50 * rounds * model["read_latency_ms"]["mean"] / 1000
    assert reads_s / 3 < model["elapsed_s"] < 0.5 * reads_s


def test_closed_what_was_done_in_a_turn_is_done_in_one(tmp_path: Path, noise: Path) -> None:
    """Two threads: each waits for the other's sync, works for 5 ms, and commits. So no two work at once."""
    rounds = 40
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        ops.add(READ, offset=0, size=512, thread=i % 2, step=5_000_000)
        ops.add(WRITE, offset=i * 8192, size=8192, thread=i % 2, step=1_000)
        ops.add(FSYNC, thread=i % 2, dur=1_000_000, step=1_100_000)
    s = spec(noise, properties={"recordsize": "8K"}, closed=True, operations=rounds)
    model = replay(tmp_path, s, ops)["measure"]["model"]
    assert rounds * 0.005 < model["elapsed_s"] < rounds * 0.0054


@pytest.mark.parametrize("cuts", [False, True])
def test_closed_a_truncation_that_cuts_nothing_keeps_nobody_waiting(
    tmp_path: Path, noise: Path, cuts: bool
) -> None:
    """Two threads commit. One reads a hundred blocks, and truncates their file; the other's hundred come
    after that when recorded, and wait for it only where something is cut off.
    """
    places = random.Random(1).sample(range(1 << 12), 200)
    ops = Ops(step=0, dur=0)
    for i in range(60):
        ops.add(WRITE, offset=i * 8192, size=8192, thread=i % 2, step=1_000)
        ops.add(FSYNC, thread=i % 2, dur=100_000, step=101_000)
    for thread in range(2):
        ops.add(FSYNC, file=1, thread=thread, step=1_000)
    begun = ops.t / 1e9
    for i, place in enumerate(places):
        if i == 100:
            ops.add(TRUNCATE, file=1, offset=-1, size=(63 if cuts else 64) * MIB)
        ops.add(READ, file=1, offset=place * 8192, size=8192, thread=i // 100, step=10)
    s = spec(noise, size=[64 * MIB] * 2, properties={"recordsize": "8K"}, closed=True, operations=60)
    model = replay(tmp_path, s, ops)["measure"]["model"]
    reads_s = 100 * model["read_latency_ms"]["mean"] / 1000
    assert (model["elapsed_s"] - begun > 1.8 * reads_s) is cuts
    assert model["elapsed_s"] - begun < (2.2 if cuts else 1.2) * reads_s


def test_closed_a_checkpoint_after_a_commit_belongs_to_its_turn(tmp_path: Path, noise: Path) -> None:
    """Two threads commit in turns. One of them works for 50 ms after every tenth of its commits and syncs
    another file, and the other waited for that, as it does here.
    """
    ops = Ops(step=0, dur=0)
    for i in range(60):
        ops.add(WRITE, offset=i * 8192, size=8192, thread=i % 2, step=1_000)
        ops.add(FSYNC, thread=i % 2, dur=100_000, step=101_000)
        if i % 20 == 10:
            ops.t += 50_000_000
            ops.add(FSYNC, file=1, step=1_000)
    ops.add(FSYNC, file=1, thread=1)
    s = spec(noise, size=[8 * MIB] * 2, properties={"recordsize": "8K"}, closed=True, operations=60)
    took = replay(tmp_path, s, ops)["measure"]["model"]["operation_latency_ms"]
    # Six of them have such a work in them, three of each thread.
    assert took["p90"] > 50


def clients_and_cleaners(rounds: int, cleaned: int, cleaners: int) -> Ops:
    """Two clients that commit by turns for 0.2 s, then ``cleaned`` syncs of another file by those who clean
    up, and long after that a read by one more.
    """
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        ops.add(WRITE, offset=i * 8192, size=8192, thread=i % 2, step=1_000)
        ops.add(FSYNC, thread=i % 2, dur=1_000_000, step=2_000_000)
    for i in range(cleaned):
        ops.add(WRITE, file=1, offset=i * 8192, size=8192, thread=2 + i % cleaners)
        ops.add(FSYNC, file=1, thread=2 + i % cleaners)
    ops.t = 10_000_000_000
    ops.add(READ, file=1, offset=0, size=512, thread=2 + cleaners)
    return ops


def test_closed_who_cleans_up_comes_no_further_than_the_clients(tmp_path: Path, noise: Path) -> None:
    """Two clients commit by turns for 0.2 s, here for more than a second. A third thread has its syncs at the
    end of that; here too, and not after 0.2 s. Who only reads is not held back.
    """
    rounds, cleaned, ended = 100, 40, {}
    for cleans in (False, True):
        ops = clients_and_cleaners(rounds, cleaned * cleans, 1)
        s = spec(noise, size=[64 * MIB] * 2, properties={"recordsize": "8K"}, profile="hdd", closed=True)
        model = replay(tmp_path, s, ops)["measure"]["model"]
        assert model["elapsed_s"] == pytest.approx(10.0, abs=0.1)
        ended[cleans] = [round(kept * (rounds + cleaned * cleans)) for kept in model["kept"]]
    # By tenths of a second, of all from the third on.
    assert ended[True][-1] == rounds + cleaned and ended[False][-1] == rounds
    assert ended[True][3:10] == ended[False][3:10] and 20 < ended[True][9] < rounds - 10


def test_closed_who_cleans_up_is_no_client_by_what_it_syncs_but_the_log(tmp_path: Path, noise: Path) -> None:
    """As above, with two cleaners that sync a file together, each two fifths as often as a client. With the
    log told they come no further than the clients either, whose commits alone are the job's pace.
    """
    rounds, cleaned, ended = 100, 40, {}
    for cleans in (False, True):
        ops = clients_and_cleaners(rounds, cleaned * cleans, 2)
        s = spec(noise, size=[64 * MIB] * 2, properties={"recordsize": "8K"}, profile="hdd", closed=True)
        model = replay(tmp_path, {**s, "logs": [[0]]}, ops)["measure"]["model"]
        ended[cleans] = [round(kept * rounds) for kept in model["kept"]]
    assert ended[True][-1] == ended[False][-1] == rounds
    assert ended[True][3:10] == ended[False][3:10] and 20 < ended[True][9] < rounds - 10


@pytest.mark.parametrize(("gap_ms", "late"), [(1, True), (60, False)])
def test_closed_who_comes_too_late_for_another_s_commit_has_one_of_its_own(
    tmp_path: Path, noise: Path, gap_ms: int, late: bool
) -> None:
    """One thread syncs for both. When recorded the other was there in time; here it waits for its read of a
    slow disk first, and comes when the sync has begun, if that is 1 ms after the read and not 60.
    """
    rounds, commits = 20, {}
    r = random.Random(1)
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        ops.t += 1_000_000
        ops.add(READ, offset=(64 << 20) + r.randrange(1 << 13) * 8192, size=8192, thread=1)
        ops.t += gap_ms * 1_000_000
        ops.add(WRITE, offset=i * 8192, size=8192)
        ops.add(FSYNC, dur=1_000_000, step=1_000_000)
    ops.add(READ, offset=64 << 20, size=8192, thread=1)
    ops.add(FSYNC, thread=1)
    for operations in (0, 2 * rounds + 1):
        s = spec(noise, size=128 * MIB, properties={"recordsize": "8K"}, profile="hdd", closed=True)
        # Of the file the records alone that are touched: all of them would take the most of the test's time.
        found = replay(tmp_path, {**s, "operations": operations, "load": "touched"}, ops)["measure"]
        commits[operations > 0] = found["zil"]["commits"]
        assert (found["model"]["late_commits"] > 0) == (late and operations > 0)
    more = commits[True] - commits[False]
    assert more > rounds // 2 if late else more == 0


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("size", "again"), [(700, 700), (8192, 8192), (32768, 8192)])
def test_closed_who_commits_late_writes_as_much_as_a_small_commit_does(
    tmp_path: Path, noise: Path, size: int, again: int, told: bool
) -> None:
    """One thread syncs for both when recorded; here the other comes when that sync has begun. The first write
    is of a few bytes, as one that begins a log.
    """
    rounds = 20
    r = random.Random(1)
    ops = Ops(step=0, dur=0)
    ops.add(WRITE, offset=0, size=16)
    ops.add(FSYNC)
    for i in range(rounds):
        ops.t += 1_000_000
        ops.add(READ, file=1, offset=r.randrange(1 << 13) * 8192, size=8192, thread=1)
        ops.t += 1_000_000
        ops.add(WRITE, offset=16 + i * size, size=size)
        ops.add(FSYNC, dur=1_000_000, step=1_000_000)
    ops.add(READ, file=1, offset=0, size=8192, thread=1)
    ops.add(FSYNC, thread=1)
    s = spec(noise, size=[MIB, 64 * MIB], properties={"recordsize": "8K"}, profile="hdd", closed=True)
    s = {**s, "operations": 2 * rounds + 2, "load": "touched", **({"logs": [[0]]} if told else {})}
    found = replay(tmp_path, s, ops)["measure"]
    late = found["model"]["late_commits"]
    assert late > rounds // 2
    assert found["logical"]["write_bytes"] == 16 + rounds * size + late * again
    assert rounds < found["model"]["most_commits"] <= found["zil"]["commits"]


def commits_in_turn(
    rounds: int,
    threads: int,
    pause: int,
    *,
    reads_after: int | None = None,
    waiting: bool | None = None,
    apart: int = 8192,
) -> Ops:
    """Threads commit one after the other, each in 0.1 ms, ``pause`` ns after the one before, so many bytes
    ``apart``. One more reads so long after each round and syncs at the end alone; None: there is no such
    thread. It is told to have waited for the sync before, and so are the others if ``waiting``; None: nobody
    is told of.
    """
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for thread in range(threads):
            ops.t += pause
            since = pause + (0 if thread else reads_after or 0)
            waits = waiting and ops.t > since
            wait = {"since_sync": since, "waited": 100_000} if waits else {}
            ops.add(WRITE, offset=(threads * i + thread) * apart, size=8192, thread=thread, **wait)
            ops.add(FSYNC, thread=thread, dur=100_000, step=100_000)
        if reads_after is not None:
            ops.t += reads_after
            wait = {} if waiting is None else {"since_sync": reads_after, "waited": 100_000}
            ops.add(READ, offset=0, size=512, thread=threads, **wait)
    if reads_after is not None:
        ops.add(FSYNC, thread=threads)
    return ops


def test_closed_who_waits_for_a_told_log_is_covered_but_for_those_who_wait_for_rows(
    tmp_path: Path, noise: Path
) -> None:
    """Four threads commit one after the other on a fast disk, so that each has waited for the one before; a
    fifth one's commits were others'. On a slow disk those who come to the log meanwhile are covered by the
    next sync, but for the half of the operations that wait for a row.
    """
    rounds, found = 50, {}
    ops = commits_in_turn(rounds, 4, 150_000, reads_after=50_000)
    for logs in (False, True):
        s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", closed=True, operations=5 * rounds)
        found[logs] = replay(tmp_path, {**s, "logs": [[0]]} if logs else s, ops)["measure"]
    joined = {logs: one["model"]["joined_commits"] for logs, one in found.items()}
    assert joined[False] < joined[True]
    # 108 if none waits for a row, and 250, one each, if all do.
    assert 130 < found[True]["zil"]["commits"] < 200 < found[False]["zil"]["commits"]


def test_closed_what_comes_while_a_log_is_written_is_for_the_next_sync(tmp_path: Path, noise: Path) -> None:
    """The same, with nobody told to wait, in records of 128K of which nothing is cached: each write reads
    first. Three come during the first one's: one of them syncs for all three, but the first does for itself.
    """
    rounds = 50
    ops = commits_in_turn(rounds, 4, 150_000, reads_after=50_000, waiting=False, apart=128 << 10)
    s = spec(noise, size=64 * MIB, properties={"recordsize": "128K"}, profile="hdd", closed=True)
    told = {"logs": [[0]], "operations": 5 * rounds, "waits": True, "load": "touched"}
    model = replay(tmp_path, {**s, **told}, ops)["measure"]["model"]
    assert model["joined_commits"] == pytest.approx(2 * rounds, abs=2)


@pytest.mark.parametrize("closed", [False, True])
def test_who_reads_and_pauses_while_others_sync_commits_no_more_than_it_did(
    tmp_path: Path, noise: Path, closed: bool
) -> None:
    """Three threads read, one commits: each time that the others pause its sync ends. Of as many operations
    as there are, a quarter and no more commit, and what an operation takes is not told by them.
    """
    rounds, found = 60, {}
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for thread in (1, 2, 3):
            ops.t += 1_000_000
            ops.add(READ, file=1, offset=(3 * i + thread) * 8192, size=8192, thread=thread)
        ops.t += 4_000_000
        ops.add(WRITE, offset=i * 700, size=700)
        ops.add(FSYNC, dur=500_000, step=500_000)
    for thread in (1, 2, 3):
        ops.add(FSYNC, thread=thread)
    commits = rounds + 3
    s = spec(noise, size=[MIB, 64 * MIB], properties={"recordsize": "8K"}, profile="hdd", closed=closed)
    s = {**s, "logs": [[0]], "operations": 4 * rounds, "load": "touched"}
    for told in (False, True):
        more = {"log_operations": [commits]} if told else {}
        found[told] = replay(tmp_path, {**s, **more}, ops)["measure"]
    assert found[True]["zil"]["commits"] <= commits < found[False]["zil"]["commits"]
    assert "operation_latency_ms" not in found[True]["model"]


@pytest.mark.parametrize(("waiting", "commits"), [(False, (100, 130)), (True, (240, 260))])
def test_closed_who_is_told_to_wait_for_a_row_does_so_and_nobody_else(
    tmp_path: Path, noise: Path, waiting: bool, commits: tuple[int, int]
) -> None:
    """The same; but the recording tells who had waited for another's commit."""
    rounds = 50
    ops = commits_in_turn(rounds, 4, 150_000, reads_after=50_000, waiting=waiting)
    s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", closed=True, operations=5 * rounds)
    found = replay(tmp_path, {**s, "logs": [[0]], "waits": True}, ops)["measure"]
    assert commits[0] <= found["zil"]["commits"] <= commits[1]


def test_closed_who_has_a_log_s_lock_does_not_wait_for_a_processor(tmp_path: Path, noise: Path) -> None:
    """Sixteen threads work for 3 ms and commit, all on one processor. Who has written the log syncs it
    at once, since it was at work; else others would come to wait for it, and share its sync.
    """
    rounds, threads = 40, 16
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for thread in range(threads):
            ops.t += 170_000
            ops.add(WRITE, offset=(threads * i + thread) * 8192, size=8192, thread=thread, dur=5_000)
            ops.t += 6_000
            ops.add(FSYNC, thread=thread, dur=20_000)
            ops.t += 20_000
    ops.t += 10_000
    ops.add(READ, offset=0, size=512, thread=threads)
    ops.t += 10_000
    ops.add(FSYNC, thread=threads)
    s = spec(noise, properties={"recordsize": "8K"}, profile="nvme", closed=True, logs=[[0]])
    s |= {"operations": (threads + 1) * rounds, "processor": {"cores": 1, "rates": []}}
    found = replay(tmp_path, s, ops)["measure"]
    # 91 of 640; 370 if it waits.
    assert found["model"]["joined_commits"] < 200


def test_closed_who_waits_for_a_slow_sync_is_covered_by_the_next(tmp_path: Path, noise: Path) -> None:
    """Three threads commit one after the other on a fast disk; on a slow one two of them wait for the first,
    and one of these syncs for both. A fourth never syncs: its commits were others'.
    """
    rounds, found = 20, {}
    ops = commits_in_turn(rounds, 3, 200_000, reads_after=100_000)
    for operations in (0, 4 * rounds):
        s = spec(noise, properties={"recordsize": "8K"}, profile="hdd", closed=True, operations=operations)
        found[operations > 0] = replay(tmp_path, s, ops)["measure"]
    assert found[False]["model"]["joined_commits"] == found[False]["model"]["late_commits"] == 0
    joined, late = (found[True]["model"][f"{kind}_commits"] for kind in ("joined", "late"))
    assert joined > 0 and late > 0
    assert found[True]["zil"]["commits"] == found[False]["zil"]["commits"] - joined + late


def test_each_log_s_commits_are_told_by_what_its_own_job_did(tmp_path: Path, noise: Path) -> None:
    """Two jobs, each with a log of its own. In each one thread syncs for both when recorded, and the other,
    who has waited for that, comes too late here: after a read of a slow disk.
    """
    rounds, late = 20, {}
    r = random.Random(1)
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for log in (0, 1):
            ops.t += 1_000_000
            ops.add(READ, file=2, offset=r.randrange(1 << 13) * 8192, size=8192, thread=2 * log + 1)
            ops.t += 1_000_000
            ops.add(WRITE, file=log, offset=i * 8192, size=8192, thread=2 * log)
            ops.add(FSYNC, file=log, dur=1_000_000, step=1_000_000, thread=2 * log)
    for log in (0, 1):
        ops.add(READ, file=2, offset=0, size=8192, thread=2 * log + 1)
        ops.add(FSYNC, file=log, thread=2 * log + 1)
    every = 2 * rounds + 1
    base = spec(
        noise, size=[MIB, MIB, 64 * MIB], properties={"recordsize": "8K"}, profile="hdd", load="touched"
    )
    for counts in ((0, 0), (every, 0), (0, every), (every, every)):
        s = {**base, "logs": [[0], [1]], "operations": every, "log_operations": list(counts)}
        late[counts] = replay(tmp_path, s, ops)["measure"]["model"]["late_commits"]
    print(late)
    assert late[0, 0] == 0
    assert min(late[every, 0], late[0, every]) > rounds // 2
    assert late[every, every] > max(late[every, 0], late[0, every])


def test_closed_commits_of_two_logs_are_told_apart(tmp_path: Path, noise: Path) -> None:
    """One job commits in two logs, one after the other. When recorded one thread syncs both for the other,
    too, who comes too late here: after a read of a slow disk. There are as many syncs as operations, so that
    nobody knows without being told of the logs.
    """
    rounds, late = 20, {}
    r = random.Random(1)
    ops = Ops(step=0, dur=0)
    for _ in range(rounds):
        ops.t += 1_000_000
        ops.add(READ, file=2, offset=r.randrange(1 << 13) * 8192, size=8192, thread=1)
        ops.t += 1_000_000
        for log in (0, 1):
            ops.add(WRITE, file=log, offset=0, size=8192)
            ops.add(FSYNC, file=log, dur=1_000_000, step=1_000_000)
    for log in (0, 1):
        ops.add(READ, file=2, offset=0, size=8192, thread=1)
        ops.add(FSYNC, file=log, thread=1)
    base = spec(
        noise, size=[MIB, MIB, 64 * MIB], properties={"recordsize": "8K"}, profile="hdd", load="touched"
    )
    base["closed"] = True
    for logs in (False, True):
        s = {**base, "operations": 2 * rounds + 2, **({"logs": [[0], [1]]} if logs else {})}
        late[logs] = replay(tmp_path, s, ops)["measure"]["model"]["late_commits"]
    assert late[False] == 0 and late[True] > rounds // 2


def test_open_who_is_late_does_not_hold_a_log_for_the_others(tmp_path: Path, noise: Path) -> None:
    """One of two threads that share a log reads a slow disk before each of its commits, far more than there
    is time for. The other's commits are on time; by the order of the trace they would wait for the late.
    """
    rounds, found = 20, {}
    r = random.Random(1)
    ops = Ops(step=0, dur=0)
    for i in range(rounds):
        for _ in range(40):
            ops.t += 1_000_000
            ops.add(READ, offset=(64 << 20) + r.randrange(1 << 13) * 8192, size=8192)
        for thread in range(2):
            ops.t += 10_000_000
            ops.add(WRITE, file=1, offset=(2 * i + thread) * 8192, size=8192, thread=thread)
            ops.add(FSYNC, file=1, thread=thread, dur=1_000_000, step=1_000_000)
    group_ = [group("data", "stripe", 1, "hdd"), group("log", "stripe", 1)]
    for logs in (False, True):
        s = spec(noise, size=[128 * MIB, MIB], properties={"recordsize": "8K"}, vdevs=group_, load="touched")
        found[logs] = replay(tmp_path, {**s, "logs": [[1]]} if logs else s, ops)["measure"]
    # By the end of the recorded time, of 40 commits: all of the one on time and some of the late one's.
    kept = {logs: round(2 * rounds * one["model"]["kept"][-1]) for logs, one in found.items()}
    assert kept[False] < rounds // 2 < rounds < kept[True]
    assert found[True]["model"]["joined_commits"] == 0


def test_open_who_waits_for_a_log_is_covered_by_the_next_sync(tmp_path: Path, noise: Path) -> None:
    """Three threads commit one after the other on a fast disk; on a slow one two of them wait for the first,
    and one of these writes and syncs for both: in one write, since what they write lies side by side.
    """
    rounds, found = 20, {}
    ops = commits_in_turn(rounds, 3, 200_000)
    for logs in (False, True):
        s = spec(noise, properties={"recordsize": "8K"}, profile="hdd")
        found[logs] = replay(tmp_path, {**s, "logs": [[0]]} if logs else s, ops)["measure"]
    assert found[False]["model"]["joined_commits"] == 0
    joined = found[True]["model"]["joined_commits"]
    assert rounds < joined < 3 * rounds
    assert found[True]["zil"]["commits"] == 3 * rounds - joined
    assert found[True]["logical"]["writes"] < found[False]["logical"]["writes"] == 3 * rounds
    assert found[True]["logical"]["write_bytes"] == found[False]["logical"]["write_bytes"]
    assert found[True]["model"]["elapsed_s"] < 0.9 * found[False]["model"]["elapsed_s"]


def four_at_work() -> Ops:
    """Four threads that share a log, with five times 10 ms of work each, side by side when recorded."""
    ops = Ops(step=0, dur=0, t=1)
    for thread in range(4):
        ops.add(FSYNC, thread=thread)
    for _ in range(5):
        ops.t += 10_000_000
        for thread in range(4):
            ops.add(READ, offset=0, size=512, thread=thread)
    return ops


def test_what_threads_do_between_calls_takes_turns_on_the_processors(tmp_path: Path, noise: Path) -> None:
    ops = four_at_work()
    # Shares no log, and makes the recording so long that one processor could have done all the work.
    ops.t += 250_000_000
    ops.add(READ, offset=0, size=512, thread=4)
    found = {}
    for cores in (1, 4):
        s = spec(noise, properties={"recordsize": "8K"}, closed=True)
        s["processor"] = {"cores": cores, "rates": []}
        found[cores] = replay(tmp_path, s, ops)["measure"]["model"]["most_s"]
    assert found[4] == pytest.approx(0.05, rel=0.1)
    assert found[1] == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(("recorded", "seconds"), [(1, 0.05), (4, 0.2)])
def test_what_threads_do_themselves_is_what_the_recording_s_processors_could_do(
    tmp_path: Path, noise: Path, recorded: int, seconds: float
) -> None:
    """What took four threads 50 ms was 12.5 ms for each on one processor, which one does in 50 ms again; on
    four it was all of it, for which one takes 200 ms.
    """
    s = spec(noise, properties={"recordsize": "8K"}, closed=True)
    s["processor"] = {"cores": 1, "recorded": recorded, "rates": []}
    found = replay(tmp_path, s, four_at_work())["measure"]["model"]["most_s"]
    assert found == pytest.approx(seconds, rel=0.1)


def test_a_call_takes_the_processor_from_who_works_between_calls(tmp_path: Path, noise: Path) -> None:
    """Two threads work for 100 ms on one processor, in turns of 0.1 ms; a third one's calls wait for none."""
    ops = Ops(step=0, dur=0)
    for thread in range(2):
        ops.add(FSYNC, thread=thread, step=1_000_000)
    for _ in range(20):
        ops.t += 5_000_000
        ops.add(READ, offset=0, size=512, thread=2)
    for thread in range(2):
        ops.add(READ, offset=0, size=512, thread=thread)
    s = spec(noise, properties={"recordsize": "8K"}, closed=True)
    s["processor"] = {"cores": 1, "rates": [], "calls": {"read_us": 100, "write_us": 0, "sync_us": 0}}
    model = replay(tmp_path, s, ops)["measure"]["model"]
    assert 20 * 0.0001 < model["thread_wait_s_max"] < 20 * 0.0001 + 0.0005
    # What they lost they get later.
    assert 0.2 < model["elapsed_s"] < 0.21


def test_who_waits_for_a_processor_is_given_it_before_one_who_goes_on(tmp_path: Path, noise: Path) -> None:
    """One thread calls without a pause, each call 0.1 ms of the processor; another's wait for one each."""
    ops = Ops(step=0, dur=0)
    for _ in range(400):
        ops.add(READ, offset=0, size=512)
    for i in range(20):
        ops.t = i * 1_000_000
        ops.add(READ, offset=8192, size=512, thread=1)
    s = spec(noise, properties={"recordsize": "8K"}, closed=True)
    s["processor"] = {"cores": 1, "rates": [], "calls": {"read_us": 100, "write_us": 0, "sync_us": 0}}
    model = replay(tmp_path, s, ops)["measure"]["model"]
    assert model["elapsed_s"] == pytest.approx(0.042, rel=0.02)
    assert 0.1 < model["read_latency_ms"]["max"] < 0.3


def test_a_call_takes_the_processor_s_time(tmp_path: Path, noise: Path) -> None:
    ops = Ops(step=0, dur=0)
    for i in range(100):
        ops.add(READ, offset=i % 4 * 8192, size=8192)
        ops.add(WRITE, offset=i % 4 * 8192, size=8192)
    found = {}
    for us in (0, 50):
        s = spec(noise, properties={"recordsize": "8K"}, closed=True)
        s["processor"] = {"cores": 2, "rates": [], "calls": {"read_us": us, "write_us": us, "sync_us": us}}
        found[us] = replay(tmp_path, s, ops)["measure"]["model"]["elapsed_s"]
    assert found[50] - found[0] == pytest.approx(200 * 50e-6, rel=0.01)


def test_work_on_data_takes_the_processor_s_time(tmp_path: Path, noise: Path) -> None:
    """Blocks that the log points to are compressed while the commit waits: 8 KiB at half of 1 µs a byte."""
    ops = Ops(step=100_000_000)
    for i in range(20):
        ops.add(WRITE, offset=i * 8192, size=8192)
        ops.add(FSYNC)
    s = spec(noise, properties={"recordsize": "8K", "compression": "lz4", "logbias": "throughput"})
    rate = {"operation": "compress", "algorithm": "lz4", "size": 8192, "ns_per_byte": 1000}
    found = {}
    for cores in (0, 1):
        if cores:
            s["processor"] = {"cores": cores, "rates": [rate]}
        found[cores] = replay(tmp_path, s, ops)["measure"]["model"]["sync_latency_ms"]["p50"]
    assert found[1] - found[0] == pytest.approx(4.096, rel=0.02)


def test_concurrent_commits(tmp_path: Path, noise: Path) -> None:
    """Threads whose commits overlapped when recorded; everything still adds up and reads back."""
    s = spec(noise, size=[8 * MIB] * 4, properties={"recordsize": "16K"}, verify=True)
    ops = Ops(step=20_000)
    r = random.Random(9)
    for i in range(1200):
        th = i % 4
        ops.add(WRITE, th, offset=r.randrange(1024) * 8192, size=8192, thread=th)
        ops.add(FSYNC, th, thread=th, dur=100_000)
    out = replay(tmp_path, s, ops)
    check_sums(out)
    m = out["measure"]
    assert m["model"]["sync_latency_ms"]["count"] == 1200
    assert 300 <= m["zil"]["writes"] < 1100  # commits share log blocks


def test_file_operations_read_back(tmp_path: Path, noise: Path) -> None:
    """Everything that changes a file, in random order, compared byte by byte with a copy in memory."""
    for recordsize, seed in (("8K", 1), ("128K", 2), ("1M", 3), ("512", 4)):
        r = random.Random(seed)
        s = spec(
            noise,
            size=[3 * MIB + 777, 0, 100_000, 5000],
            properties={"recordsize": recordsize, "compression": "lz4"},
            verify=True,
            tunables={"zfs_txg_timeout": 1},
        )
        s["files"] += [{"id": i, "dataset": "tank/data", "size": 0, "content": "data"} for i in (4, 5)]
        ops = Ops(step=20_000_000)
        for _ in range(300):
            f, off, size = r.randrange(6), r.randrange(2 * MIB), int(2 ** r.uniform(0, 19))
            what = r.random()
            if what < 0.4:
                ops.add(
                    WRITE, f, offset=off, size=size, flags=r.choice([0, 0, O_DSYNC]), thread=r.randrange(3)
                )
            elif what < 0.6:
                ops.add(READ, f, offset=off, size=size, via=r.randrange(3))
            elif what < 0.68:
                ops.add(FSYNC, f, thread=r.randrange(3), dur=50_000_000)
            elif what < 0.75:
                ops.add(TRUNCATE, f, size=r.choice([0, off, size]))
            elif what < 0.85:
                flags = r.choice([0, KEEP_SIZE, PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE])
                ops.add(FALLOCATE, f, offset=off, size=size, flags=flags)
            elif what < 0.9:
                ops.add(COPY, f, offset=off, size=size, file2=r.choice([-1, *range(6)]))
            elif what < 0.93:
                ops.add(CREATE, f)
            elif what < 0.96:
                ops.add(UNLINK, f)
            elif what < 0.98:
                ops.add(RENAME, f, file2=r.choice([-1, *range(6)]))
            else:
                ops.add(SYNC, -1)
        out = replay(tmp_path, s, ops)
        check_sums(out)
        assert out["status"] == "ok"


def test_what_is_checked_of_a_file_ends_at_64_gib(tmp_path: Path, noise: Path) -> None:
    """What is kept in memory to compare with ends there, also where a change goes on beyond."""
    end = 1 << 36
    ops = Ops()
    for change in (
        {"op": TRUNCATE, "size": 0},
        {"op": FALLOCATE, "offset": 0, "size": 2 * end, "flags": PUNCH | KEEP_SIZE},
    ):
        ops.add(WRITE, offset=0, size=3 * 8192)
        ops.add(WRITE, offset=end - 4096, size=8192)
        ops.add(READ, offset=end - 4096, size=4096)
        ops.add(**change)
        ops.add(WRITE, offset=end - 100, size=10)
        ops.add(READ, offset=0, size=3 * 8192)
        ops.add(READ, offset=end - 4096, size=4096)
    ops.add(TRUNCATE, size=0)
    assert replay(tmp_path, spec(noise, size=0, verify=True), ops)["status"] == "ok"


def test_life_of_a_file(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=[0, 16 * MIB], properties={"recordsize": "128K"})
    ops = Ops(step=10_000_000)
    ops.add(CREATE, 0)
    for i in range(64):
        ops.add(WRITE, 0, offset=i * 131072, size=131072)
    ops.add(UNLINK, 0)
    ops.add(WRITE, 0, offset=0, size=8192)  # still open
    ops.add(UNLINK, 1)
    for _ in range(3):
        ops.add(SYNC, -1, step=6_000_000_000)  # freed space is given back over some groups
    out = replay(tmp_path, s, ops)
    check_sums(out)
    assert out["measure"]["space"]["files"] == 0  # the one that is open has no name
    assert out["measure"]["space"]["logical"] < MIB
    assert out["measure"]["space"]["allocated"] < 4 * MIB
    assert out["warnings"] == []


def test_the_padding_of_last_records_is_no_file(tmp_path: Path, noise: Path) -> None:
    """Files of 1.1 records of 1M are two records each in ZFS's words, and compress to what is in them."""
    sizes = [1_150_000] * 24 + [300_000] * 8
    s = spec(noise, size=sizes, properties={"recordsize": "1M", "compression": "lz4"})
    s["datasets"].append({"name": "tank/other", "properties": {"compression": "off"}})
    ops = Ops(files=len(sizes))
    ops.add(WRITE, 0, offset=1_150_000, size=50_000)
    ops.add(TRUNCATE, 1, size=1_100_000)
    ops.add(UNLINK, 2)
    space = replay(tmp_path, s, ops)["measure"]["space"]
    files = 22 * 1_150_000 + 1_200_000 + 1_100_000 - 1_150_000 + 8 * 300_000
    assert space["files"] == files and [d["files"] for d in space["datasets"]] == [files, 0]
    assert space["logical"] > 1.5 * files
    # Noise: nothing but the padding compresses.
    assert space["compression_ratio"] == pytest.approx(1.0, abs=0.02)
    assert space["datasets"][0]["compressratio"] > 1.5


def test_growing_file_keeps_one_block(tmp_path: Path, noise: Path) -> None:
    """A file below a record is one block of its own size: small appends rewrite it whole."""
    ops = Ops(step=6_000_000_000)
    ops.add(CREATE, 0)
    for i in range(8):
        ops.add(WRITE, 0, offset=i * 4096, size=4096)
    out = replay(tmp_path, spec(noise, size=0, properties={"recordsize": "128K"}), ops)
    # 4 + 8 + ... + 32 KB
    assert out["measure"]["by_cause"]["data"]["write_bytes"] == 4096 * 36


@pytest.mark.skipif(bool(needs.same_addresses()), reason=needs.same_addresses())
def test_same_input_same_result(tmp_path: Path, noise: Path) -> None:
    """Threads, locks and clocks are the engine's own: nothing is chance, nor the order of two I/Os."""
    s = spec(noise, size=[64 * MIB] * 3, properties={"recordsize": "16K"}, tunables={"zfs_txg_timeout": 1})
    ops = Ops(step=200_000)
    r = random.Random(3)
    for _ in range(1500):
        thread = r.randrange(3)
        ops.add(WRITE, thread, offset=r.randrange(8192) * 8192, size=8192, thread=thread)
        if r.random() < 0.3:
            ops.add(FSYNC, thread, thread=thread)
    a, b = (replay(tmp_path, s, ops)["measure"] for _ in range(2))
    assert modelled(a) == modelled(b)


def test_files_as_disks(tmp_path: Path, noise: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    s = spec(noise, size=16 * MIB, properties={"recordsize": "8K"}, verify=True)
    ops = overwrites(500, 8192, 16 * MIB)
    in_memory = replay(tmp_path, s, ops)["measure"]
    s.update(backing="file", backing_dir=str(back))
    out = replay(tmp_path, s, ops)
    check_sums(out)
    assert out["measure"]["by_cause"]["data"]["write_bytes"] == in_memory["by_cause"]["data"]["write_bytes"]
    assert list(back.iterdir()) == []


# Each size, and the largest with what takes longest to compress; the others are the same with more to do.
@pytest.mark.parametrize(
    ("recordsize", "compression"),
    [
        ("512", "gzip-6"),
        ("4K", "zle"),
        ("1M", "zle"),
        ("16M", "gzip-6"),
        *(
            pytest.param(size, words, marks=pytest.mark.long)
            for size, words in (("4K", "gzip-6"), ("1M", "gzip-6"), ("512", "zle"), ("16M", "zle"))
        ),
    ],
)
def test_record_sizes(tmp_path: Path, half: Path, recordsize: str, compression: str) -> None:
    s = spec(
        half,
        size=33 * MIB if recordsize != "512" else 2 * MIB,
        properties={"recordsize": recordsize, "compression": compression},
        arc=256 * MIB,
        verify=True,
    )
    ops = Ops()
    for i in range(4):
        ops.add(WRITE, offset=i * 100_000, size=8192)
        ops.add(READ, offset=i * 300_000, size=20_000)
    check_sums(replay(tmp_path, s, ops))


def test_what_was_read_before_the_trace_is_cached_and_not_counted(tmp_path: Path, noise: Path) -> None:
    # No larger than what is read: what OpenZFS prefetches beyond that is not the case's.
    s = spec(noise, size=4 * MIB, properties={"recordsize": "8K"}, arc=128 * MIB)

    def reads(warm: int) -> dict[str, Any]:
        ops = Ops()
        order = list(range(512))
        random.Random(2).shuffle(order)  # else most would be prefetched
        for block in order[:warm]:
            ops.add(WARM, offset=block * 8192, size=8192, dur=0, step=0)
        random.Random(3).shuffle(order)
        for block in order:
            ops.add(READ, offset=block * 8192, size=8192)
        found: dict[str, Any] = replay(tmp_path, s, ops)
        check_sums(found)
        return found

    cold, half, warm = reads(0), reads(256), reads(512)
    assert warm["measure"]["logical"]["reads"] == cold["measure"]["logical"]["reads"] == 512
    assert cold["load"]["warm_bytes"] == 0
    assert warm["load"]["warm_bytes"] == 512 * 8192
    assert warm["measure"]["physical"]["reads"] <= 2  # metadata of the pool itself
    assert cold["measure"]["physical"]["read_bytes"] >= 512 * 8192
    ratio = half["measure"]["physical"]["read_bytes"] / cold["measure"]["physical"]["read_bytes"]
    assert 0.4 < ratio < 0.6


def test_what_only_a_larger_arc_would_have_is_not_warmed(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=4 * MIB, properties={"recordsize": "8K"}, arc=128 * MIB)
    ops = Ops()
    order = list(range(512))
    random.Random(2).shuffle(order)
    for rank, block in enumerate(order):
        ops.add(WARM, offset=block * 8192, size=8192, dur=0, step=0, arc=512 - rank)
    ops.add(READ, offset=order[-1] * 8192, size=8192)
    found = replay(tmp_path, s, ops)
    assert found["load"]["warm_bytes"] == 128 * 8192
    assert found["measure"]["arc"]["demand_data_misses"] == 0
    larger = replay(tmp_path, {**s, "arc_max": 512 * MIB}, ops)
    assert larger["load"]["warm_bytes"] == 512 * 8192


def test_the_blank_end_of_a_write_compresses_to_nothing(tmp_path: Path, noise: Path) -> None:
    s = spec(
        noise,
        size=8 * MIB,
        properties={"recordsize": "8K", "compression": "lz4"},
        tunables={"zfs_txg_timeout": 3600},
    )

    def written(blank: int) -> int:
        ops = Ops()
        for block in range(512):
            ops.add(WRITE, offset=block * 8192, size=8192, blank=blank)
        found = replay(tmp_path, {**s, "verify": True}, ops)
        return int(found["measure"]["physical"]["write_bytes"])

    full, quarter = written(0), written(6144)
    # Noise stays 8 KiB; a quarter of it fits into one sector of 4 KiB.
    assert full - quarter == pytest.approx(512 * 4096, rel=0.02)  # and its metadata compresses otherwise
