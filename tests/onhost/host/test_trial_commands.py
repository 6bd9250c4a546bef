"""Programs that a trial runs, when it is stopped while they run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host import zfs
from ztune.onhost.host.zfs import Commands


def interrupted(run: Callable[[], object], after: float) -> float:
    """Interrupt ``run`` after so many seconds; return how long it took until it raised."""
    # To the main thread, which waits in the kernel: only that wakes it.
    timer = threading.Timer(after, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run()
    timer.join()
    return time.monotonic() - began


def alive(marker: str) -> bool:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return any(line.strip() == marker for line in found.splitlines())


@pytest.mark.timeout(120)
def test_a_long_copy_ends_at_once() -> None:
    text = f"sleep 3600.{os.getpid()}"
    commands = Commands(Events(io.StringIO()))
    path = zfs.which("sleep")
    assert path is not None
    interrupted(lambda: commands(text.split(), timeout=7200), 0.5)
    assert not alive(f"{path} 3600.{os.getpid()}")


KILLED = """
import io, sys
from ztune.onhost.events import Events
from ztune.onhost.host.zfs import Commands
Commands(Events(io.StringIO()))(["sleep", sys.argv[1]])
"""


def test_a_long_copy_ends_with_a_trial_that_is_killed() -> None:
    """It had the run's lock: for hours clean took the trial for alive."""
    seconds = f"3600.{os.getpid()}"
    path = zfs.which("sleep")
    with subprocess.Popen([sys.executable, "-c", KILLED, seconds]) as trial:
        until(lambda: alive(f"{path} {seconds}"), "the copy")
        trial.kill()
    until(lambda: not alive(f"{path} {seconds}"), "its end", 10)


def test_what_works_on_pools_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "zpool"
    stand_in.write_text(f"#!/bin/sh\nsleep 2\ntouch {tmp_path}/imported\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(zfs, "which", lambda name: str(stand_in) if name == "zpool" else None)
    commands = Commands(Events(io.StringIO()))
    interrupted(lambda: commands(["zpool", "import"], timeout=60), 0.5)
    assert (tmp_path / "imported").exists()


def test_one_that_takes_long_is_heard_of_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zfs, "_STILL_S", 0.2)
    out = io.StringIO()
    commands = Commands(Events(out))
    assert commands(["sh", "-c", "echo one; sleep 0.7; echo two"], timeout=60) == "one\ntwo\n"
    said = [json.loads(line)["text"] for line in out.getvalue().splitlines()]
    assert 2 <= len(said) - 1 <= 3 and said[0].startswith("sh -c echo one; sleep 0.7; echo two still runs,")
    assert said[-1] == ""
    with pytest.raises(ZtuneError, match="sh -c sleep 9 did not end within 0 s"):
        commands(["sh", "-c", "sleep 9"], timeout=0.3)
    assert commands.attempt(["sh", "-c", "exit 3"], timeout=0.19)[0] == 3
