"""A machine with a pool, as far as zfs and zpool say; and runs in a store, with the analysis' evidence."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

import evidence as ev

from ztune.advice.model import Recommendation
from ztune.advice.recommend import recommend
from ztune.study import Layout

MAPPING = {"data": "tank/pg", "wal": "tank/pg/wal"}
STATUS = """  pool: tank
 state: ONLINE
config:

\tNAME            STATE     READ WRITE CKSUM
\ttank            ONLINE       0     0     0
\t  mirror-0      ONLINE       0     0     0
\t    /dev/sda1   ONLINE       0     0     0
\t    /dev/sdb1   ONLINE       0     0     0
\tcache
\t  /dev/sdc1     ONLINE       0     0     0

errors: No known data errors
"""
STATE: dict[str, Any] = {
    "version": "2.3.2-1",
    "datasets": {
        "tank": {"type": "filesystem", "guid": "1", "local": {"compression": "lz4"}},
        "tank/pg": {
            "type": "filesystem", "guid": "2", "local": {"atime": "off", "mountpoint": "/srv/pg"},
            "facts": {"referenced": "13207024435", "used": "13207024435", "available": "99999999999"},
        },
        "tank/pg/wal": {"type": "filesystem", "guid": "3", "facts": {"referenced": "1073741824"}},
        "tank/pg/dump": {"type": "filesystem", "guid": "4"},
        "tank/other": {"type": "filesystem", "guid": "5"},
    },
    "pools": {"tank": {"properties": {"ashift": "12", "health": "ONLINE"}, "status": STATUS}},
}  # fmt: skip


class Machine:
    """The stand-in's state, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "state.json"
        self.write(json.loads(json.dumps(STATE)))

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_text()))

    def write(self, state: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(state))

    def change(self, do: Callable[[dict[str, Any]], object]) -> None:
        state = self.read()
        do(state)
        self.write(state)

    def datasets(self) -> dict[str, Any]:
        return dict(self.read()["datasets"])

    def local(self, name: str) -> dict[str, str]:
        return dict(self.datasets()[name].get("local", {}))

    def calls(self) -> list[str]:
        log = self.file.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []

    def changes(self) -> list[str]:
        return [c for c in self.calls() if c.split()[1] not in {"get", "version", "status", "list"}]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("zfs", "zpool"):
        target = folder / name
        text = (Path(__file__).with_name("fake_zfs.py")).read_text()
        target.write_text(text.replace("#!/usr/bin/env python3", f"#!{sys.executable} -S", 1))
        target.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    made = Machine(tmp_path)
    monkeypatch.setenv("FAKE_ZFS", str(made.file))
    monkeypatch.delenv("FAKE_FAIL", raising=False)
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    return made


@pytest.fixture
def no_zfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without ZFS, whatever this one has."""
    from ztune.advice import host

    monkeypatch.setattr(host, "_SBIN", str(tmp_path / "nothing"))
    folder = tmp_path / "plain"
    folder.mkdir()
    for name in ("cat", "sh", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))


def recommended(changes: dict[str, Any] | None = None, **layout: Any) -> Recommendation:
    """A recommendation of the made-up base layout with ``changes``, as factors."""
    base = Layout.model_validate(ev.base_layout(**layout))
    chosen = base.with_settings(changes or {}, "chosen")
    measure = {
        "model": {"modelled_s": 1.0, "trace_s": 30.0},
        "space": {"allocated": 1.0},
        "physical": {"write_bytes": 1.0},
    }
    allowed = chosen.durability()
    run = ev.run(ev.Objective(durability=allowed))
    return recommend(run, [ev.trial(chosen, 1, measure, baseline=True)], manifest=ev.manifest())
