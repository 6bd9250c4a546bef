"""Trials with OpenZFS in user space: the part of this host that they may touch, and how they are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trial_support import HARNESS, TRIAL, Ran, make_spec, parse_events

from ztune import native
from ztune.onhost.host import mounts
from ztune.places.engine_spec import mount_spec
from ztune.places.loaded import load_spec
from ztune.study import Study
from ztune.study.layout import with_settings
from ztune.study.loader import resolve_profiles

_STUDY = {
    "name": "small",
    "layout": {
        "arc": "64M",
        "pool": [{"name": "main", "vdev": [{"profile": "ssd-sata", "size": "256M"}]}],
        "dataset": [
            {"name": "main/db", "roles": ["data"], "recordsize": "16K"},
            {"name": "main/log", "roles": ["wal"]},
        ],
    },
    "axes": {"data.recordsize": ["8K"]},
}


class Host:
    """The part of the host that a trial may touch, and whether it is as it was."""

    def __init__(
        self, folder: Path, neighbour: tuple[str, ...] = (), settings: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.stores = folder / "stores"
        self.stores.mkdir()
        self.program = native.MOUNT.find().absolute()
        study = resolve_profiles(Study.model_validate(_STUDY))
        layout = replace(study.layout, neighbour=neighbour)
        if settings:
            layout = with_settings(layout, settings)
            study = resolve_profiles(study.model_copy(update={"layout": layout}))
        self.layout = layout.to_json()
        self.engine = mount_spec(study, layout, 1)

    @property
    def disks(self) -> Path:
        return self.stores / TRIAL / "disks"

    def spec(self, program: Path | None = None, **changes: Any) -> dict[str, Any]:
        place = {
            "kind": "mount",
            "program": str(program or self.program),
            "stores": str(self.stores),
            "engine": self.engine,
            "disks": "instant",
        }
        return make_spec(self.state, place, layout=self.layout, **changes)

    def keeping(self, kept: Path, **changes: Any) -> dict[str, Any]:
        """Return the spec of a trial that begins with what is in ``kept``, or leaves it there."""
        spec = self.spec(**changes)
        spec["place"]["kept"] = {"folder": str(kept), "engine": load_spec(self.engine)}
        return spec

    def wrapper(self, text: str) -> Path:
        """Return a program that does ``text``, in which "$mount" is the real one."""
        path = self.folder / "wrapper"
        path.write_text(f'#!/bin/sh\nmount="{self.program}"\n{text}\n')
        path.chmod(0o755)
        return path

    def require_untouched(self) -> None:
        assert list(self.stores.iterdir()) == []
        assert not self.state.exists()
        assert not [m for m in mounts.table() if self.folder in m.point.parents]
        assert self.programs() == []
        assert not mounts.users(self.state)

    def programs(self) -> list[int]:
        """Return the processes with a store of ours in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if str(self.stores).encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


Act = Callable[[dict[str, Any], int], None]


def run_watched(spec: dict[str, Any], act: Act) -> Ran:
    """Run a trial and call ``act`` with each event, as it comes, and the trial program's process."""
    return _watched(["run"], json.dumps(spec) + "\n", act)


def clean_watched(state: Path, act: Act) -> Ran:
    """Run ``clean`` and call ``act`` with each event, as it comes, and the program's process."""
    return _watched(["clean", "--state", str(state)], "", act)


def _watched(words: list[str], text: str, act: Act) -> Ran:
    events = []
    with subprocess.Popen(
        [sys.executable, str(HARNESS), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(text)
        process.stdin.flush()
        for line in process.stdout:
            events += parse_events(line)
            if events:
                act(events[-1], process.pid)
        error = process.stderr.read()
        process.wait(60)
    return Ran(process.returncode, events, error)


def at(step: str, what: Callable[[int], None]) -> Act:
    def act(event: dict[str, Any], pid: int) -> None:
        if event["event"] == "step" and (event["step"], event["state"]) == (step, "begin"):
            what(pid)

    return act
