"""Crash tests of Valkey or Redis: on plain directories, and on a mount."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from plain_power import Forgetful, plain_test

from ztune.cli.main import ztune
from ztune.databases.valkey.onhost.server import find_binaries
from ztune.errors import MissingError
from ztune.places import mount_program
from ztune.study import DurabilityClass

MULTI = b"*1\r\n$5\r\nMULTI\r\n"


@pytest.fixture(autouse=True)
def _server() -> None:
    try:
        find_binaries()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("appendonly", [True, False])
def test_what_was_acknowledged_is_there(parent: Path, appendonly: bool) -> None:
    """The machine goes on, so nothing that was written is lost; without a log nearly nothing was.

    Nothing waits for the disk: on a busy one, no client might come to a commit before a cut.
    """
    params = {"appendonly": appendonly, "appendfsync": "no"}
    result = plain_test("valkey", parent, cuts=5, params=params, window_s=0.3).run()
    figures = result.figures()
    assert figures["commits_acknowledged"] > 0 == figures["cuts_with_corruption"]
    assert (figures["commits_lost"] == 0) == appendonly
    assert "every key read" in result.checks
    assert any("check-aof" in check for check in result.checks) == appendonly
    assert list(parent.iterdir()) == []


def test_disks_that_lie_about_syncs_are_caught(parent: Path) -> None:
    result = plain_test("valkey", parent, cuts=2, power=Forgetful, seed=37, window_s=1.0).run()
    assert result.found is DurabilityClass.LAST_SECONDS and result.broken
    figures = result.figures()
    assert 0 < figures["commits_lost"] == figures["commits_acknowledged"]


def log_of(top: Path) -> Path:
    """The newest part of the log."""
    return max(top.rglob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))


def commit_gone(top: Path) -> bool:
    """Take an acknowledged transaction out of the log, where a later one of its client is there."""
    log = log_of(top)
    first, *blocks = log.read_bytes().split(MULTI)
    named = [block.split(b"ledger:", 1)[1].split(b"\r\n", 1)[0].split(b":") for block in blocks]
    for at, (client, number) in enumerate(named):
        if [client, str(int(number) + 2).encode()] in named:
            del blocks[at]
            log.write_bytes(MULTI.join([first, *blocks]))
            return True
    return False


def bytes_gone(top: Path) -> bool:
    log = log_of(top)
    size = log.stat().st_size
    if size < 2_000:
        return False
    with log.open("r+b") as file:
        file.seek(size // 2)
        file.write(random.Random(1).randbytes(min(size // 4, 4096)))
    return True


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (commit_gone, "missing although a later one of the same client is there"),
        (bytes_gone, "the database does not start any more"),
    ],
)
def test_damage_is_found(parent: Path, damage: Callable[[Path], bool], sentence: str) -> None:
    done: list[bool] = []

    def once(top: Path) -> None:
        if not any(done):
            done.append(damage(top))

    # Nothing waits for the disk: on a busy one, no client might come to a third commit before a cut.
    params = {"appendfsync": "no"}
    result = plain_test("valkey", parent, cuts=4, params=params, damage=once, seed=2).run()
    assert any(done), "no cut left a log that could be damaged"
    assert result.found is DurabilityClass.CORRUPT and result.broken
    problems = [text for cut in result.cuts for text in cut.problems]
    assert any(sentence in problem for problem in problems), problems
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize(
    ("fsync", "expected"), [("always", "nothing-acknowledged"), ("everysec", "last-seconds")]
)
def test_on_a_mount(parent: Path, fsync: str, expected: str) -> None:
    """The workload's own layout, and the class that its settings are declared to bring."""
    try:
        mount_program.check()
    except MissingError as error:
        pytest.skip(str(error))
    if os.geteuid() != 0 and not mount_program.others_may_enter():
        pytest.skip("other users may not enter mounts here, and databases run as their own")
    done = CliRunner().invoke(
        ztune,
        [
            *(
                "crashtest",
                "valkey",
                "--cuts",
                "3",
                "--window",
                "0.8",
                "--clients",
                "2",
                "--seed",
                "37",
                "--json",
            ),
            *("--dir", str(parent), "-p", f"appendfsync={fsync}"),
        ],
        standalone_mode=False,
    )
    assert done.return_value == 0, done.output
    found = json.loads(done.stdout)
    figures = found["figures"]
    assert found["promised"] == found["found"] == expected
    assert figures["commits_acknowledged"] > 0 and (figures["commits_lost"] > 0) == (fsync == "everysec")
    # Commits came back from the intent log where they were synced, by OpenZFS's own replay.
    assert fsync == "everysec" or figures["replayed_most"] > 0
    assert list(parent.iterdir()) == []
