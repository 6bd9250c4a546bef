"""Doing it, and taking it back: every end leaves the datasets as they were or as the plan says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from children import environment
from zfs_machine import Machine, do, planned

from ztune.advice.host import CommandError, Host
from ztune.advice.perform import UndoFile, perform, read_undo, undo
from ztune.errors import InputError, ZtuneError
from ztune.study import DurabilityClass

pytestmark = pytest.mark.usefixtures("answered_here")


def test_done_checked_and_taken_back(machine: Machine, tmp_path: Path) -> None:
    before = machine.datasets()
    path = tmp_path / "undo" / "u.json"
    assert do(planned(), path) == 5
    assert machine.local("tank/pg") == {
        "atime": "off", "mountpoint": "/srv/pg", "recordsize": "16384", "compression": "zstd-3",
    }  # fmt: skip
    assert machine.local("tank/pg/wal") == {
        "recordsize": "131072", "compression": "lz4", "logbias": "throughput",
    }  # fmt: skip
    file = read_undo(path)
    assert [c.command for c in file.changes][:2] == [
        "zfs inherit recordsize tank/pg", "zfs inherit compression tank/pg",
    ]  # fmt: skip
    # A second time there is nothing left to do.
    assert planned().settings == ()
    said: list[str] = []
    shown = undo(file, Host(), said.append, yes=False)
    assert len(shown.done) == len(said) == 5 and machine.local("tank/pg")["recordsize"] == "16384"
    taken = undo(file, Host(), said.append, yes=True)
    assert len(taken.done) == 5 and taken.left == ()
    assert machine.datasets() == {**before, "tank/pg/wal": {**before["tank/pg/wal"], "local": {}}}
    again = undo(file, Host(), said.append, yes=True)
    assert again.done == again.left == () and again.as_before == 5


def test_local_and_received_values_come_back(machine: Machine, tmp_path: Path) -> None:
    def prepare(state: dict[str, Any]) -> None:
        state["datasets"]["tank/pg"]["local"].update(logbias="throughput", recordsize="1048576")
        state["datasets"]["tank/pg"]["received"] = {"primarycache": "metadata"}

    machine.change(prepare)
    before = machine.datasets()
    path = tmp_path / "u.json"
    do(planned({}, {"data": "tank/pg"}), path)
    assert machine.local("tank/pg")["recordsize"] == "131072"
    assert undo(read_undo(path), Host(), lambda _: None, yes=True).left == ()
    assert machine.datasets() == before
    again = undo(read_undo(path), Host(), lambda _: None, yes=True)
    assert again.done == again.left == () and again.as_before

    def inherited(state: dict[str, Any]) -> None:
        del state["datasets"]["tank/pg"]["local"]["logbias"]

    machine.change(inherited)
    (said,) = undo(read_undo(path), Host(), lambda _: None, yes=True).left
    assert said.startswith("logbias of tank/pg is latency (default), not the ")


def test_the_undo_file_is_there_before_the_first_change(machine: Machine, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match=r"can't be written .*so nothing was changed"):
        do(planned(), blocked / "u.json")
    kept = tmp_path / "u.json"
    kept.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        do(planned(), kept)
    assert kept.read_text() == "mine"
    assert machine.changes() == []


@pytest.mark.parametrize("failing", ["set recordsize tank/pg", "set compression tank/pg/wal", "set logbias"])
@pytest.mark.parametrize("how", ["", " then lie"])
def test_a_failure_takes_everything_back(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, how: str
) -> None:
    monkeypatch.setenv("FAKE_FAIL", failing + how)
    before = {name: d.get("local", {}) for name, d in machine.datasets().items()}
    path = tmp_path / "u.json"
    with pytest.raises(ZtuneError, match=r"all is as it was before$") as caught:
        do(planned(), path)
    assert ("permission denied" in str(caught.value)) == (how == "")
    assert {name: d.get("local", {}) for name, d in machine.datasets().items()} == before
    assert not path.exists()


class Unmounted(Host):
    """As to a user who may set a property and not mount: zfs does what it is told, and fails."""

    def run(self, argv: Sequence[str]) -> str:
        said = super().run(argv)
        if "atime" in " ".join(argv) and argv[1] in {"set", "inherit"}:
            raise CommandError("cannot mount: property may be set but unable to remount filesystem")
        return said


def test_what_was_taken_back_although_zfs_failed_is_not_left(machine: Machine, tmp_path: Path) -> None:
    before = {name: d.get("local", {}) for name, d in machine.datasets().items()}
    machine.change(lambda s: s["datasets"]["tank/pg"]["local"].pop("atime", None))
    path = tmp_path / "u.json"
    plan = planned({"data.recordsize": "16K"}, {"data": "tank/pg"})
    assert "atime" in {setting.name for setting in plan.settings}
    with pytest.raises(ZtuneError, match=r"unable to remount filesystem; all is as it was before$"):
        perform(plan, Unmounted(), path, None, lambda _: None)
    before["tank/pg"].pop("atime", None)
    assert {name: d.get("local", {}) for name, d in machine.datasets().items()} == before
    assert not path.exists()


def test_a_failure_of_taking_back_says_how_to_go_on(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "set logbias tank/pg/wal\ninherit compression tank/pg")
    before = {name: d.get("local", {}) for name, d in machine.datasets().items()}
    path = tmp_path / "u.json"
    with pytest.raises(ZtuneError) as caught:
        do(planned(), path)
    text = str(caught.value)
    assert "taking back failed for compression of tank/pg" in text and f"--undo {path} --yes" in text
    assert machine.local("tank/pg")["compression"] == "zstd-3"
    assert "recordsize" not in machine.local("tank/pg")
    # The words of the message work.
    taken = undo(read_undo(path), Host(), lambda _: None, yes=True)
    assert taken.done == ("zfs inherit compression tank/pg",)
    assert {name: d.get("local", {}) for name, d in machine.datasets().items()} == before


@pytest.mark.parametrize("at", ["set compression tank/pg", "set logbias tank/pg/wal"])
def test_a_terminated_apply_takes_everything_back(machine: Machine, tmp_path: Path, at: str) -> None:
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from zfs_machine import do, planned
        from ztune.onhost.host.interrupt import signals_as_interrupt
        plan = planned()
        with signals_as_interrupt():
            do(plan, Path({str(tmp_path / "u.json")!r}))
        """
    )
    before = {name: d.get("local", {}) for name, d in machine.datasets().items()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(FAKE_FAIL=f"{at} then kill"),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "KeyboardInterrupt" in done.stderr
    assert {name: d.get("local", {}) for name, d in machine.datasets().items()} == before
    assert not (tmp_path / "u.json").exists()


def test_killed_at_any_point_the_undo_file_suffices(machine: Machine, tmp_path: Path) -> None:
    """SIGKILL leaves some of the changes done, and the undo file."""
    path = tmp_path / "u.json"
    before = {name: d.get("local", {}) for name, d in machine.datasets().items()}
    plan = planned()

    class Killed(BaseException):
        pass

    count = 0

    def say(_: str) -> None:
        nonlocal count
        count += 1
        if count == 4:  # the undo file's own line and two changes came before
            raise Killed

    with pytest.raises(Killed):
        perform(plan, Host(), path, None, say)
    assert machine.local("tank/pg")["compression"] == "zstd-3"
    taken = undo(read_undo(path), Host(), lambda _: None, yes=True)
    assert len(taken.done) == 2 and taken.left == () and taken.as_before == 3
    assert {name: d.get("local", {}) for name, d in machine.datasets().items()} == before


def test_weaker_durability_takes_a_word_of_its_own(machine: Machine, tmp_path: Path) -> None:
    weak = {"data.sync": "disabled", "wal.sync": "disabled"}
    plan = planned(weak)
    with pytest.raises(
        InputError, match=r"from nothing-acknowledged to last-seconds.*--accept-durability last-s"
    ):
        do(plan, tmp_path / "u.json")
    with pytest.raises(InputError, match="--accept-durability"):
        do(plan, tmp_path / "u.json", DurabilityClass.NOTHING)
    one = planned(weak, {"data": "tank/pg"})
    with pytest.raises(InputError, match="--accept-durability corrupt"):
        do(one, tmp_path / "u.json", DurabilityClass.LAST_SECONDS)
    assert machine.changes() == [] and not (tmp_path / "u.json").exists()
    assert do(plan, tmp_path / "u.json", DurabilityClass.LAST_SECONDS) == 1  # the log inherits it
    assert machine.local("tank/pg")["sync"] == "disabled"


def test_what_is_refused_is_refused_as_a_whole(machine: Machine, tmp_path: Path) -> None:
    machine.change(lambda s: s.update(version="2.1.11-1"))
    with pytest.raises(InputError, match=r"nothing was changed: direct=always needs OpenZFS 2\.3"):
        do(planned({"data.direct": "always", "data.recordsize": "16K"}), tmp_path / "u.json")
    assert machine.changes() == []


def test_a_dataset_made_anew_since_the_plan_is_not_touched(machine: Machine, tmp_path: Path) -> None:
    plan = planned()
    machine.change(lambda s: s["datasets"]["tank/pg/wal"].update(guid="77"))
    with pytest.raises(InputError, match=r"tank/pg/wal is another dataset.*77"):
        do(plan, tmp_path / "u.json")
    assert machine.changes() == []


class Swapped(Host):
    """A host on which another dataset takes the place of tank/pg/wal before a command is run."""

    def __init__(self, machine: Machine, before: str) -> None:
        super().__init__()
        self.machine, self.before = machine, before

    def run(self, argv: Sequence[str]) -> str:
        if " ".join(argv) == self.before:
            new = {"type": "filesystem", "guid": "77", "local": {"recordsize": "131072"}}
            self.machine.change(lambda s: s["datasets"].update({"tank/pg/wal": new}))
        return super().run(argv)


def test_a_dataset_made_anew_between_two_changes_is_not_touched(machine: Machine, tmp_path: Path) -> None:
    """Neither by the change that was next, nor by taking back what was done."""
    path = tmp_path / "u.json"
    plan = planned({"wal.recordsize": "16K", "wal.compression": "zstd-3"}, {"wal": "tank/pg/wal"})
    # As the first is read back.
    host = Swapped(machine, f"zfs get -Hp -o value,source {plan.settings[0].name} tank/pg/wal")
    with pytest.raises(ZtuneError) as caught:
        perform(plan, host, path, None, lambda _: None)
    assert "taking back failed for" in str(caught.value)
    assert "tank/pg/wal is another dataset than when the plan was made (its guid is 77" in str(caught.value)
    assert path.exists()
    # All that was changed was the former dataset's.
    assert len(machine.changes()) == 1
    assert machine.local("tank/pg/wal") == {"recordsize": "131072"}


def test_each_change_is_made_to_the_dataset_of_the_plan(machine: Machine, tmp_path: Path) -> None:
    host = Swapped(machine, "zfs get -Hp -o value,source compression tank/pg")  # the last of the one above
    with pytest.raises(ZtuneError, match=r"tank/pg/wal is another dataset .*; all is as it was before$"):
        perform(planned(), host, tmp_path / "u.json", None, lambda _: None)
    assert not any("tank/pg/wal" in change for change in machine.changes())


def test_undo_looks_right_before_each_change(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    do(planned(), path)
    made = len(machine.changes())
    host = Swapped(machine, "zfs get -Hp -o value,source recordsize tank/pg/wal")
    taken = undo(read_undo(path), host, lambda _: None, yes=True)
    assert [c for c in machine.changes()[made:] if c.endswith("tank/pg/wal")] == [
        "zfs inherit logbias tank/pg/wal", "zfs inherit compression tank/pg/wal",
    ]  # fmt: skip
    assert "tank/pg/wal is another dataset than the one that was changed" in taken.left


def test_undo_leaves_alone_what_others_changed(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "u.json"
    do(planned(), path)

    def later(state: dict[str, Any]) -> None:
        state["datasets"]["tank/pg"]["local"]["recordsize"] = "65536"
        del state["datasets"]["tank/pg/wal"]

    machine.change(later)
    taken = undo(read_undo(path), Host(), lambda _: None, yes=True)
    assert taken.done == ("zfs inherit compression tank/pg",)
    assert any("recordsize of tank/pg is 64K (local), not the 16K" in text for text in taken.left)
    (gone,) = [text for text in taken.left if "tank/pg/wal" in text]
    assert gone.startswith("tank/pg/wal is not there, nor under another name: it is destroyed, or its pool")
    assert machine.local("tank/pg")["recordsize"] == "65536"


def test_undo_finds_what_was_renamed(machine: Machine, tmp_path: Path) -> None:
    """It said three times that a dataset does not exist, and that there was nothing to take back."""
    path = tmp_path / "u.json"
    do(planned(), path)

    def rename(state: dict[str, Any], old: str, new: str) -> None:
        state["datasets"][new] = state["datasets"].pop(old)

    machine.change(lambda state: rename(state, "tank/pg/wal", "tank/pg/log"))
    twin = machine.datasets()["tank/pg/log"]
    machine.change(lambda state: state["datasets"].update({"tank/pg/copy": twin}))
    (said,) = undo(read_undo(path), Host(), lambda _: None, yes=False).left
    assert said == "tank/pg/wal is not there, and tank/pg/log and tank/pg/copy have its guid"
    machine.change(lambda state: state["datasets"].pop("tank/pg/copy"))
    new = {"type": "filesystem", "guid": "77"}
    machine.change(lambda state: state["datasets"].update({"tank/pg/wal": new}))
    (said,) = undo(read_undo(path), Host(), lambda _: None, yes=False).left
    assert said == (
        "tank/pg/wal is another dataset than the one that was changed; that one is tank/pg/log now"
    )
    machine.change(lambda state: state["datasets"].pop("tank/pg/wal"))
    taken = undo(read_undo(path), Host(), lambda _: None, yes=True)
    assert taken.left == () and sum(command.endswith(" tank/pg/log") for command in taken.done) == 3
    assert machine.local("tank/pg/log") == {}


def test_what_another_user_could_have_written_is_not_taken_back(machine: Machine, tmp_path: Path) -> None:
    """Root set what a file of nobody's in /tmp said, such as sync=disabled."""
    path = tmp_path / "u.json"
    old = os.umask(0o002)
    try:
        do(planned(), path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o666)
    with pytest.raises(InputError, match="another user could have written"):
        read_undo(path)
    path.chmod(0o644)
    assert read_undo(path).changes
    if os.geteuid() == 0:
        os.chown(path, 0, 12345)
        path.chmod(0o664)
        with pytest.raises(InputError, match="another user could have written"):
            read_undo(path)
        path.chmod(0o644)
        assert read_undo(path).changes
        os.chown(path, 12345, 12345)
        with pytest.raises(InputError, match="another user could have written"):
            read_undo(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "other"}, "is no undo file of ztune: format"),
        ({"changes": [{"dataset": "tank; rm -rf /", "guid": "1", "name": "sync", "value": "x", "before": "y",
                       "source": "local"}]}, "changes.0.dataset"),
        ({"changes": [{"dataset": "tank", "guid": "1", "name": "mountpoint", "value": "x", "before": "y",
                       "source": "local"}]}, "is not a property that ztune sets"),
        ({"more": 1}, "more"),
    ],
)  # fmt: skip
def test_undo_files_are_checked(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    good = UndoFile(run="r", layout="l", on="", openzfs="2.3.2", created="2026", changes=[])
    path = tmp_path / "u.json"
    path.write_text(json.dumps({**good.model_dump(mode="json"), **change}))
    with pytest.raises(InputError, match=sentence):
        read_undo(path)
    for text in ("", "[", "\x00"):
        path.write_text(text)
        with pytest.raises(InputError, match="is not JSON"):
            read_undo(path)
    with pytest.raises(InputError, match="can't be read"):
        read_undo(tmp_path / "none.json")
