"""A machine with a pool, as far as zfs and zpool say; and runs in a store, with the analysis' evidence."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import evidence as ev
import fake_zfs

from ztune.advice import host
from ztune.advice.host import Host, read
from ztune.advice.model import Recommendation
from ztune.advice.perform import perform
from ztune.advice.plan import Plan, build
from ztune.advice.recommend import recommend
from ztune.study import DurabilityClass, Objective
from ztune.study.durability import judge
from ztune.study.layout import parse_layout, with_settings

STAND_IN = Path(__file__).with_name("fake_zfs.py")
ENDED = host._ended
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


def run_here(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As ``host._ended``, but the stand-in for ``zfs`` answers in this process: to start a Python takes
    ten times as long. What it is told to kill is its parent, so then it has a process."""
    found = shutil.which(argv[0], path=env["PATH"])
    bin_ = Path(os.environ["FAKE_ZFS"]).parent / "bin" if "FAKE_ZFS" in os.environ else None
    if found is None or Path(found).parent != bin_ or "then kill" in os.environ.get("FAKE_FAIL", ""):
        return ENDED(argv, env)
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            fake_zfs.main([found, *argv[1:]])
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def recommended(changes: dict[str, Any] | None = None, **layout: Any) -> Recommendation:
    """A recommendation of the made-up base layout with ``changes``, as factors."""
    base = parse_layout(ev.base_layout(**layout))
    chosen = with_settings(base, changes or {}, "chosen")
    measure = {
        "model": {"modelled_s": 1.0, "trace_s": 30.0},
        "space": {"allocated": 1.0},
        "physical": {"write_bytes": 1.0},
    }
    allowed = judge(chosen).proven
    run = ev.run(Objective(durability=allowed))
    return recommend(run, [ev.trial(chosen, 1, measure, baseline=True)], manifest=ev.manifest())


CHANGES = {"data.recordsize": "16K", "data.compression": "zstd-3", "wal.logbias": "throughput"}


def planned(changes: dict[str, Any] | None = None, mapping: dict[str, str] = MAPPING) -> Plan:
    return build(
        recommended(CHANGES if changes is None else changes), mapping, read(Host(), mapping.values())
    )


def do(plan: Plan, path: Path, accepted: DurabilityClass | None = None) -> int:
    return perform(plan, Host(), path, accepted, lambda _: None)
