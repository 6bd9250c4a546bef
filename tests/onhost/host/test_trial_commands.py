"""Programs that a trial runs, when it is stopped while they run."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_what_works_on_pools_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "zpool"
    stand_in.write_text(f"#!/bin/sh\nsleep 2\ntouch {tmp_path}/imported\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(zfs, "which", lambda name: str(stand_in) if name == "zpool" else None)
    commands = Commands(Events(io.StringIO()))
    interrupted(lambda: commands(["zpool", "import"], timeout=60), 0.5)
    assert (tmp_path / "imported").exists()
