"""How long one thread waits, told by a sample of its calls, alone, under sanitizers."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from engine_build import PLAIN

READ, WRITE = 0, 1


def most(*lines: str) -> float:
    """Return the longest that a thread waits, seconds."""
    done = subprocess.run(
        [str(PLAIN), "waits"], input="".join(f"{line}\n" for line in lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_calls_that_stand_for_themselves_are_added_up() -> None:
    assert most("wait 0 0 0.5 1", "wait 0 1 0.25 1", "wait 1 0 0.5 1") == 0.75
    assert most() == 0


def test_threads_of_a_sample_wait_as_long_as_they_have_calls() -> None:
    """Four calls each, all of 2 ms, of which each stands for 8: one thread has more of them in the whole."""
    calls = [f"wait {thread} {READ} 0.002 8" for thread in range(4) for _ in range(4)]
    assert most(*calls) == pytest.approx(4 * 8 * 0.002)
    whole = [f"whole {thread} {50 if thread == 2 else 30} 0" for thread in range(4)]
    assert most(*calls, *whole) == pytest.approx(50 * 0.002)
    # What it waits for beside them comes on top.
    assert most(*calls, *whole, f"wait 2 {WRITE} 0.4 1") == pytest.approx(50 * 0.002 + 0.4)


def test_a_thread_that_waits_longer_each_time_is_told_from_chance() -> None:
    calls = [
        f"wait {thread} {READ} {0.01 if thread == 3 else 0.001} 2" for thread in range(8) for _ in range(400)
    ]
    assert most(*calls) == pytest.approx(800 * 0.01, rel=0.01)


@pytest.mark.parametrize("each", [4, 64, 256])
def test_a_stall_is_not_one_threads_own_as_often_as_its_call_stands_for(each: int) -> None:
    """64 threads with 16,000 calls each, of which one in a hundred waits for a quarter of a second."""
    rng = np.random.default_rng(each)
    n = 16_000
    waits = rng.exponential(0.002, (64, n)) + np.where(rng.random((64, n)) < 0.01, 0.25, 0)
    there = rng.random((64, n)) < 1 / each
    calls = [f"wait {t} {READ} {waits[t, i]:.9f} {each}" for t in range(64) for i in np.flatnonzero(there[t])]
    whole = [f"whole {thread} {n} 0" for thread in range(64)]
    found, truth = most(*calls, *whole), waits.sum(axis=1).max()
    assert found == pytest.approx(truth, rel=0.2)
    if each == 256:
        alone = each * (waits * there).sum(axis=1).max()
        assert alone > 2 * truth  # each thread by its own calls
