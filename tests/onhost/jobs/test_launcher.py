"""The shell that runs a job's program, and what it says where it can't say how that ended."""

from __future__ import annotations

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
