"""A part of the data in place of all: records that are not loaded, files that stand for more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_build import (
    COPY,
    FALLOCATE,
    FSYNC,
    KEEP_SIZE,
    MIB,
    O_DSYNC,
    PUNCH,
    READ,
    TRUNCATE,
    UNLINK,
    WRITE,
    Ops,
    group,
    replay,
    spec,
)

SIZE = 96 * MIB
NO_PREFETCH = {"zfs_prefetch_disable": 1}
AT_WORK = {
    "cores": 1,
    "rates": [
        {"operation": "compress", "algorithm": "lz4", "size": 8192, "ns_per_byte": 10.0},
        {"operation": "checksum", "algorithm": "fletcher4", "size": 8192, "ns_per_byte": 2.0},
    ],
}
"""Processors that take their time, so that a load puts a file's blocks one behind the other."""


def mixed(n: int, size: int, page: int = 8192) -> Ops:
    """Random reads and writes of pages in an eighth of the file, every fortieth one synced; and a scan."""
    ops, rng = Ops(step=2_000_000), random.Random(3)
    for i in range(n):
        at = rng.randrange(size // page // 8) * 8 * page
        ops.add(READ if i % 3 else WRITE, offset=at, size=page)
        if i % 40 == 0:
            ops.add(FSYNC)
    for i in range(16):
        ops.add(READ, offset=size // 2 + i * 65536, size=65536)
    return ops


def both(folder: Path, content: Path, ops: Ops, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    s = spec(content, size=SIZE, **asked)
    return replay(folder, s, ops), replay(folder, {**s, "load": "touched"}, ops)


@pytest.mark.parametrize("recordsize", ["8K", "128K"])
def test_what_is_touched_gives_the_counts_of_all(tmp_path: Path, half: Path, recordsize: str) -> None:
    full, part = both(tmp_path, half, mixed(600, SIZE), properties={"recordsize": recordsize})
    assert part["load"]["missed"] == 0
    assert part["load"]["write_bytes"] <= full["load"]["write_bytes"]
    a, b = full["measure"], part["measure"]
    assert b["logical"] == a["logical"]
    assert b["by_cause"]["data"]["reads"] == pytest.approx(a["by_cause"]["data"]["reads"], rel=0.02)
    assert b["by_cause"]["data"]["read_bytes"] == pytest.approx(a["by_cause"]["data"]["read_bytes"], rel=0.02)
    assert b["by_cause"]["data"]["write_bytes"] == pytest.approx(
        a["by_cause"]["data"]["write_bytes"], rel=0.02
    )
    assert b["zil"]["writes"] == a["zil"]["writes"]
    metadata = a["by_cause"]["metadata"]["write_bytes"]
    assert b["by_cause"]["metadata"]["write_bytes"] == pytest.approx(metadata, rel=0.15)
    assert b["space"]["allocated"] == pytest.approx(a["space"]["allocated"], rel=0.03)
    assert b["space"]["compression_ratio"] == pytest.approx(a["space"]["compression_ratio"], rel=0.03)


def test_what_is_read_ahead_of_rare_reads_of_small_files_is_loaded(tmp_path: Path, half: Path) -> None:
    """Parts of records, seconds apart: OpenZFS keeps where the next read of a file would begin until another
    does."""
    files, size = 300, 96 << 10
    ops, rng = Ops(step=20_000_000, files=files), random.Random(7)
    order = [i for i in range(files) for _ in range(4)]
    rng.shuffle(order)
    for i in order:
        ops.add(READ, i, offset=rng.randrange(size - 2700), size=2700)
    s = spec(half, size=[size] * files, properties={"recordsize": "8K"})
    full, part = (replay(tmp_path, {**s, "load": load}, ops)["measure"] for load in ("all", "touched"))
    reads = full["by_cause"]["data"]["read_bytes"]
    assert part["by_cause"]["data"]["read_bytes"] == pytest.approx(reads, rel=0.02)
    assert full["arc"]["prefetch_data_misses"] > 0.05 * len(order)


def test_a_hard_disk_is_as_busy_with_what_is_touched_as_with_all(tmp_path: Path, half: Path) -> None:
    """Few pages of a file are touched, on a much larger disk: new writes don't lie far away for it."""
    ops, rng = Ops(step=40_000_000), random.Random(5)
    for _ in range(100):
        ops.add(READ, offset=rng.randrange(SIZE // 8192) * 8192, size=8192)
        ops.add(WRITE, offset=rng.randrange(SIZE // 8192) * 8192, size=8192)
        ops.add(FSYNC)
    full, part = both(
        tmp_path,
        half,
        ops,
        properties={"recordsize": "8K"},
        profile="hdd",
        disk=1 << 42,
        tunables=NO_PREFETCH,
    )
    a, b = (found["measure"]["model"]["busy_s_max"] for found in (full, part))
    assert b == pytest.approx(a, rel=0.1)


def in_order(size: int) -> list[int]:
    """Offsets of a sixth of a table's pages, in its order, none of which is next to another."""
    rng = random.Random(5)
    return [(6 * i + rng.randrange(5)) * 8192 for i in range(size // 8192 // 6)]


def test_pages_in_the_order_of_a_table_lie_as_close_with_what_is_touched(tmp_path: Path, half: Path) -> None:
    """Beside a log and a table of which nothing is touched, and which would lie between them."""
    ops = Ops(step=1_000_000)
    for offset in in_order(4 * SIZE):
        ops.add(READ, offset=offset, size=8192)
    s = spec(half, size=[4 * SIZE, SIZE, SIZE], properties={"recordsize": "8K"}, profile="hdd",
             disk=1 << 42, processor=AT_WORK)  # fmt: skip
    full, part = (
        replay(tmp_path, {**s, "load": load}, ops)["measure"]["model"] for load in ("all", "touched")
    )
    assert part["busy_s_max"] == pytest.approx(full["busy_s_max"], rel=0.1)


def test_a_scan_by_several_threads_takes_as_long_with_a_sample(tmp_path: Path, half: Path) -> None:
    """What the reads of a scan stand for is read beside them."""
    size, found = 8 * SIZE, {}
    for rate in (1, 16):
        s = spec(half, size=size // rate, properties={"recordsize": "128K"}, profile="hdd", disk=1 << 42,
                 load="touched", processor=AT_WORK)  # fmt: skip
        if rate > 1:
            whole = {"sampled": True, "whole": size, "whole_start": size}
            s |= {"sample": rate, "files": [{**s["files"][0], **whole}]}
        ops = Ops(step=0)
        for page in range(size // 8192):
            region, within = divmod(page * 8192, MIB)
            ops.t += 10_000
            if region % rate == 0:
                ops.add(READ, offset=region // rate * MIB + within, size=8192, thread=page // 16 % 4)
        found[rate] = replay(tmp_path, s, ops)["measure"]["model"]["elapsed_s"]
    assert found[16] == pytest.approx(found[1], rel=0.5)


def test_of_small_records_little_is_loaded(tmp_path: Path, half: Path) -> None:
    ops = Ops()
    ops.add(READ, offset=0, size=8192)
    full, part = both(tmp_path, half, ops, properties={"recordsize": "8K"})
    assert part["load"]["write_bytes"] < full["load"]["write_bytes"] / 8
    assert part["memory_peak"] < full["memory_peak"]


def test_of_files_that_nothing_touches_nothing_is_loaded(tmp_path: Path, half: Path) -> None:
    files = 64
    ops = Ops(files=files)
    ops.add(READ, offset=MIB, size=8192)
    s = spec(half, size=[4 * MIB] * files, properties={"recordsize": "1M"})
    full, part = replay(tmp_path, s, ops), replay(tmp_path, {**s, "load": "touched"}, ops)
    # 32 records, to know what one comes to; the end of each file would be 64 more.
    assert part["load"]["write_bytes"] <= 34 * MIB
    assert part["load"]["missed"] == 0
    a, b = full["measure"], part["measure"]
    assert b["by_cause"]["data"]["reads"] == a["by_cause"]["data"]["reads"]
    assert b["space"]["allocated"] == pytest.approx(a["space"]["allocated"], rel=0.03)


def test_of_many_small_files_that_nothing_touches_some_are_loaded(tmp_path: Path, half: Path) -> None:
    """Each is one record; 256 MiB of them tell what the others take."""
    files, kib = 560, 700 << 10
    ops = Ops(files=files)
    ops.add(READ, offset=0, size=8192)
    s = spec(half, size=[kib] * files, properties={"recordsize": "1M"})
    full, part = replay(tmp_path, s, ops), replay(tmp_path, {**s, "load": "touched"}, ops)
    assert part["load"]["write_bytes"] <= (256 << 20) + 2 * kib < full["load"]["write_bytes"]
    for key in ("files", "logical", "allocated"):
        assert part["measure"]["space"][key] == pytest.approx(full["measure"]["space"][key], rel=0.03), key


def test_a_file_whose_end_was_not_loaded_grows_as_any_other(tmp_path: Path, half: Path) -> None:
    """Behind the end, and far behind it: both are other blocks of pointers than what was loaded."""
    ops, size = Ops(step=100_000_000), 24 * MIB
    ops.add(READ, offset=0, size=8192)
    for at in (size, size - 4096, 3 * size):
        ops.add(WRITE, offset=at, size=16384)
        ops.add(FSYNC)
        ops.add(READ, offset=at, size=16384)
    s = spec(half, size=size, properties={"recordsize": "8K"})
    full, part = replay(tmp_path, s, ops), replay(tmp_path, {**s, "load": "touched"}, ops)
    a, b = full["measure"], part["measure"]
    assert b["logical"] == a["logical"]
    assert b["by_cause"]["data"]["write_bytes"] == a["by_cause"]["data"]["write_bytes"]
    assert b["zil"]["writes"] == a["zil"]["writes"]
    assert b["space"]["allocated"] == pytest.approx(a["space"]["allocated"], rel=0.03)


def test_what_was_not_loaded_reads_as_zeros(tmp_path: Path, half: Path) -> None:
    # With verify each file is read whole at the end, records that are not there too.
    s = spec(half, size=16 * MIB, properties={"recordsize": "16K"}, verify=True, load="touched")
    ops = Ops()
    ops.add(WRITE, offset=5 * 16384, size=100)
    ops.add(READ, offset=9 * 16384, size=16384)
    assert replay(tmp_path, s, ops)["status"] == "ok"


@pytest.mark.parametrize(
    ("op", "asked"),
    [
        (UNLINK, {}),
        (TRUNCATE, {"size": 4 * MIB}),
        (FALLOCATE, {"offset": 0, "size": 64 * MIB, "flags": PUNCH | KEEP_SIZE}),
    ],
)
def test_records_that_were_not_loaded_can_be_freed(
    tmp_path: Path, half: Path, op: int, asked: dict[str, int]
) -> None:
    """More of them than were loaded, of a file that little was read of: such as a table that is dropped."""
    ops = Ops()
    for i in range(16):
        ops.add(READ, offset=i * 8 * MIB, size=8192)
    ops.add(op, **asked)
    s = spec(half, size=128 * MIB, properties={"recordsize": "8K"})
    full, part = (replay(tmp_path, {**s, "load": load}, ops)["measure"] for load in ("all", "touched"))
    assert part["space"]["files"] == full["space"]["files"]
    assert part["physical"]["read_bytes"] == pytest.approx(full["physical"]["read_bytes"], rel=0.03)


@pytest.mark.parametrize("copies", [True, False])
def test_the_compression_ratio_of_a_file_that_grows_is_that_of_all(
    tmp_path: Path, half: Path, copies: bool
) -> None:
    """Neither copies nor the parity of small blocks, which take as much as the data, are in it."""
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, file=1, offset=i * MIB, size=MIB)
    s = spec(
        half,
        size=[16 * MIB, 0],
        properties={"copies": "2"} if copies else {"recordsize": "8K"},
        vdevs=None if copies else [group("data", "raidz2", 6)],
    )
    full, part = (
        replay(tmp_path, {**s, "load": load}, ops)["measure"]["space"] for load in ("all", "touched")
    )
    assert part["compression_ratio"] == pytest.approx(full["compression_ratio"], rel=0.01)
    assert part["allocated"] == full["allocated"]


def hole(start: int, end: int) -> dict[str, int]:
    """A hole from one MiB to another."""
    return {"op": FALLOCATE, "offset": start * MIB, "size": (end - start) * MIB, "flags": PUNCH | KEEP_SIZE}


@pytest.mark.parametrize(
    "freed",
    [
        # Both of these are a part of those below.
        pytest.param([{"op": TRUNCATE, "size": 16 * MIB}], marks=pytest.mark.long),
        pytest.param([hole(0, 64)], marks=pytest.mark.long),
        [hole(16, 64), hole(32, 96), hole(32, 64)],
        [hole(64, 120), {"op": TRUNCATE, "size": 100 * MIB}],
        [{"op": TRUNCATE, "size": 16 * MIB}, {"op": TRUNCATE, "size": 128 * MIB}, hole(8, 128)],
        [{"op": TRUNCATE, "size": 256 * MIB}, {"op": WRITE, "offset": 200 * MIB, "size": MIB}, hole(8, 220)],
    ],
)
def test_what_was_not_loaded_and_is_freed_takes_no_space(
    tmp_path: Path, half: Path, freed: list[dict[str, int]]
) -> None:
    ops = Ops()
    for i in range(16):
        ops.add(READ, offset=i * 8 * MIB, size=8192)
    for call in freed:
        ops.add(**call)
    s = spec(half, size=128 * MIB, properties={"recordsize": "8K"})
    full, part = (
        replay(tmp_path, {**s, "load": load}, ops)["measure"]["space"] for load in ("all", "touched")
    )
    for key in ("compression_ratio", "logical", "allocated"):
        assert part[key] == pytest.approx(full[key], rel=0.02), key


def test_a_sampled_file_counts_for_all(tmp_path: Path, half: Path) -> None:
    s = spec(half, size=16 * MIB, properties={"recordsize": "16K"}, sample=8)
    s["files"][0] |= {"sampled": True, "whole": 8 * 16 * MIB}
    ops = Ops()
    for i in range(64):
        ops.add(READ, offset=i * 16 * 16384, size=16384)
    one = replay(tmp_path, s, ops)["measure"]
    assert one["logical"]["reads"] == 8 * 64
    assert one["by_cause"]["data"]["reads"] == 8 * 64
    assert one["physical"]["reads"] == sum(cause["reads"] for cause in one["by_cause"].values())
    assert one["space"]["files"] == 8 * 16 * MIB
    assert one["space"]["allocated"] == pytest.approx(8 * 16 * MIB, rel=0.02)
    assert one["model"]["read_latency_ms"]["count"] == 8 * 64


def test_the_log_of_each_of_many_datasets_counts_for_all(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=[MIB] * 70, sample=8)
    s["datasets"] = [{"name": f"tank/{i}", "properties": {"recordsize": "8K"}} for i in range(70)]
    ops = Ops()
    for i, file in enumerate(s["files"]):
        file |= {"dataset": f"tank/{i}", "sampled": True, "whole": 8 * MIB}
        for k in range(4):
            ops.add(WRITE, i, offset=k * 8192, size=8192, flags=O_DSYNC)
    found = [d["zil_bytes"] for d in replay(tmp_path, s, ops)["measure"]["by_dataset"]]
    assert found == [found[0]] * 70


def test_what_a_log_block_has_room_for_goes_into_it(tmp_path: Path, noise: Path) -> None:
    s = spec(noise, size=MIB, sample=8, properties={"recordsize": "8K"})
    s["files"][0] |= {"sampled": True, "whole": 8 * MIB}
    ops = Ops()
    for i in range(64):
        ops.add(WRITE, offset=i * 8192, size=8192, flags=O_DSYNC)
    log = replay(tmp_path, s, ops)["measure"]["by_cause"]["zil"]
    # 64 KiB of the whole's data, in a block of at most 128.
    assert 64 <= log["writes"] < 68
    assert 64 * 65536 < log["write_bytes"] < 64 * 75000


def test_the_log_counts_for_all_on_each_side_of_a_mirror(tmp_path: Path, noise: Path) -> None:
    written = {}
    for sides in (1, 2):
        s = spec(
            noise, size=MIB, sample=8, properties={"recordsize": "8K"},
            vdevs=[group("data", "mirror" if sides > 1 else "stripe", sides)],
        )  # fmt: skip
        s["files"][0] |= {"sampled": True, "whole": 8 * MIB}
        ops = Ops()
        for i in range(64):
            ops.add(WRITE, offset=i * 8192, size=8192, flags=O_DSYNC)
        measured = replay(tmp_path, s, ops)["measure"]
        written[sides] = measured["by_cause"]["zil"]["write_bytes"]
    assert written[2] == pytest.approx(2 * written[1], rel=0.01)


def test_a_file_that_is_sampled_less_counts_for_less(tmp_path: Path, half: Path) -> None:
    s = spec(half, size=[16 * MIB] * 2, properties={"recordsize": "16K"}, sample=8)
    s["files"][0] |= {"sampled": True, "whole": 8 * 16 * MIB}
    s["files"][1] |= {"sampled": True, "whole": 2 * 16 * MIB, "of": 2}
    ops = Ops(files=2)
    for i in range(64):
        ops.add(READ, file=0, offset=i * 16 * 16384, size=16384)
    for i in range(32):
        ops.add(READ, file=1, offset=i * 32 * 16384, size=16384)
    one = replay(tmp_path, s, ops)["measure"]
    assert one["logical"]["reads"] == one["by_cause"]["data"]["reads"] == 8 * 64 + 2 * 32
    assert one["space"]["files"] == (8 + 2) * 16 * MIB
    assert one["space"]["allocated"] == pytest.approx((8 + 2) * 16 * MIB, rel=0.02)


def test_what_is_certain_of_a_sampled_file_counts_once(tmp_path: Path, half: Path) -> None:
    s = spec(half, size=16 * MIB, properties={"recordsize": "16K"}, sample=8)
    s["files"][0] |= {"sampled": True, "whole": (8 * 15 + 1) * MIB, "certain": [[4 * MIB, MIB]]}
    ops = Ops(step=10_000_000)
    for i in range(32):
        ops.add(READ, offset=i * 8 * 16384, size=16384)  # 8 in each MiB, of 4
    for i in range(64):
        ops.add(WRITE, offset=4 * MIB + i * 16384, size=16384)  # all of the certain one
    for edge in (4 * MIB, 5 * MIB):
        ops.add(READ, offset=edge - 8192, size=16384)  # a half of it
    one = replay(tmp_path, s, ops)["measure"]
    assert one["logical"]["writes"] == 64
    assert one["logical"]["reads"] == pytest.approx(8 * 32 + 8 + 1)
    assert one["by_cause"]["data"]["write_bytes"] == pytest.approx(MIB, rel=0.1)
    assert one["space"]["files"] == (8 * 15 + 1) * MIB
    assert one["space"]["allocated"] == pytest.approx((8 * 15 + 1) * MIB, rel=0.05)


def test_a_copy_of_what_is_certain_is_read_as_often_as_it_is_written(tmp_path: Path, half: Path) -> None:
    """The trace does not tell where in the source it began: not where it is written."""
    s = spec(half, size=[16 * MIB] * 2, properties={"recordsize": "16K"}, sample=8)
    for file in s["files"]:
        file |= {"sampled": True, "whole": 8 * 16 * MIB}
    s["files"][0] |= {"whole": (8 * 15 + 1) * MIB, "certain": [[4 * MIB, MIB]]}
    ops = Ops(step=10_000_000, files=2)
    for i in range(16):
        ops.add(COPY, 1, offset=4 * MIB + i * 16384, size=16384, file2=0)
    found = replay(tmp_path, s, ops)["measure"]["logical"]
    assert found["writes"] == 8 * 16
    assert found["reads"] == found["writes"] and found["read_bytes"] == found["write_bytes"]


def test_small_files_of_which_the_sample_has_nothing_take_their_space(tmp_path: Path, half: Path) -> None:
    """Of 32 files, each within a region, the sample has 4; of the others one is removed, one new."""
    s = spec(half, size=[MIB] * 4 + [0] * 28, properties={"recordsize": "16K"}, sample=8)
    for number, file in enumerate(s["files"]):
        file |= {"sampled": True, "whole": MIB, "whole_start": 0 if number == 31 else MIB}
    ops = Ops(files=32)
    for i in range(4):
        ops.add(READ, file=i, offset=0, size=16384)
    ops.add(UNLINK, file=30)
    ops.add(FSYNC, file=29)
    one = replay(tmp_path, s, ops)
    space = one["measure"]["space"]
    assert space["allocated"] == pytest.approx(30 * MIB, rel=0.1)
    assert space["logical"] == pytest.approx(30 * MIB, rel=0.15)


def test_short_records_of_small_files_say_nothing_of_full_ones(tmp_path: Path, half: Path) -> None:
    """A sample has all of the smallest files, and so as many of their records as of what stands for many."""
    small, properties = [8192] * 64, {"recordsize": "128K"}
    full = spec(half, size=[64 * MIB, *small], properties=properties)
    part = spec(half, size=[8 * MIB, *small], properties=properties, sample=8)
    part["files"][0] |= {"sampled": True, "whole": 64 * MIB, "whole_start": 64 * MIB}
    ops = Ops(files=65)
    for i in range(64):
        ops.add(READ, offset=i << 17, size=8192)
        ops.add(READ, file=1 + i, offset=0, size=8192)
    of_all, of_part = (replay(tmp_path, s, ops)["measure"]["space"] for s in (full, part))
    for key in ("logical", "allocated"):
        assert of_part[key] == pytest.approx(of_all[key], rel=0.05), key


@pytest.mark.parametrize("size", [88, 176])
@pytest.mark.parametrize("compression", ["lz4", "off"])
def test_the_last_record_of_a_small_file_takes_its_part(
    tmp_path: Path, half: Path, size: int, compression: str
) -> None:
    """Files of two thirds of a record, and of one and a third: all 32, and a sample that has 4 of them."""
    kib, properties = size << 10, {"recordsize": "128K", "compression": compression}
    full = spec(half, size=[kib] * 32, properties=properties)
    part = spec(half, size=[kib] * 4 + [0] * 28, properties=properties, sample=8)
    for file in part["files"]:
        file |= {"sampled": True, "whole": kib, "whole_start": kib}
    ops = Ops(files=32)
    for i in range(4):
        ops.add(READ, file=i, offset=0, size=16384)
    of_all, of_part = (replay(tmp_path, s, ops)["measure"]["space"] for s in (full, part))
    for key in ("files", "logical", "allocated"):
        assert of_part[key] == pytest.approx(of_all[key], rel=0.06), key


def test_a_log_beside_a_sampled_file_counts_once(tmp_path: Path, half: Path) -> None:
    s = spec(half, size=16 * MIB, properties={"recordsize": "16K"}, sample=8)
    s["files"] = [
        {**s["files"][0], "sampled": True, "whole": 8 * 16 * MIB},
        {**s["files"][0], "id": 1, "size": MIB},
    ]
    ops = Ops(step=10_000_000, files=2)
    for i in range(32):
        ops.add(WRITE, file=1, offset=i * 8192, size=8192)
        ops.add(FSYNC, file=1)
    m = replay(tmp_path, s, ops)["measure"]
    assert m["logical"]["writes"] == 32
    assert m["zil"]["commits"] == 32
    assert m["zil"]["bytes"] < 32 * 16384


def test_a_disk_does_what_a_sampled_request_stands_for(tmp_path: Path, half: Path) -> None:
    s = spec(half, size=16 * MIB, properties={"recordsize": "16K"})
    ops = Ops(step=20_000_000)
    for i in range(100):
        ops.add(READ, offset=i * 10 * 16384, size=16384)
    whole = replay(tmp_path, s, ops)["measure"]["model"]
    s = {**s, "sample": 8, "files": [{**s["files"][0], "sampled": True, "whole": 8 * 16 * MIB}]}
    part = replay(tmp_path, s, ops)["measure"]["model"]
    assert part["busy_s_max"] == pytest.approx(8 * whole["busy_s_max"], rel=0.25)


def test_a_disk_that_cannot_keep_up_takes_as_long_with_a_sample(tmp_path: Path, half: Path) -> None:
    """A call of the sample waits for all that came before it; no thread waits for longer than they take. What
    the others read lies closer together than what the trace's threads do."""
    pages, rate = 4096, 4
    found = []
    for of in (1, rate):
        s = spec(half, size=pages // of * 16384, properties={"recordsize": "16K"}, profile="hdd")
        if of > 1:
            whole = {"whole": pages * 16384, "whole_start": pages * 16384}
            s |= {"sample": of, "files": [{**s["files"][0], "sampled": True, **whole}]}
        ops, rng = Ops(step=0), random.Random(3)
        for i in range(2400):
            page, thread = rng.randrange(pages), i % 6
            if page % of == 0:
                ops.add(READ, thread=thread, offset=page // of * 16384, size=16384)
            ops.t += 500_000
        found.append(replay(tmp_path, s, ops)["measure"]["model"])
    all_, part = found
    assert all_["modelled_s"] == pytest.approx(all_["elapsed_s"], rel=0.02) and all_["elapsed_s"] > 5
    assert part["modelled_s"] == pytest.approx(all_["modelled_s"], rel=0.25)


def test_the_processor_does_what_a_sampled_write_stands_for(tmp_path: Path, half: Path) -> None:
    """One processor that takes long to compress: a sync writes blocks in place, 64 of them or 8 for these."""
    rate = {"operation": "compress", "algorithm": "lz4", "size": 16384, "ns_per_byte": 200}
    found = []
    for of in (1, 8):
        s = spec(half, size=16 * MIB // of, properties={"recordsize": "16K", "logbias": "throughput"})
        s["datasets"][0]["properties"]["compression"] = "lz4"
        s["processor"] = {"cores": 1, "rates": [rate]}
        if of > 1:
            s |= {"sample": of, "files": [{**s["files"][0], "sampled": True, "whole": 16 * MIB}]}
        ops = Ops(step=1_000_000)
        for i in range(64 // of):
            ops.add(WRITE, offset=i * 16384, size=16384)
        ops.add(FSYNC)
        found.append(replay(tmp_path, s, ops)["measure"]["model"]["sync_latency_ms"]["max"])
    assert found[1] == pytest.approx(found[0], rel=0.3) and found[0] > 50


def test_blocks_above_are_written_as_often_as_in_the_whole(tmp_path: Path, half: Path) -> None:
    """Of many small files few are written in a group: in the sample an eighth of the calls comes to fewer of
    them, and there is a block of pointers for each file both ways."""
    rate, files, pages, rng = 8, 96, 256, random.Random(5)
    whole, part = Ops(step=100_000_000), Ops(step=100_000_000)
    for i in range(600):
        file, page = rng.randrange(files), rng.randrange(pages)
        whole.add(WRITE, file, offset=page * 4096, size=4096)
        if i % rate == 0:
            part.add(WRITE, file, offset=page // rate * 4096, size=4096)
        else:
            part.t += part.step
    part.files = whole.files = files
    s = spec(half, size=[pages * 4096] * files, properties={"recordsize": "4K"})
    full = replay(tmp_path, s, whole)["measure"]
    sampled = [{**f, "size": f["size"] // rate, "sampled": True, "whole": f["size"]} for f in s["files"]]
    one = replay(tmp_path, {**s, "sample": rate, "files": sampled}, part)["measure"]
    assert one["by_cause"]["data"]["write_bytes"] == pytest.approx(full["by_cause"]["data"]["write_bytes"])
    metadata = full["by_cause"]["metadata"]["write_bytes"]
    assert one["by_cause"]["metadata"]["write_bytes"] == pytest.approx(metadata, rel=0.2)


# All of the larger ones are a gigabyte.
@pytest.mark.parametrize(
    ("load", "record"),
    [
        ("all", 8192),
        ("touched", 8192),
        pytest.param("all", 32768, marks=pytest.mark.long),
        ("touched", 32768),
    ],
)
def test_a_block_of_pointers_is_as_large_as_a_true_one(
    tmp_path: Path, noise: Path, load: str, record: int
) -> None:
    """LZ4 makes 43 to 46 bytes of a pointer: 32 of its checksum, like no other's, and some of its address."""
    blocks = 32
    ops = Ops()
    for i in range(blocks * 4):
        ops.add(WRITE, offset=i * 256 * record, size=record)
    s = spec(
        noise, size=blocks * 1024 * record, properties={"recordsize": f"{record >> 10}K"}, load=load,
        tunables={"zfs_txg_timeout": 3600}, arc=512 * MIB, host_memory=4 << 30,
    )  # fmt: skip
    metadata = replay(tmp_path, s, ops)["measure"]["by_cause"]["metadata"]["write_bytes"]
    # In one group, each twice, in sectors of 4K; little else is metadata.
    assert metadata == pytest.approx(blocks * 2 * (48 << 10), rel=0.04)


def test_zeros_that_are_loaded_are_holes(tmp_path: Path) -> None:
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(4 * MIB))
    ops = Ops()
    ops.add(READ, offset=0, size=8192)
    s = spec(zeros, size=256 * MIB, properties={"compression": "lz4"}, load="all")
    assert replay(tmp_path, s, ops)["measure"]["space"]["allocated"] < MIB
