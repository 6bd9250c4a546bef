from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ztune.errors import InputError
from ztune.trace import ops as trace_ops
from ztune.trace import rate as rates
from ztune.trace import sampling
from ztune.trace.inputs import OpsFile
from ztune.trace.ops import HEADER, MAGIC, OPS_VERSION, RECORD, read_ops
from ztune.trace.rate import (
    REGION,
    Rate,
    Work,
    check_rate,
    default_rate,
    is_all,
    parse_rate,
)
from ztune.trace.sampling import work
from ztune.trace.schema import Op

DATA, WAL, SMALL = 0, 1, 2
REGIONS = 64
FILES = (
    OpsFile(DATA, REGIONS * REGION, "data", "/db/data", 0, REGIONS * REGION),
    OpsFile(WAL, 0, "wal", "/db/wal", 1, 1 << 20),
    OpsFile(SMALL, 8192, "data", "/db/small", 2, 8192),
)


def sample(ops: Path, files: Sequence[OpsFile], rate: Rate, target: Path) -> tuple[OpsFile, ...]:
    return sampling.sample(ops, files, rate, target).files


def ops(path: Path, *rows: tuple[int, int, int, int]) -> Path:
    """Write operations: op, file, offset, size."""
    records = np.zeros(len(rows), RECORD)
    for number, (op, file, offset, size) in enumerate(rows):
        records[number]["t"], records[number]["op"], records[number]["file"] = number, op, file
        records[number]["offset"], records[number]["size"], records[number]["file2"] = offset, size, -1
    header = np.zeros(1, HEADER)
    header[0] = (MAGIC, OPS_VERSION, RECORD.itemsize, len(rows), len(FILES), 1)
    path.write_bytes(header.tobytes() + records.tobytes())
    return path


def reads(path: Path, n: int = 2000) -> Path:
    """Reads of pages, of which the first regions get the most, and a log."""
    rng = np.random.default_rng(1)
    region = np.minimum(rng.zipf(1.5, n) - 1, REGIONS - 1)
    offset = region * REGION + rng.integers(0, REGION // 8192, n) * 8192
    rows = [(Op.READ, DATA, int(at), 8192) for at in offset]
    rows += [row for i in range(20) for row in ((Op.WRITE, WAL, i * 4096, 4096), (Op.FSYNC, WAL, -1, -1))]
    return ops(path, *rows)


def test_the_parts_of_a_rate_are_the_whole_and_have_nothing_in_common(tmp_path: Path) -> None:
    whole, calls, bytes_, again, regions = reads(tmp_path / "ops.bin"), 0, 0, 0, 0
    for part in range(4):
        files = sample(whole, FILES, Rate(4, part), tmp_path / f"{part}.bin")
        records = read_ops(tmp_path / f"{part}.bin")[1]
        mine = records[records["file"] == DATA]
        calls += len(mine)
        bytes_ += files[DATA].size
        assert files[DATA].sampled and files[DATA].whole == FILES[DATA].size
        assert (mine["offset"] + mine["size"] <= files[DATA].size).all()
        # Logs and the smallest files are in each, as they are.
        assert files[WAL] == FILES[WAL] and files[SMALL] == FILES[SMALL]
        assert (records["file"] == WAL).sum() == 40
        certain = files[DATA].certain
        again += len(mine) - sum(_outside(mine, certain))
        regions += len(certain)
    # What stands out is in each of them, and counted once.
    assert calls - 3 * (again // 4) == 2000 and again % 4 == 0 and again > 0
    assert bytes_ == FILES[DATA].size + 3 * (regions // 4) * REGION


def _outside(rows: np.ndarray, certain: tuple[tuple[int, int], ...]) -> list[bool]:
    return [not any(at <= row["offset"] < at + size for at, size in certain) for row in rows]


def test_a_region_that_stands_out_is_in_every_sample_and_where_its_calls_are(tmp_path: Path) -> None:
    """A buffer of two regions that calls of 2 MiB go through, beside writes all over the file."""
    rng = np.random.default_rng(4)
    rows = [(Op.WRITE, DATA, int(at) * 8192, 8192) for at in rng.integers(0, REGIONS * 128, 600)]
    rows += [(Op.WRITE, DATA, 20 * REGION, 2 * REGION)] * 40
    whole = ops(tmp_path / "ops.bin", *rows)
    for part in range(4):
        files = sample(whole, FILES, Rate(4, part), tmp_path / "part.bin")
        records = read_ops(tmp_path / "part.bin")[1]
        large = records[records["size"] == 2 * REGION]
        at = int(large["offset"][0])
        assert len(large) == 40 and files[DATA].certain == ((at, REGION), (at + REGION, REGION))
        # The others are shared out among the samples as before.
        assert files[DATA].size == pytest.approx((62 / 4 + 2) * REGION, abs=REGION)
    # Of a sample alone it is not known what stands out.
    recorded = (replace(FILES[DATA], recorded=2, ino=7), *FILES[1:])
    assert not sample(whole, recorded, Rate(4), tmp_path / "part.bin")[DATA].certain


def test_where_all_regions_are_used_alike_none_stands_out(tmp_path: Path) -> None:
    rows = [(Op.READ, DATA, at * REGION, 8192) for at in range(REGIONS) for _ in range(50)]
    files = sample(ops(tmp_path / "ops.bin", *rows), FILES, Rate(4), tmp_path / "part.bin")
    assert files[DATA].certain == ()


def test_what_is_kept_as_json_is_the_same_file(tmp_path: Path) -> None:
    file = replace(FILES[DATA], sampled=True, certain=((0, REGION), (5 * REGION, REGION)))
    assert OpsFile.of_json(json.loads(json.dumps(vars(file)))) == file


def test_each_part_has_its_share_of_what_is_used_often(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    # Each eight regions are used alike, and some a hundred times as often as others.
    rows = [
        (Op.READ, DATA, region * REGION + int(rng.integers(0, 128)) * 8192, 8192)
        for region in range(REGIONS)
        for _ in range(1 + 100 // (1 + region // 8))
    ]
    whole = ops(tmp_path / "ops.bin", *rows)
    found = []
    for part in range(8):
        sample(whole, FILES, Rate(8, part), tmp_path / "part.bin")
        found.append(len(read_ops(tmp_path / "part.bin")[1]))
    assert sum(found) == len(rows)
    assert max(found) == min(found)


def test_the_first_part_has_no_more_than_the_others() -> None:
    stands_for = []
    for seed in range(400):
        chance = sampling._hash(np.arange(17, dtype=np.uint64), seed)
        parts = [sampling._taken(np.ones(17, np.int32), chance, Rate(4, part)) for part in range(4)]
        assert np.array_equal(np.sum(parts, axis=0), np.ones(17))
        stands_for.append(4 * parts[0].sum())
    assert np.mean(stands_for) == pytest.approx(17, rel=0.02)


def test_a_scan_goes_on_from_region_to_region(tmp_path: Path) -> None:
    rows = [(Op.READ, DATA, at, 1 << 16) for at in range(0, REGIONS * REGION, 1 << 16)]
    files = sample(ops(tmp_path / "ops.bin", *rows), FILES, Rate(4), tmp_path / "part.bin")
    offsets = read_ops(tmp_path / "part.bin")[1]["offset"].tolist()
    assert offsets == list(range(0, files[DATA].size, 1 << 16))


def test_a_call_over_several_regions_has_those_of_the_sample(tmp_path: Path) -> None:
    whole = ops(tmp_path / "ops.bin", (Op.READ, DATA, 0, REGIONS * REGION))
    total = 0
    for part in range(4):
        sample(whole, FILES, Rate(4, part), tmp_path / "part.bin")
        (one,) = read_ops(tmp_path / "part.bin")[1]
        assert one["offset"] == 0
        total += int(one["size"])
    assert total == REGIONS * REGION


def test_a_file_is_cut_where_the_sample_has_that_place(tmp_path: Path) -> None:
    whole = ops(tmp_path / "ops.bin", (Op.TRUNCATE, DATA, -1, 32 * REGION), (Op.FSYNC, DATA, -1, -1))
    sizes = []
    for part in range(4):
        sample(whole, FILES, Rate(4, part), tmp_path / "part.bin")
        cut, sync = read_ops(tmp_path / "part.bin")[1]
        sizes.append(int(cut["size"]))
        assert sync["op"] == Op.FSYNC
    assert sum(sizes) == 32 * REGION


def test_what_is_written_in_order_and_synced_is_a_log_whatever_its_role(tmp_path: Path) -> None:
    rows = [
        row for i in range(40) for row in ((Op.WRITE, DATA, i * 8192, 8192), (Op.FDATASYNC, DATA, -1, -1))
    ]
    files = sample(ops(tmp_path / "ops.bin", *rows), FILES, Rate(4), tmp_path / "part.bin")
    assert not files[DATA].sampled
    assert len(read_ops(tmp_path / "part.bin")[1]) == 80


def test_a_role_of_which_nothing_is_left_is_said(tmp_path: Path) -> None:
    whole = ops(tmp_path / "ops.bin", (Op.READ, DATA, 0, 8192))
    empty = 0
    for part in range(4):
        try:
            sample(whole, FILES, Rate(4, part), tmp_path / f"{part}.bin")
        except InputError as error:
            empty += 1
            assert "nothing of role data, of which 1 reads and writes in 64M were recorded" in str(error)
            assert not (tmp_path / f"{part}.bin").exists()
    assert empty == 3


@pytest.mark.parametrize("text", ["8", "1/", "2/8", "1/0", "1/x", "1/-4", "0.125"])
def test_a_rate_is_one_in_n(text: str) -> None:
    with pytest.raises(InputError, match="is no rate; write 1/N"):
        parse_rate(text)
    assert parse_rate(" 1/8 ") == 8 and parse_rate("1/65536") == 65536
    with pytest.raises(InputError, match="1/100000 is too little; 1/65536 is the least"):
        parse_rate("1/100000")


def test_a_rate_leaves_openzfs_the_least_arc() -> None:
    check_rate(8, 512 << 20, 64 << 20)
    with pytest.raises(InputError, match=r"leaves 32M of the smallest ARC .* 1/8 is the least"):
        check_rate(16, 512 << 20, 64 << 20)


def test_the_default_is_all_of_what_costs_little_and_no_less_than_the_arc_allows() -> None:
    floor = 64 << 20
    assert default_rate(Work(100_000, 1 << 30, 1 << 30, 1000), 1 << 30, floor) == 1
    assert default_rate(Work(1_200_000, 1 << 30, 1 << 30, 1000), 1 << 30, floor) == 8
    assert default_rate(Work(1_200_000, 1 << 40, 400 << 30, 10**6), 16 << 30, floor) == 128
    assert default_rate(Work(1_200_000, 1 << 40, 400 << 30, 10**6), 100 << 20, floor) == 1
    # No role has many regions: a sample has four of the largest.
    assert default_rate(Work(1_200_000, 1 << 40, 400 << 30, 40), 16 << 30, floor) == 8


TEMP = 3
WITH_TEMP = (*FILES, OpsFile(TEMP, 12 * REGION - 1, "temp", "/db/temp", 3, 12 * REGION - 1))


def test_a_role_of_few_regions_is_sampled_less(tmp_path: Path) -> None:
    """Of 64 regions one in 16 leaves four, of 12 one in 2 does: one in 4 would leave three."""
    rng = np.random.default_rng(5)
    rows = [
        (Op.READ, file, int(at) * 8192, 8192)
        for file, regions in ((DATA, REGIONS), (TEMP, 12))
        for at in rng.integers(0, regions * 128 - 1, 50 * regions)
    ]
    whole = ops(tmp_path / "ops.bin", *rows)
    shares = []
    for part in range(4):
        files = sample(whole, WITH_TEMP, Rate(16, part), tmp_path / "part.bin")
        records = read_ops(tmp_path / "part.bin")[1]
        assert (files[DATA].of, files[TEMP].of) == (16, 2)
        assert files[DATA].size == pytest.approx(4 * REGION, abs=REGION)
        assert files[TEMP].size == pytest.approx(6 * REGION, abs=REGION) and files[TEMP].sampled
        shares.append((records["file"] == TEMP).sum())
        assert (records["file"] == TEMP).sum() == pytest.approx(300, rel=0.2)
    # What is left of so few are two samples, in turn: together they are all.
    assert shares[0] == shares[2] and shares[1] == shares[3] and shares[0] + shares[1] == 600
    # Of seven regions there are no four in any part.
    few = (*FILES, replace(WITH_TEMP[TEMP], size=7 * REGION - 1, size_end=7 * REGION - 1))
    rows = [row for row in rows if row[1] == DATA or row[2] + row[3] < 7 * REGION]
    files = sample(ops(tmp_path / "few.bin", *rows), few, Rate(16), tmp_path / "part.bin")
    assert files[TEMP] == few[TEMP]


def test_of_each_thread_the_calls_are_known_that_chance_takes_a_part_of(tmp_path: Path) -> None:
    rows = [(Op.READ, DATA, at * REGION, 8192) for at in range(REGIONS)] * 3
    rows += [(Op.WRITE, DATA, 7 * REGION, 8192)] * 400  # it stands out
    rows += [(Op.WRITE, DATA, 6 * REGION, 3 * REGION), (Op.WRITE, WAL, 0, 4096), (Op.FSYNC, WAL, -1, -1)]
    whole = ops(tmp_path / "ops.bin", *rows)
    found = sampling.sample(whole, FILES, Rate(4), tmp_path / "part.bin")
    assert len(found.files[DATA].certain) == 1
    # Three reads of each region but the one, and two regions of the last write.
    assert found.calls == ((3 * (REGIONS - 1), 2),)
    assert found.calls == sampling.sample(whole, FILES, Rate(4, 1), tmp_path / "part.bin").calls
    recorded = (replace(FILES[DATA], recorded=2, ino=7), *FILES[1:])
    ((reads, writes),) = sampling.sample(whole, recorded, Rate(4), tmp_path / "part.bin").calls
    assert (reads, writes) == (2 * 3 * REGIONS, 2 * 403)


def test_the_default_goes_by_the_role_of_most_regions(tmp_path: Path) -> None:
    whole = ops(tmp_path / "ops.bin", (Op.READ, DATA, 0, 8192), (Op.READ, TEMP, 0, 8192))
    assert work(whole, WITH_TEMP).regions == REGIONS + 1


def test_work_is_what_would_be_sampled(tmp_path: Path) -> None:
    found = work(reads(tmp_path / "ops.bin"), FILES)
    assert found.events == 2000
    assert found.data == FILES[DATA].size
    assert REGION <= found.touched <= found.data
    assert found.regions == REGIONS + 1


def test_all_is_plain_without_the_operations() -> None:
    floor = 64 << 20
    assert is_all(rates.EVENTS, rates.LOADED, 1 << 40, floor)
    assert not is_all(rates.EVENTS + 1, 1 << 20, 1 << 30, floor)
    assert not is_all(1000, rates.LOADED + 1, 1 << 30, floor)
    # No part of such an ARC is large enough.
    assert not is_all(10**9, 1 << 50, 4 * floor, floor)
    assert is_all(10**9, 1 << 50, 4 * floor - 1, floor)
    assert default_rate(Work(10**9, 1 << 50, 1 << 50, 1 << 30), 4 * floor - 1, floor) == 1


def test_operations_are_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    rows = [(Op.READ, DATA, int(at) * 8192, 8192) for at in rng.integers(0, REGIONS * 128, 500)]
    rows += [
        row for i in range(40) for row in ((Op.WRITE, SMALL, i * 8192, 8192), (Op.FDATASYNC, SMALL, -1, -1))
    ]
    # The small one has grown: it is whole as a log alone.
    whole, files = ops(tmp_path / "ops.bin", *rows), (*FILES[:2], replace(FILES[2], size_end=16 << 20))
    records = {DATA: 128 << 10, SMALL: 8192}

    def found() -> tuple[object, ...]:
        return (
            sample(whole, files, Rate(4, 1), tmp_path / "part.bin"),
            (tmp_path / "part.bin").read_bytes(),
            work(whole, files),
            sampling.touched_bytes(whole, files, records),
        )

    at_once = found()
    assert not at_once[0][SMALL].sampled  # type: ignore[index]
    monkeypatch.setattr(trace_ops, "_CHUNK", 7)
    assert found() == at_once
    monkeypatch.setattr(sampling, "_DISTINCT", 8)
    assert sampling.touched_bytes(whole, files, records) >= at_once[3]  # type: ignore[operator]


def test_touched_bytes_are_of_whole_records(tmp_path: Path) -> None:
    rows = [(Op.READ, DATA, 0, 8192), (Op.READ, DATA, 8192, 8192), (Op.READ, DATA, 5 * REGION, 2 * REGION)]
    found = sampling.touched_bytes(ops(tmp_path / "ops.bin", *rows), FILES, {DATA: 128 << 10, WAL: 1 << 20})
    assert found == (128 << 10) + 2 * REGION


def test_to_how_many_reads_one_was_asked_for_ahead(tmp_path: Path) -> None:
    page = 8192
    asked = [(Op.READ_AHEAD, DATA, i * page, page) for i in range(3)]
    read = [(Op.READ, DATA, i * page, page) for i in range(4)]
    assert sampling.asked_ahead(ops(tmp_path / "a", *asked, *read)) == 0.75
    assert sampling.asked_ahead(ops(tmp_path / "b", *read)) == 0.0
    assert sampling.asked_ahead(ops(tmp_path / "c", *asked)) == 0.0  # nothing came of it
    assert sampling.asked_ahead(ops(tmp_path / "d", *asked, *read[:1])) == 1.0
