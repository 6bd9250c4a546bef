"""What says that it is a trial's, and whose journal is lost."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ztune.onhost.events import Events
from ztune.onhost.host.home import RunHome
from ztune.onhost.host.zfs import Value
from ztune.onhost.trial import clean
from ztune.onhost.trial.door import RUN, TRIAL
from ztune.onhost.trial.journal import NAME


class FakeZfs:
    """The datasets of two trials."""

    def __init__(self, state: Path) -> None:
        self.state = str(state)

    def with_property(self, _name: str) -> dict[str, str]:
        return {f"tank/ztune-r-{n}{below}": self.state for n in (1, 2) for below in ("", "/data")}

    def values(self, names: list[str], _wanted: tuple[str, ...]) -> dict[str, dict[str, Value]]:
        return {
            name: {RUN: Value("r", "local"), TRIAL: Value(name.split("/")[1].removeprefix("ztune-"), "local")}
            for name in names
        }


def test_what_a_journal_knows_of_is_not_listed_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that runs has a journal: to say that ``clean`` destroys its datasets would be wrong."""
    zfs: Any = FakeZfs(tmp_path)
    journal = RunHome(tmp_path, "r").believed / "r-1" / NAME
    journal.parent.mkdir(parents=True)
    journal.touch()
    monkeypatch.setattr(clean, "Zfs", lambda _commands: zfs)
    monkeypatch.setattr(clean, "module_version", lambda: "2.3.2")
    monkeypatch.setattr(clean, "runs", lambda _state: [])
    left = clean.listing(tmp_path, Events(io.StringIO()))["datasets"]
    assert left == [{"name": "tank/ztune-r-2", "run": "r", "trial": "r-2"}]
