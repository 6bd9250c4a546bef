"""Whose commits a thread waited for: who woke it, and what it was woken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import whose_commits
from recording import run_python

from ztune.trace.schema import Op

WAITS = 50_000_000
"""ns: half of what lies between two steps."""


def seen(folder: Path, *steps: tuple[int, str], tcp: bool = False) -> tuple[dict[str, Any], int]:
    found = run_python(whose_commits.program(*steps, tcp=tcp), folder, "ebpf")
    assert found.trace.manifest.recorder.waits
    return whose_commits.last_of_second(found.rows("log"))


@pytest.mark.parametrize("tcp", [False, True])
def test_who_was_asked_for_more_since_it_was_woken_had_waited_for_that_commit(
    work: Path, ebpf: str, tcp: bool
) -> None:
    # So waits who wants a row that another has changed, and so whose commit another's sync has covered.
    call, synced = seen(work, (1, "w"), (0, "C"), (1, "c"), tcp=tcp)
    assert call["t"] - call["since_sync"] == synced
    assert WAITS < call["waited"] < call["t"]


@pytest.mark.parametrize(("how", "op", "tells"), [("W", Op.WRITE, False), ("R", Op.READ, True)])
def test_who_writes_at_once_had_waited_for_the_log_alone(
    work: Path, ebpf: str, how: str, op: Op, tells: bool
) -> None:
    call, synced = seen(work, (1, how), (0, "C"))
    assert call["op"] == op and call["waited"] > WAITS
    assert (call["t"] - call["since_sync"] == synced) if tells else call["since_sync"] == 0


def test_who_was_asked_for_more_since_its_sync_lets_nobody_wait_for_that(work: Path, ebpf: str) -> None:
    call, _ = seen(work, (1, "w"), (0, "c"), (0, "o"), (1, "c"))
    assert (call["since_sync"], call["waited"]) == (0, 0)


def test_a_wait_counts_once(work: Path, ebpf: str) -> None:
    call, _ = seen(work, (1, "w"), (0, "C"), (1, "c"), (1, "c"))
    assert (call["since_sync"], call["waited"]) == (0, 0)
