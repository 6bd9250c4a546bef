"""What the tests of mounts share: ``ztune`` in this process or in one of its own, and the end of it all."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ztune.cli.main import main
from ztune.onhost.host import mounted

STAND_IN = Path(__file__).parent / "stand_in_mount.py"
CODE = "from ztune.cli.main import main; main()"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def ztune(*args: str | Path) -> Done:
    """Run the command in this process: a start of Python for each would take most of the tests' time."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ztune", *map(str, args)])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def good_elsewhere(*args: str | Path) -> str:
    """Run the command in a process of its own, as a user does: what it starts must outlive it."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, args)],
        capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def good(*args: str | Path) -> str:
    done = ztune(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(code: int, *args: str | Path) -> str:
    done = ztune(*args)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("ztune: ") and "Traceback" not in done.stderr
    return lines[-1]


def fuse_problem() -> str | None:
    if os.geteuid() != 0:
        return "the stand-in mounts by the system call itself, which takes root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no FUSE here"
    return None


def end_all(folder: Path) -> None:
    """Unmount what a test left mounted below ``folder``, and kill the programs."""
    for mount in reversed(mounted.all_ours()):
        if folder in mount.point.parents:
            mounted.detach(mount.point)
    for control in folder.rglob(mounted.CONTROL):
        pid = mounted.serving(control.parent)
        if pid not in (None, os.getpid()):
            os.kill(pid, signal.SIGKILL)
