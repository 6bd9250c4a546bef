"""Which records a trace touches, alone, under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from engine_build import (
    COPY,
    FALLOCATE,
    FSYNC,
    KEEP_SIZE,
    MIB,
    PLAIN,
    PUNCH,
    READ,
    READ_AHEAD,
    TRUNCATE,
    WRITE,
    Ops,
)

RECORD = 16384
RECORDS = 8192  # 128 MiB


def touched(tmp_path: Path, ops: Ops) -> list[int]:
    (tmp_path / "ops.bin").write_bytes(ops.bytes())
    done = subprocess.run(
        [str(PLAIN), "touched", str(tmp_path / "ops.bin"), str(RECORD), str(RECORDS)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(x) for x in done.stdout.split()]


def test_a_call_touches_each_record_that_it_has_a_byte_of(tmp_path: Path) -> None:
    ops = Ops()
    ops.add(WRITE, offset=RECORD - 1, size=2)
    ops.add(READ, offset=5 * RECORD, size=RECORD)
    ops.add(FSYNC)
    # Behind the end of what was there nothing can be loaded.
    ops.add(WRITE, offset=(RECORDS - 1) * RECORD, size=3 * RECORD)
    assert touched(tmp_path, ops) == [0, 1, 5, RECORDS - 1]


def test_what_cuts_a_record_touches_it_and_not_what_it_removes(tmp_path: Path) -> None:
    ops = Ops()
    ops.add(TRUNCATE, size=100 * RECORD + 7)
    ops.add(FALLOCATE, offset=10 * RECORD + 1, size=5 * RECORD, flags=PUNCH | KEEP_SIZE)
    ops.add(FALLOCATE, offset=50 * RECORD, size=5 * RECORD)
    assert touched(tmp_path, ops) == [10, 15, 100]


def test_both_files_of_a_copy_are_touched(tmp_path: Path) -> None:
    ops = Ops()
    ops.add(COPY, 1, offset=3 * RECORD, size=RECORD, file2=0)
    assert touched(tmp_path, ops) == [3]


def test_what_openzfs_would_read_ahead_is_touched(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000)
    ops.add(READ, offset=0, size=RECORD)
    ops.add(READ, offset=RECORD, size=RECORD)
    # It goes on where another ended: 4 MiB ahead.
    assert touched(tmp_path, ops) == list(range(2 + 4 * MIB // RECORD))


def test_what_is_asked_to_be_read_ahead_is_touched_and_no_more(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000)
    for i in range(4):
        ops.add(READ_AHEAD, offset=i * RECORD, size=RECORD)
    assert touched(tmp_path, ops) == [0, 1, 2, 3]


def test_a_long_scan_is_read_ahead_by_no_more_than_openzfs_does(tmp_path: Path) -> None:
    ops = Ops(step=1_000_000)
    for i in range(16):
        ops.add(READ, offset=i * 5 * MIB, size=5 * MIB)
    assert touched(tmp_path, ops) == list(range(RECORDS))
    ops = Ops(step=1_000_000)
    for i in range(3):
        ops.add(READ, offset=i * 5 * MIB, size=5 * MIB)
    assert touched(tmp_path, ops) == list(range(30 * MIB // RECORD))


def test_a_read_long_after_goes_on_from_the_place_that_no_other_read_has_taken(tmp_path: Path) -> None:
    ahead = list(range(2 + 4 * MIB // RECORD))
    far = 20 * MIB // RECORD
    for between, found in (
        ([], ahead),
        # Another, as far from the place, makes its own; one that is nearer is taken for part of the row.
        ([far], [0, 1, far]),
        ([20], sorted({*ahead, 20})),
    ):
        ops = Ops(step=3_000_000_000)
        for record in (0, *between, 1):
            ops.add(READ, offset=record * RECORD, size=RECORD)
        assert touched(tmp_path, ops) == found


def test_a_read_goes_on_from_the_record_that_another_ended_in(tmp_path: Path) -> None:
    for first, second, goes_on in (
        ((0, 100), (RECORD, 100), True),
        ((0, 100), (200, RECORD), True),
        ((0, 100), (200, 100), False),
        ((0, 100), (2 * RECORD, 100), False),
    ):
        ops = Ops(step=1_000_000)
        for offset, size in (first, second):
            ops.add(READ, offset=offset, size=size)
        assert (len(touched(tmp_path, ops)) > 2 + 3 * MIB // RECORD) == goes_on, (first, second)
