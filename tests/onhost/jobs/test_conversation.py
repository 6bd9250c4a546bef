"""A program that is told what to do, and what is said when it does not do it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.jobs import conversation
from ztune.onhost.jobs.conversation import Client

PROGRAM = """\
import sys, time
for line in sys.stdin:
    word = line.partition("\\t")[0]
    if word in ("panic", "late"):
        print("the process must exit: PANIC", file=sys.stderr, flush=True)
    if word == "panic":
        time.sleep(600)
    if word == "late":
        time.sleep(1)
    print('{"error": "disk full"}' if word == "late" else '{"done": {}}', flush=True)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """The program, which says PANIC when it can't go on."""
    found = Client(
        [sys.executable, "-c", PROGRAM],
        what="the program",
        account=Account("us", os.geteuid(), os.getegid(), switch=False),
        home=tmp_path,
        log=tmp_path / "log",
        fatal="PANIC",
    )
    yield found
    found.kill()


def test_a_program_that_can_neither_go_on_nor_end_is_ended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "FATAL_SECONDS", 0.5)
    assert client.do("begin") == {}
    began = time.monotonic()
    with pytest.raises(ZtuneError, match=r"^the program could not go on in 'panic', nor end; .*must exit"):
        client.do("panic")
    assert time.monotonic() - began < 60
    assert client.pids() == []


def test_one_that_still_answers_is_heard(client: Client) -> None:
    with pytest.raises(ZtuneError, match=r"^the program failed in 'late': disk full$"):
        client.do("late")
    assert client.pids()
