"""What says that it is a trial's, and whose journal is lost."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from ztune.onhost.events import Events
from ztune.onhost.host import tunables
from ztune.onhost.host.home import RunHome
from ztune.onhost.host.zfs import Value
from ztune.onhost.trial import clean
from ztune.onhost.trial.door import RUN, TRIAL, Door
from ztune.onhost.trial.journal import NAME, Thing


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


class LostZfs(FakeZfs):
    """One dataset of a trial, whose journal is lost; it is there until it is destroyed."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.there = True

    def with_property(self, _name: str) -> dict[str, str]:
        return {"tank/ztune-r-1": self.state} if self.there else {}

    def tree(self, name: str, _wanted: tuple[str, ...]) -> dict[str, dict[str, Value]]:
        return {name: {"mounted": Value("no", "-")}}


def test_with_what_has_no_journal_its_directories_go_too_and_what_is_not_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty directories stayed, an empty home was refused, and the ARC kept the trial's size, for all pools
    of the host, while it was said that all was gone.
    """
    state = tmp_path / "state"
    zfs: Any = LostZfs(state)

    def destroy(_door: Door, thing: Thing) -> None:
        assert thing.facts["root"] == "tank/ztune-r-1"
        zfs.there = False

    where = RunHome(state, "r")
    (where.places / "r-1" / "mnt" / "zt-tank" / "data").mkdir(parents=True)
    (where.believed / "r-1").mkdir(parents=True)
    monkeypatch.setattr(clean, "Zfs", lambda _commands: zfs)
    monkeypatch.setattr(clean, "module_version", lambda: "2.3.2")
    monkeypatch.setattr(Door, "destroy_datasets", destroy)
    monkeypatch.setattr(tunables, "read", lambda name: "67108864" if name == "zfs_arc_max" else "0")
    said = io.StringIO()
    assert clean.clean(state, Events(said))
    assert not where.places.exists() and not where.believed.exists()
    (warning,) = [line for line in said.getvalue().splitlines() if '"warning"' in line]
    assert "zfs_arc_max is 67108864, for all pools of this host" in warning
