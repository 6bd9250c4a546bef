"""A small file system of a test's own, in a mount namespace that goes with the process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from children import environment

_BEGIN = """
import errno, os, subprocess, sys
from pathlib import Path
DISK = Path({disk!r})

def fill():
    "Fill the disk to the last byte; what a trial beside it frees meanwhile is filled as well."
    for _ in range(100):
        for size in (1 << 20, 4096, 1):
            with open(DISK / f"fill-{{size}}", "ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error
        if os.statvfs(DISK).f_bavail == 0:
            return
    raise AssertionError(f"{{os.statvfs(DISK).f_bavail}} blocks are free after 100 rounds")

def empty():
    for path in DISK.glob("fill-*"):
        path.unlink()

def remount(options):
    subprocess.run(["mount", "-o", "remount," + options, str(DISK)], check=True)

"""


@functools.cache
def lacking() -> str:
    """Return why there can be no such file system here; empty if there can."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "mounting a small file system takes root and unshare"
    tried = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    done = subprocess.run(tried, capture_output=True, check=False)
    return "" if done.returncode == 0 else "mounting in a namespace is not permitted here"


def run(disk: Path, script: str, size: str = "64m") -> str:
    """Run a Python script with a tmpfs of ``size`` at ``disk``, and return what it said; it must end well."""
    text = _BEGIN.format(disk=str(disk)) + script
    mount = f'mount -t tmpfs -o size={size} none "$1" && exec "$2" -c "$3"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(disk), sys.executable, text],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
