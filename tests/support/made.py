"""Compiles programs of ours for tests, several processes of which run at the same time."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path


def make(folder: Path, *targets: str) -> None:
    """Run ``make`` there, one process after the other: another could be running what this one compiles."""
    with (folder / "Makefile").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "-s", "-C", str(folder), *targets], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
