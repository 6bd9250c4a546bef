"""A process calls itself what it likes: what is made of that name is a plain name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from ztune.cli.record import default_name
from ztune.observe import subjects

_CHILD = "import ctypes, sys; ctypes.CDLL(None).prctl(15, {!r}, 0, 0, 0); print(flush=True); sys.stdin.read()"


@pytest.fixture
def called() -> Iterator[Callable[[bytes], int]]:
    children: list[subprocess.Popen[bytes]] = []

    def start(name: bytes) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == b"\n"
        return child.pid

    yield start
    for child in children:
        child.communicate()


@pytest.mark.parametrize(
    ("name", "begins"),
    [(b"\xff/..", "__..-"), (b"-rf", "rf-"), (b"../../x", "_.._x-"), (b"..", "process-"), (b"a\nb", "a_b-")],
)
def test_a_trace_is_named_after_a_process(called: Callable[[bytes], int], name: bytes, begins: str) -> None:
    found = default_name((), (called(name),))
    assert found.name == str(found)
    assert found.name.startswith(begins)


def test_two_servers_of_one_name_have_traces_of_their_own(called: Callable[[bytes], int]) -> None:
    """Both are `postgres`, and cron records them in one second: the second was refused."""
    one, other = called(b"postgres"), called(b"postgres")
    assert default_name((), (one,)).name.startswith(f"postgres-{one}-")
    assert default_name((), (other,)).name.startswith(f"postgres-{other}-")


def test_what_is_observed_is_said_on_one_line(called: Callable[[bytes], int]) -> None:
    assert "(a\\nb\\x1b[31m)" in subjects.of_pid(called(b"a\nb\x1b[31m")).words
