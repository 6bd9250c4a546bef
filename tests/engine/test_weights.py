"""What the I/O of a sampled file stands for, alone, under sanitizers."""

from __future__ import annotations

import itertools
import math
import subprocess

import pytest
from engine_build import PLAIN

RATE = 8
FANOUT = 1024


def ask(*lines: str) -> list[float]:
    """Return what each question is answered."""
    done = subprocess.run(
        [str(PLAIN), "weights", str(RATE)], input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [float(x) for x in done.stdout.split()]


def test_what_is_not_sampled_stands_for_itself() -> None:
    assert ask("of 7 0 0", "own 9 0 0", "of 9 0 5", "of 9 1 5", "dirtied 9 0 5", "of 0 0 0") == [1.0] * 5


def test_a_log_is_what_nothing_reads_of_a_file_that_stands_for_itself() -> None:
    # Its first three records are read.
    assert ask("set 7 800 100 1", "own 9 0 3", "own 10 0 0", "log 9 2", "log 9 3", "log 10 0", "log 7 0") == [
        0, 1, 1, 0
    ]  # fmt: skip


def test_a_record_stands_for_as_many_as_the_rate_and_a_block_above_for_those_of_the_whole() -> None:
    # 64 blocks of pointers in the whole, 8 in the sample; above these one in both.
    found = ask(f"set 7 {64 * FANOUT} {8 * FANOUT} 1", "of 7 0 0", "of 7 1 0", "of 7 2 0", "of 7 3 0")
    assert found == [RATE, RATE, 1.0, 1.0]
    # All of the sample's records are below one block of pointers, and those of the whole below four.
    assert ask(f"set 7 {4 * FANOUT} {FANOUT // 2} 1", "of 7 1 0") == [4.0]


def test_a_block_of_which_there_are_no_fewer_is_dirty_in_more_groups_of_the_whole() -> None:
    """One block of pointers a file in both: in the whole it has eight times as many records below it."""
    files, group = 64, 5
    lines = [f"set {i} 800 100 1" for i in range(1, files + 1)]
    first = ask(*lines, f"dirtied 1 1 {group}", f"of 2 1 {group}")
    whole = files * (1 - (1 - 1 / files) ** RATE)
    assert first == pytest.approx([whole, whole], rel=1e-4)
    # A quarter of them: as many as are likely of all, whatever the order.
    some = [f"dirtied {i} 1 {group}" for i in range(1, files // 4 + 1)]
    *each, of = ask(*lines, *some, f"of 1 1 {group}")
    assert sum(each) == pytest.approx(files * (1 - 0.75**RATE), rel=1e-4)
    assert of * len(some) == pytest.approx(sum(each), rel=1e-4)
    assert all(a >= b for a, b in itertools.pairwise(each))
    # All of them: there are no more in the whole.
    every = ask(*lines, *(f"dirtied {i} 1 {group}" for i in range(1, files + 1)))
    assert sum(every) == pytest.approx(files, rel=1e-4)
    # The next group begins anew, and what is read belongs to none.
    assert ask(*lines, *some, "dirtied 1 1 6", "of 1 1 0")[-2:] == pytest.approx([whole, 1.0], rel=1e-4)


def test_a_block_of_pointers_is_larger_where_there_are_more_of_them() -> None:
    # 800 pointers for 100 below it: 8 sectors for one.
    found = ask("set 7 800 100 1", "of 7 1 0", "bytes 7 1 0", "of 7 0 0", "bytes 7 0 0")
    assert found == [1.0, 8.0, RATE, RATE]
    # Both are as full, and what is above of one sector.
    assert ask(f"set 7 {64 * FANOUT} {8 * FANOUT} 1", "bytes 7 1 0", "bytes 7 2 0") == [RATE, 1.0]


def test_a_certain_record_stands_for_itself_and_a_block_above_for_the_others_as_likely_as_they_are() -> None:
    # Four blocks of pointers in the sample, of which the first is above certain records.
    n = FANOUT
    lines = [f"certain 100 {n // 8}", f"set 7 {4 * n * RATE + n // 8} {4 * n + n // 8} 1"]
    found = ask(
        *lines, "of 7 0 5 99", "of 7 0 5 100", f"of 7 0 5 {100 + n // 8 - 1}", f"of 7 0 5 {100 + n // 8}"
    )
    assert found == [RATE, 1.0, 1.0, RATE]
    assert ask(*lines, "dirtied 7 0 5 100", "dirtied 7 0 5 99") == [1.0, RATE]
    # It alone is dirty, so far: none of the others. With a second, half of all: half of the others.
    assert ask(*lines, "dirtied 7 1 5 0", "dirtied 7 1 5 1", "of 7 1 5 0") == [1.0, RATE, 1 + (RATE - 1) / 2]


def test_files_that_nothing_writes_do_not_thin_out_what_is_written() -> None:
    lines = [f"set {i} 800 100 {int(i <= 4)}" for i in range(1, 65)]
    found = ask(*lines, *(f"dirtied {i} 1 5" for i in range(1, 5)))
    assert sum(found) == pytest.approx(4, rel=1e-4)


def test_a_file_that_is_set_again_is_the_same_file() -> None:
    once = ask("set 1 800 100 1", "set 2 800 100 1", "dirtied 1 1 5")
    assert ask("set 1 800 100 1", "set 2 800 100 1", "set 1 800 100 1", "dirtied 1 1 5") == once


def test_bytes_of_a_log_block_that_come_from_sampled_files_count_as_many_times() -> None:
    # A half of the block, more than the block, and what is left of that.
    found = ask("logged 4096 8192", "logged 12288 8192", "logged 0 8192", "logged 0 8192")
    assert found == [1 + (RATE - 1) / 2, RATE, 1 + (RATE - 1) / 2, 1.0]
    assert not any(map(math.isnan, found))


def test_a_log_block_stands_for_as_much_on_each_disk_that_it_goes_to() -> None:
    found = ask("logged 4096 8192", "again", "logged 0 8192", "again")
    assert found == [1 + (RATE - 1) / 2] * 2 + [1.0] * 2


def test_a_file_that_is_sampled_less_stands_for_less() -> None:
    found = ask(f"set 7 {64 * FANOUT} {8 * FANOUT} 1", "rate 2", "set 8 200 100 1", "of 7 0 0", "of 8 0 0")
    assert found == [RATE, 2.0]
    # One block of pointers in both: it has twice as many records below it.
    lines = ["rate 2", "set 8 200 100 1", "set 9 200 100 1"]
    assert ask(*lines, "dirtied 8 1 5", "dirtied 9 1 5") == pytest.approx([1.5, 0.5])
    # All of it is there.
    assert ask("rate 1", "set 8 200 200 1", "of 8 0 0", "of 8 1 0", "dirtied 8 1 5") == [1.0] * 3


def test_bytes_of_a_log_block_count_as_often_as_their_files_stand_for() -> None:
    """A half of what waits for the log is of a file of which every second byte is there."""
    lines = ["logged 4096 0", "rate 2", "logged 4096 8192"]
    assert ask(*lines) == [1.0, (RATE + 2) / 2]
