"""A place whose trial program is ``fake_trial.py``: no ZFS, no root."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ztune.databases.fio.workload import Fio
from ztune.errors import InputError
from ztune.places.about import said_of_host
from ztune.places.channel import ProcessChannel
from ztune.runs.plan import workload_job
from ztune.study import Layout, Study, generic
from ztune.study.layout import with_settings

PROGRAM = Path(__file__).with_name("fake_trial.py")


class FakePlace:
    """Exit code 255 of the program counts as a lost connection, as ssh's does."""

    name = "fake"

    def __init__(self, folder: Path, **behaviour: Any) -> None:
        self.state = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.ups = 0
        self.refuse: str | None = None
        self.described: dict[str, Any] = {"kind": "fake", "accel": "none", "dilation": 1.0, "patience": 1.0}
        self.worked: list[dict[str, float]] = []
        """What its disks have worked, each time that it is asked."""
        self.told: list[str] = []
        """What of a trial's measure it was asked and told, in order."""
        self.behave(**behaviour)

    def behave(self, **behaviour: Any) -> None:
        (Path(self.state) / "behaviour.json").write_text(json.dumps(behaviour.get("of", {})))

    def __enter__(self) -> FakePlace:
        self.ups += 1
        if self.refuse is not None and self.ups > 1:
            raise InputError(self.refuse)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def about_host(self) -> dict[str, Any]:
        return said_of_host(self, "the fake", PROGRAM)

    def put(self, local: Path) -> str:
        target = Path(self.state) / "fake_trial.py"
        if not target.exists():
            shutil.copy(PROGRAM, target)
        return str(target)

    def open(self, argv: list[str]) -> ProcessChannel:
        words = [sys.executable, *argv[1:]] if argv[0] == "python3" else argv
        return ProcessChannel(words, lost=lambda code, _: "connection lost" if code == 255 else None)

    def tunables(self, layout: Layout) -> dict[str, int]:
        return {"zfs_dirty_data_max": layout.arc, "zfs_txg_timeout": 1}

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        return {"kind": "parent", "parents": {p.name: "tank/ztune" for p in layout.used_pools()}}

    def check(self, study: Study, layout: Layout) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return self.described

    def measured(self) -> None:
        self.told.append("measured")

    def disks_worked(self) -> dict[str, float]:
        self.told.append("window")
        return self.worked.pop(0) if self.worked else {}

    def shared(self, path: Path) -> str | None:
        return None

    def specs(self) -> list[dict[str, Any]]:
        path = Path(self.state) / "specs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def left(self) -> list[str]:
        return sorted(p.name for p in Path(self.state).glob("made-*"))


def study() -> Study:
    return generic.build({"data", "wal"})


def layouts(*sizes: str) -> list[Layout]:
    base = study().layout
    return [base, *(with_settings(base, {"data.recordsize": s}, s) for s in sizes)]


JOB = replace(workload_job(Fio({"seconds": 3})), version="fio-3.33", roles=("data", "wal"))
