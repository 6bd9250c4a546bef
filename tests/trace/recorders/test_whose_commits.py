"""Whose commits a thread waited for: who woke it, and what it was woken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording import run_python

from ztune.trace.schema import Op

# Two that commit, each told by its pipe what to do; and a lock that the second waits for and the first opens.
PROGRAM = """
import time
f = os.open("log", os.O_RDWR | os.O_CREAT)
lock = os.pipe()
pipes = [os.pipe(), os.pipe()]

def commits(me):
    while (what := os.read(pipes[me][0], 1)) != b"e":
        if what == b"c": os.pwrite(f, b"x" * 100, me * 4096); os.fdatasync(f)
        if what == b"o": os.write(lock[1], b"o")
        if what == b"C": os.pwrite(f, b"x" * 100, me * 4096); os.fdatasync(f); os.write(lock[1], b"o")
        if what == b"w": os.read(lock[0], 1)
        if what == b"W": os.read(lock[0], 1); os.pwrite(f, b"x" * 200, me * 4096); os.fdatasync(f)
        if what == b"R": os.read(lock[0], 1); os.pread(f, 10, 0)
    os._exit(0)

for me in (0, 1):
    if not os.fork(): commits(me)

def tell(me, what):
    os.write(pipes[me][1], what); time.sleep(0.1)

tell(0, b"c"); tell(1, b"c")
{steps}
tell(0, b"e"); tell(1, b"e")
os.wait(); os.wait()
"""


def last_of_second(folder: Path, *steps: tuple[int, str]) -> tuple[dict[str, Any], int]:
    """Return the last call but syncs of the second that commits, and when the first's last sync had ended."""
    text = PROGRAM.replace("{steps}", "\n".join(f"tell({who}, b{what!r})" for who, what in steps))
    rows = run_python(text, folder, "ebpf").rows("log")
    first, second = dict.fromkeys(row["pid"] for row in rows if row["op"] == Op.WRITE)
    (*_, last) = (row for row in rows if row["pid"] == second and row["op"] in (Op.READ, Op.WRITE))
    (*_, sync) = (row for row in rows if row["pid"] == first and row["op"] == Op.FDATASYNC)
    return last, sync["t"] + sync["dur"]


def test_who_was_asked_for_more_since_it_was_woken_had_waited_for_that_commit(work: Path, ebpf: str) -> None:
    # So waits who wants a row that another has changed, and so whose commit another's sync has covered.
    call, synced = last_of_second(work, (1, "w"), (0, "C"), (1, "c"))
    assert call["t"] - call["since_sync"] == synced
    assert 50_000_000 < call["waited"] < call["since_sync"] + 1_000_000_000


@pytest.mark.parametrize(("how", "op", "tells"), [("W", Op.WRITE, False), ("R", Op.READ, True)])
def test_who_writes_at_once_had_waited_for_the_log_alone(
    work: Path, ebpf: str, how: str, op: Op, tells: bool
) -> None:
    call, synced = last_of_second(work, (1, how), (0, "C"))
    assert call["op"] == op and call["waited"] > 50_000_000
    assert (call["t"] - call["since_sync"] == synced) if tells else call["since_sync"] == 0


def test_who_was_asked_for_more_since_its_sync_lets_nobody_wait_for_that(work: Path, ebpf: str) -> None:
    call, _ = last_of_second(work, (1, "w"), (0, "c"), (0, "o"), (1, "c"))
    assert (call["since_sync"], call["waited"]) == (0, 0)


def test_a_wait_counts_once(work: Path, ebpf: str) -> None:
    call, _ = last_of_second(work, (1, "w"), (0, "C"), (1, "c"), (1, "c"))
    assert (call["since_sync"], call["waited"]) == (0, 0)
