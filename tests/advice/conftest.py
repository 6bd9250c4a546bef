from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from zfs_machine import STAND_IN, Machine, run_here

from ztune.advice import host


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("zfs", "zpool"):
        target = folder / name
        text = STAND_IN.read_text()
        target.write_text(text.replace("#!/usr/bin/env python3", f"#!{sys.executable} -S", 1))
        target.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    made = Machine(tmp_path)
    monkeypatch.setenv("FAKE_ZFS", str(made.file))
    monkeypatch.delenv("FAKE_FAIL", raising=False)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    return made


@pytest.fixture
def answered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's programs answer in this process; other tests of ``apply`` start them."""
    monkeypatch.setattr(host, "_ended", run_here)


@pytest.fixture
def no_zfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without ZFS, whatever this one has."""
    monkeypatch.setattr(host, "_SBIN", str(tmp_path / "nothing"))
    folder = tmp_path / "plain"
    folder.mkdir()
    for name in ("cat", "sh", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
