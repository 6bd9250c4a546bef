"""The study that is built from what was recorded: which values are tried, and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from ztune.onhost.words import ROLES
from ztune.study import generic
from ztune.study.generic import RoleIO, build, joined

RANDOM: dict[str, Any] = {"writes_sequential": 0.02, "reads_sequential": 0.05}
LARGE_FILE = 1 << 30


def test_what_is_written_and_read_is_tried_and_what_lies_between_it_and_the_default() -> None:
    fio = RoleIO(writes={4096: 9000}, reads={4096: 9000}, largest=LARGE_FILE, **RANDOM)
    assert fio.record_sizes() == ("4K", "8K", "16K", "32K", "64K", "128K")
    assert RoleIO(writes={65536: 9000}, largest=LARGE_FILE, **RANDOM).record_sizes() == ("64K", "128K")
    # Nothing below a sector, which no record is.
    assert RoleIO(writes={512: 9000}, largest=LARGE_FILE, **RANDOM).record_sizes()[0] == "4K"
    # A page that was hardly written all the same.
    paged = RoleIO(writes={65536: 9000}, page=16384, largest=LARGE_FILE, **RANDOM)
    assert paged.record_sizes() == ("16K", "32K", "64K", "128K")
    assert RoleIO(writes={65536: 9000}, page=12288, largest=LARGE_FILE, **RANDOM).record_sizes() == (
        "64K",
        "128K",
    )


def test_a_size_that_few_calls_and_few_bytes_come_in_is_not_tried() -> None:
    sizes = {4096: 4, 16384: 10_000}
    assert RoleIO(writes=sizes, largest=LARGE_FILE, **RANDOM).record_sizes()[0] == "16K"
    # Few calls, but most of the bytes: a doublewrite buffer.
    both = RoleIO(writes={16384: 64_000, 1 << 20: 1000}, largest=LARGE_FILE, **RANDOM)
    assert both.record_sizes() == ("16K", "32K", "64K", "128K", "1M")


def test_large_records_need_sequence_or_large_calls() -> None:
    table = RoleIO(writes={1 << 20: 500}, writes_sequential=1.0, reads={4096: 9000}, largest=LARGE_FILE)
    assert table.record_sizes() == ("4K", "8K", "16K", "32K", "64K", "128K", "1M")
    backup = RoleIO(writes={4 << 20: 500}, writes_sequential=1.0, largest=LARGE_FILE)
    assert backup.record_sizes() == ("128K", "1M", "4M")
    huge = RoleIO(writes={16 << 20: 500}, writes_sequential=1.0, largest=LARGE_FILE)
    assert huge.record_sizes() == ("128K", "1M", "4M", "16M")


def test_of_an_appended_log_few_sizes_are_tried() -> None:
    log = RoleIO(writes={8192: 9000}, writes_sequential=0.99, largest=LARGE_FILE)
    assert log.record_sizes() == ("8K", "16K", "32K", "128K", "1M")


def test_no_record_is_larger_than_the_largest_file() -> None:
    small = RoleIO(writes={4096: 900}, largest=20_000, **RANDOM)
    assert small.record_sizes() == ("4K", "8K", "16K", "32K", "128K")
    assert RoleIO(writes={4096: 900}, **RANDOM).record_sizes()[-2] == "64K"  # not known how large


@pytest.mark.parametrize(
    ("ratios", "role", "expected"),
    [
        ({"lz4": 1.0, "zstd-3": 1.05, "gzip-6": 1.05}, "data", ("lz4",)),
        ({"lz4": 1.2, "zstd-3": 1.2, "gzip-6": 1.2}, "data", ("off", "lz4")),
        ({"lz4": 1.3, "zstd-3": 1.6, "gzip-6": 1.6}, "data", ("off", "lz4", "zstd-3")),
        ({"lz4": 2.0, "zstd-3": 3.0, "gzip-6": 3.2}, "data", ("lz4", "zstd-3")),
        ({"lz4": 1.94, "zstd-3": 1.98, "gzip-6": 1.96}, "data", ("lz4",)),
        ({"lz4": 2.0, "zstd-3": 3.0, "gzip-6": 3.2}, "archive", ("lz4", "zstd-3", "gzip-6")),
    ],
)
def test_compression_is_tried_where_it_may_gain(
    ratios: dict[str, float], role: str, expected: tuple[str, ...]
) -> None:
    assert RoleIO(ratios=ratios).compressions(role) == expected


def test_what_was_recorded_too_little_of_is_no_axis() -> None:
    io: dict[str, Any] = {"writes": {8192: 9000}, "reads": {8192: 10}, "largest": LARGE_FILE, **RANDOM}
    seen = {"data": RoleIO(**io, commits=False), "wal": RoleIO(**io, sizes=False)}
    study = build({"data", "wal"}, seen=seen)
    assert {key for key in study.axes if key.startswith("data.")} == {
        "data.recordsize", "data.compression", "data.primarycache",
    }  # fmt: skip
    assert [key for key in study.axes if key.startswith("wal.")] == ["wal.logbias"]
    assert study.axes["slog"] == ("none", "nvme")
    seen["wal"] = RoleIO(**io, sizes=False, commits=False)
    study = build({"data", "wal"}, seen=seen, arc=1 << 30, notes=["too little"])
    assert not any(key.startswith(("wal.", "slog")) for key in study.axes)
    assert study.layout.arc == 1 << 30 and study.notes == ("too little",)


def test_whether_the_arc_is_passed_by_is_tried_where_direct_io_was_asked_for() -> None:
    io: dict[str, Any] = {"writes": {8192: 9000}, "reads": {8192: 10}, "largest": LARGE_FILE, **RANDOM}
    study = build({"data", "wal"}, seen={"data": RoleIO(**io, direct=True), "wal": RoleIO(**io)})
    assert study.axes["data.direct"] == ("standard", "disabled") and "wal.direct" not in study.axes


def test_without_a_recording_the_usual_values_are_tried() -> None:
    study = build({"data", "wal"}, page_sizes={"data": 4096})
    assert study.axes["data.recordsize"] == ("4K", *generic._PAGES)
    assert study.notes == ()


def test_roles_of_a_group_have_one_dataset() -> None:
    assert joined({"data", "wal", "temp"}, [{"wal", "data"}]) == [["data", "wal"], ["temp"]]
    assert joined({"wal"}, [{"wal", "data"}]) == [["data", "wal"]]
    assert joined({"temp"}, [{"wal", "data"}]) == [["temp"]]
    # Groups that touch are one.
    assert joined({"data", "wal", "temp"}, [{"wal", "data"}, {"temp", "wal"}]) == [["data", "wal", "temp"]]
    assert joined(set(ROLES)) == [[role] for role in ROLES]
