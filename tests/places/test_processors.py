"""Engines on processors of their own."""

import os
import subprocess

from ztune.places.processors import keep_on, one_processor


def test_each_gets_one_of_its_own_and_gives_it_back() -> None:
    ours = os.sched_getaffinity(0)
    taken = [one_processor() for _ in ours]
    got = [one.__enter__() for one in taken]
    assert set(got) == ours
    with one_processor() as none_left:
        assert none_left is None
    taken[0].__exit__(None, None, None)
    with one_processor() as again:
        assert again == got[0]


def test_one_that_failed_gives_it_back() -> None:
    for _ in range(2 * len(os.sched_getaffinity(0))):
        try:
            with one_processor() as one:
                assert one is not None
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass


def test_a_process_and_what_it_starts_are_kept() -> None:
    processor = max(os.sched_getaffinity(0))
    process = subprocess.Popen(
        ["sh", "-c", "read go; taskset -p $$"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    keep_on(process.pid, processor)
    assert os.sched_getaffinity(process.pid) == {processor}
    assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
    said, _ = process.communicate("\n")
    assert said.split()[-1] == f"{1 << processor:x}"


def test_one_that_ended_is_no_error() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    keep_on(process.pid, 0)
