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
from ztune.onhost.trial.journal import NAME, Journal, Thing


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
    journal = journal_of(tmp_path, "r-1")
    journal.make("datasets:main", "datasets", root="tank/ztune-r-1", names=["tank/ztune-r-1"])
    monkeypatch.setattr(clean, "Zfs", lambda _commands: zfs)
    monkeypatch.setattr(clean, "module_version", lambda: "2.3.2")
    monkeypatch.setattr(clean, "runs", lambda _state: [])
    left = clean.listing(tmp_path, Events(io.StringIO()))["datasets"]
    assert left == [{"name": "tank/ztune-r-2", "run": "r", "trial": "r-2", "problem": ""}]
    # Its pool was not imported when it was to be removed; what else the trial left is refused still.
    journal.append("removed", id="datasets:main")
    journal.close()
    left = clean.listing(tmp_path, Events(io.StringIO()))["datasets"]
    assert [one["trial"] for one in left] == ["r-1", "r-2"]


def journal_of(state: Path, trial: str) -> Journal:
    """Begin the journal of a trial of the run "r"."""
    home = RunHome(state, "r").believed / trial
    home.mkdir(parents=True, mode=0o700)
    return Journal.create(home / NAME, run="r", trial=trial, token="", about={})


class LostZfs(FakeZfs):
    """Datasets of a trial below two parents, whose journal is lost; each is there until it is destroyed."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.there = ["tank/ztune-r-1", "fast/ztune-r-1"]

    def with_property(self, _name: str) -> dict[str, str]:
        return dict.fromkeys(self.there, self.state)

    def tree(self, name: str, _wanted: tuple[str, ...]) -> dict[str, dict[str, Value]]:
        return {name: {"mounted": Value("no", "-")}}


def test_with_what_has_no_journal_its_directories_go_too_and_what_is_not_known_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty directories stayed, an empty home was refused, and the ARC kept the trial's size, for all pools
    of the host, while it was said that all was gone. Later it was said once for each dataset.
    """
    state = tmp_path / "state"
    zfs: Any = LostZfs(state)

    def destroy(_door: Door, thing: Thing) -> None:
        zfs.there.remove(thing.facts["root"])

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


def test_of_what_somebody_made_their_own_by_another_name_it_says_how_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed at each clean-up, which failed for it, after it was said that it would be destroyed; and the
    host's own limit of the ARC was taken for the trial's."""
    state = tmp_path / "state"
    zfs: Any = LostZfs(state)
    zfs.there = ["tank/mine now"]
    zfs.values = lambda names, _wanted: {
        n: {RUN: Value("r", "local"), TRIAL: Value("r-1", "local")} for n in names
    }
    monkeypatch.setattr(clean, "Zfs", lambda _commands: zfs)
    monkeypatch.setattr(clean, "module_version", lambda: "2.3.2")
    monkeypatch.setattr(tunables, "read", lambda _name: "67108864")
    (one,) = clean.listing(state, Events(io.StringIO()))["datasets"]
    assert one["problem"].endswith("`zfs inherit ztune:state 'tank/mine now'` has ztune look at it no more")
    said = io.StringIO()
    assert not clean.clean(state, Events(said))
    (error,) = [line for line in said.getvalue().splitlines() if "left alone" in line]
    assert "its name is not one that a trial gives; if it is yours now" in error
    assert "zfs_arc_max" not in said.getvalue()
