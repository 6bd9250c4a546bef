"""The shell that runs a job's program, and what it says where it can't say how that ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.jobs.launcher import Launcher


def test_a_note_that_cannot_be_written_is_said_at_once(parent: Path) -> None:
    account = Account.for_database("nobody")
    home = parent / "home"
    home.mkdir()
    launcher = Launcher("work", home, account, log=parent / "work.log")
    launcher.start(["/bin/true"])
    # As on a file system that the kernel made read-only for its errors.
    home.chmod(0o555)
    began = time.monotonic()
    with pytest.raises(ZtuneError, match=r"work ended with exit code 1; its log ends: .*rc\.new"):
        launcher.run(20.0)
    assert time.monotonic() - began < 15
    launcher.kill()


def test_a_clock_that_is_set_meanwhile_changes_no_time(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, real = parent / "home", time.time
    home.mkdir()
    account = Account.for_database("nobody")
    if account.owner is not None:
        os.chown(home, *account.owner)
    launcher = Launcher("work", home, account, log=parent / "work.log")
    launcher.start(["/bin/sleep", "1"])
    # An hour behind until the program has ended.
    monkeypatch.setattr(time, "time", lambda: real() - (0 if (home / "rc").exists() else 3600))
    seconds, _moved = launcher.run(20.0)
    assert 0.9 < seconds < 10
    launcher.stop()
