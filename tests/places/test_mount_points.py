"""Whether a mount's program runs, also while it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ztune.onhost.host.mounted import CONTROL, MountError
from ztune.places import mount_points
from ztune.places.mount_points import MountPoint
from ztune.study import ready


def point(directory: Path) -> MountPoint:
    return MountPoint(
        directory=directory, store=directory / "store", token="", places={}, study="", spec={}, options={},
        layout=ready.find("postgres-oltp").layout, made=False,
    )  # fmt: skip


def listener(at: Path) -> subprocess.Popen[bytes]:
    """Start a program that has the socket of a store and no file of it, as one that is ending."""
    code = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(50)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    found = subprocess.Popen([sys.executable, "-c", code, at], cwd="/", stdout=subprocess.PIPE)
    assert found.stdout is not None and found.stdout.readline() == b"ready\n"
    return found


def test_a_program_that_ends_is_waited_for(tmp_path: Path) -> None:
    mine = point(tmp_path)
    mine.disks.mkdir(parents=True)
    assert mine.mount() is None
    with listener(mine.disks / CONTROL) as ending:
        end = threading.Timer(1.0, ending.kill)
        end.start()
        assert mine.mount() is None
        end.join()


def test_one_that_stays_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_points, "_ENDS_S", 0.5)
    mine = point(tmp_path)
    mine.disks.mkdir(parents=True)
    with listener(mine.disks / CONTROL) as other:
        with pytest.raises(MountError, match="answers for it, but has none of its files open"):
            mine.mount()
        other.kill()
