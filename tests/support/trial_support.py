"""Specs, and the trial program run as a process of its own, for the tests of trials."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).parent / "trial_harness.py"
RUN, TRIAL = "r-test", "r-test-0001"


def pool(name: str = "main", filesystem: str = "zfs", **more: Any) -> dict[str, Any]:
    """Return a layout's pool with one disk."""
    vdev = {"class": "data", "kind": "stripe", "disks": 1, "profile": "hdd-7200", "size": None}
    return {"name": name, "ashift": 12, "filesystem": filesystem, "vdev": [vdev], **more}


def make_spec(state: Path | str, place: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a valid spec; ``changes`` replace its keys, a dotted one (``layout.arc``) a nested key."""
    spec: dict[str, Any] = {
        "format": "ztune-trial",
        "version": 1,
        "run": RUN,
        "trial": TRIAL,
        "seed": 1,
        "state": str(state),
        "place": place,
        "layout": {
            "name": "base",
            "description": "",
            "arc": 64 << 20,
            "pool": [pool()],
            "dataset": [{"name": "main/db", "roles": ["data", "wal"], "properties": {"recordsize": "16K"}}],
            "tunables": {},
            "database": {},
        },
        "job": {"name": "writer", "params": {}},
        "start": {"kind": "load"},
        "settle": "cold",
        "probes": {},
        "dilation": 1.0,
    }
    for key, value in changes.items():
        *path, last = key.split(".")
        target = spec
        for part in path:
            target = target[part]
        target[last] = value
    return spec


@dataclass(frozen=True)
class Ran:
    """What a run of the trial program did."""

    rc: int
    events: list[dict[str, Any]]
    stderr: str

    @property
    def errors(self) -> str:
        return " / ".join(e["text"] for e in self.events if e["event"] == "error")

    @property
    def status(self) -> str:
        return str(self.events[-1]["status"]) if self.events and self.events[-1]["event"] == "end" else ""

    @property
    def result(self) -> dict[str, Any]:
        return next(dict(e["result"]) for e in self.events if e["event"] == "result")

    @property
    def commands(self) -> list[list[str]]:
        return [e["command"] for e in self.events if "command" in e]


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the events; a last line that was cut by SIGKILL is left out."""
    found = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            found.append(json.loads(line))
    return found


class Forks:
    """The trial program, each run in a fork of one that is loaded: to start Python takes longer than most of
    a trial."""

    def __init__(self) -> None:
        self.asked = 0
        self.process = subprocess.Popen(
            [sys.executable, str(HARNESS), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, words: list[str], text: str = "") -> Ran:
        assert self.process.stdin and self.process.stdout
        self.asked += 1
        order = {"number": self.asked, "words": words, "input": text}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline())
        # A test that was stopped before it had its answer leaves that behind.
        while said["number"] < self.asked:
            said = json.loads(self.process.stdout.readline())
        return Ran(said["rc"], parse_events(said["out"]), said["err"])

    def run_trial(self, spec: dict[str, Any] | str, *, kill: int | None = None) -> Ran:
        """Run a trial; standard input stays open until it ends."""
        text = spec if isinstance(spec, str) else json.dumps(spec)
        return self._ask(["run", *(["--kill", str(kill)] if kill is not None else [])], text + "\n")

    def clean(self, state: Path | str) -> Ran:
        """Run ``clean``."""
        return self._ask(["clean", "--state", str(state)])

    def close(self) -> None:
        self.process.communicate()


@functools.cache
def _forks() -> Forks:
    found = Forks()
    atexit.register(found.close)
    return found


def run_trial(spec: dict[str, Any] | str, *, kill: int | None = None) -> Ran:
    """Run a trial, in a process that the tests of this one share up to there."""
    return _forks().run_trial(spec, kill=kill)


def clean(state: Path | str) -> Ran:
    """Run ``clean``, as ``run_trial`` runs a trial."""
    return _forks().clean(state)
