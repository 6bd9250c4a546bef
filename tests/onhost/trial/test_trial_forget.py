"""A disk of a dead trial that is somebody else's by now is forgotten if the user says so, and not touched."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import children
import pytest
from invoked import invoke

from ztune import temporary
from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import devices
from ztune.onhost.host.own_directory import NotOursError
from ztune.onhost.trial import clean
from ztune.onhost.trial.clean import forget
from ztune.onhost.trial.door import token
from ztune.onhost.trial.journal import NAME, Journal
from ztune.onhost.trial.lock import RunLock
from ztune.places import named
from ztune.places.local import Local
from ztune.places.placing import Placing

RUN, TRIAL, DISK, BY_ID = "r-1", "r-1-1", "/dev/sdz", "/dev/disk/by-id/gone"
WHY = f"disk {BY_ID}: left alone: it holds an ext4 file system that is not ours"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def dead(state: Path, trial: str = TRIAL, refused: str = WHY, **facts: Any) -> Path:
    """Make the journal of a dead trial that had a disk; return where it is."""
    lock = RunLock(state, RUN)
    assert lock.acquire()
    with lock.home.below(trial, make=0o700) as home:
        path = home.path / NAME
    mark = token(RUN, trial, state)
    journal = Journal.create(path, run=RUN, trial=trial, token=mark, about={})
    known = {"path": BY_ID, "node": DISK, "size": 1 << 30, "identity": "serial 7", "number": [8, 0], **facts}
    journal.make(f"disk:{known['node']}", "disk", **known)
    journal.made(f"disk:{known['node']}")
    if refused:
        journal.append("refused", id=f"disk:{known['node']}", text=refused)
    journal.close()
    lock.release()
    return path


def things(path: Path) -> list[str]:
    journal = Journal.open(path)
    journal.close()
    return list(journal.things)


@pytest.mark.parametrize("name", [DISK, BY_ID])
def test_a_disk_is_forgotten_where_it_was_refused(state: Path, name: str) -> None:
    path = dead(state)
    before = path.read_bytes()
    (shown,) = forget(state, name, do=False)
    assert (shown["trial"], shown["name"], shown["identity"], shown["size"]) == (
        TRIAL,
        BY_ID,
        "serial 7",
        1 << 30,
    )
    assert (shown["refused"], shown["why"], shown["forgotten"]) == (WHY, "", False)
    assert path.read_bytes() == before
    (done,) = forget(state, name, do=True)
    assert done["forgotten"] and things(path) == []
    # On record until the trial is tidied away.
    said = json.loads(path.read_bytes().splitlines()[-1])
    assert (said["do"], said["ids"]) == ("forgotten", [f"disk:{DISK}"])
    assert forget(state, name, do=True) == []
    assert clean.clean(state, Events(io.StringIO())) and not state.exists()


def test_others_keep_theirs(state: Path) -> None:
    first, second = dead(state), dead(state, "r-1-2")
    other = dead(state, "r-1-3", node="/dev/sdy", path="/dev/sdy")
    assert forget(state, "/dev/sd", do=True) == forget(state, DISK, "r-1", do=True) == []
    assert [one["trial"] for one in forget(state, DISK, "r-1-2", do=True)] == ["r-1-2"]
    assert things(first) == [f"disk:{DISK}"] and things(second) == [] and things(other) == ["disk:/dev/sdy"]
    assert [one["trial"] for one in forget(state, BY_ID, do=True)] == [TRIAL]
    assert things(other) == ["disk:/dev/sdy"]


def test_what_clean_up_has_not_refused_may_be_the_trial_s_own(state: Path) -> None:
    path = dead(state, refused="")
    (one,) = forget(state, DISK, do=True)
    assert not one["forgotten"]
    assert one["why"] == f"clean-up has not refused disk:{DISK} yet, which may be the trial's own still"
    assert things(path) == [f"disk:{DISK}"]


def with_pool(path: Path, refused: str = "", mounted: bool = False) -> None:
    """Have the trial's disk be one of two of a pool."""
    journal = Journal.open(path)
    journal.make("disk:/dev/sdb", "disk", path="/dev/sdb", node="/dev/sdb", identity="serial 8", size=1)
    journal.make("pool:main", "pool", name="zt1-main", uses=[f"disk:{DISK}", "disk:/dev/sdb"])
    journal.make("disk:/dev/sdc", "disk", path="/dev/sdc", node="/dev/sdc")
    journal.make("pool:other", "pool", name="zt1-other", uses=["disk:/dev/sdc"])
    for id in [one for one in journal.things if one != "pool:other"]:
        if refused and (id != "pool:main" or refused == "all"):
            journal.append("refused", id=id, text=f"{id}: left alone")
    if mounted:
        journal.make("mount:x", "mount", point="/x", node="/dev/sdb", uses=["disk:/dev/sdb"])
    journal.close()


@pytest.mark.parametrize(
    ("refused", "mounted", "why"),
    [
        ("", False, "clean-up has not refused disk:/dev/sdb yet"),
        ("disks", False, "clean-up has not refused pool:main yet"),
        ("all", True, "mount:x of the trial goes with it, and is to be removed first"),
    ],
)
def test_what_goes_with_something_that_can_be_removed_is_not_forgotten(
    state: Path, refused: str, mounted: bool, why: str
) -> None:
    path = dead(state)
    with_pool(path, refused, mounted)
    before = path.read_bytes()
    found = forget(state, DISK, do=True)
    assert found and all(one["why"].startswith(why) and not one["forgotten"] for one in found)
    assert path.read_bytes() == before


def test_a_pool_that_can_not_be_had_without_it_is_forgotten_with_its_disks(here: Path) -> None:
    path = dead(here)
    with_pool(path, "all")
    # Its other disk may hold what somebody put into the pool: by itself clean-up would wipe it.
    code, out, _ = invoke("clean", "--forget", DISK)
    assert code == 0 and out.splitlines()[::3] == [
        f"trial {TRIAL}: disk {BY_ID} (serial 7, 1.00 GiB)",
        f"trial {TRIAL}: disk /dev/sdb (serial 8, 1 B)",
        f"trial {TRIAL}: pool zt1-main",
        "A disk that is forgotten with its pool keeps the trial's labels: wipe it if it is yours.",
    ]
    assert [one["id"] for one in forget(here, DISK, do=True)] == [
        f"disk:{DISK}",
        "disk:/dev/sdb",
        "pool:main",
    ]
    assert things(path) == ["disk:/dev/sdc", "pool:other"]


def test_without_room_for_it_nothing_is_forgotten(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dead(state)
    with_pool(path, "all")
    before = things(path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(ZtuneError, match="the journal can't be written"):
        forget(state, DISK, do=True)
    assert things(path) == before


def test_a_trial_that_runs_forgets_nothing(state: Path) -> None:
    path = dead(state)
    lock = RunLock(state, RUN)
    assert lock.acquire()
    assert forget(state, DISK, do=True) == []
    lock.release()
    assert things(path) == [f"disk:{DISK}"]


def test_a_journal_that_may_be_another_s_is_not_written(state: Path, tmp_path: Path) -> None:
    moved = dead(state, "r-1-2")
    moved.parent.rename(moved.parent.with_name("r-1-9"))  # of a trial of another name
    linked = dead(state)
    os.link(linked, tmp_path / "another name")
    damaged = dead(state, "r-1-3")
    damaged.write_bytes(b"{}\n" + damaged.read_bytes())
    before = {path: path.read_bytes() for path in state.rglob(NAME)}
    assert len(before) == 3 and forget(state, DISK, do=True) == []
    assert {path: path.read_bytes() for path in state.rglob(NAME)} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_nothing_of_another_user_is_believed(state: Path) -> None:
    path = dead(state)
    for one in (path, path.parent, path.parents[1]):
        os.chown(one, 65534, 65534)
        with contextlib.suppress(NotOursError):
            assert forget(state, DISK, do=True) == []
        os.chown(one, 0, 0)
        assert things(path) == [f"disk:{DISK}"]


class _Here(Local):
    """This host, without root: nothing is destroyed."""

    def __enter__(self) -> _Here:
        return self

    def open(self, argv: list[str]) -> Any:
        return super().open(argv)


@pytest.fixture
def here(state: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``ztune clean`` looks at a state directory of the test's, and at nothing else of this host."""
    monkeypatch.setattr(temporary, "left_here", lambda: [])
    monkeypatch.setattr(temporary, "remove_left_here", lambda: None)
    monkeypatch.setattr(named, "make", lambda *_: _Here(Placing(files="/"), state=str(state)))
    return state


def test_the_command_says_what_it_will_forget_and_does_it_with_yes(here: Path) -> None:
    first, second = dead(here), dead(here, "r-1-2")
    third = dead(here, "r-1-3", refused="")
    before = first.read_bytes()
    code, out, err = invoke("clean", "--forget", f"{TRIAL}:{DISK}")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"trial {TRIAL}: disk {BY_ID} (serial 7, 1.00 GiB)",
        f"  refused before: {WHY}",
        "  would be forgotten: clean-up would look at it no more",
        "Nothing was changed; --yes has it forgotten, and changes nothing on any disk.",
    ]
    assert first.read_bytes() == before
    code, out, _ = invoke("clean", "--forget", f"{TRIAL}:{DISK}", "--yes")
    assert code == 0 and "  forgotten; nothing on it was changed\n" in out
    assert things(first) == [] and things(second) == [f"disk:{DISK}"]
    code, out, _ = invoke("clean", "--forget", DISK, "--yes", "--json")
    assert code == 1  # one of them was not refused
    found = {one["trial"]: one["forgotten"] for one in json.loads(out)}
    assert found == {"r-1-2": True, "r-1-3": False} and things(third) == [f"disk:{DISK}"]


def test_clean_says_how_a_disk_that_it_refuses_is_forgotten(here: Path) -> None:
    dead(here, path="/dev/null", node="/dev/null", refused="")
    code, _, err = invoke("clean", "--on", "local", "--yes")
    assert code == 1 and "stayed: disk /dev/null: left alone: disk /dev/null: not a block device" in err
    assert (
        "a disk that is somebody else's for good: `ztune clean --forget DISK` has it looked at no more" in err
    )
    assert invoke("clean", "--forget", "/dev/null", "--yes")[0] == 0
    code, out, err = invoke("clean", "--yes")
    assert code == 0 and "--forget" not in err, (out, err)
    assert not here.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/dev/nobody"], "no dead trial on local has a disk /dev/nobody; `ztune clean` names what each has"),
        (["r-9:/dev/sdz"], "no dead trial on local has a disk r-9:/dev/sdz"),
        (["sdz"], "--forget sdz: sdz is no path of a disk"),
        ([""], "is no path of a disk"),
        ([DISK, "--prepared"], "are things of their own; give one of them"),
        ([DISK, "--openzfs"], "are things of their own; give one of them"),
    ],
)
def test_what_can_not_be_forgotten_is_one_sentence(here: Path, words: list[str], said: str) -> None:
    path = dead(here)
    code, out, err = invoke("clean", "--yes", "--forget", *words)
    assert code == 2 and out == "" and said in err
    assert things(path) == [f"disk:{DISK}"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--state", "/x"],
        ["--disk", "/dev/a"],
        ["--state", "/x", "--disk"],
        ["--state", "/x", "--disk", "/dev/a", "--disk", "/dev/b"],
        ["--state", "/x", "--disk", "/dev/a", "--what", "else"],
        ["--state", "x", "--disk", "/dev/a"],
    ],
)
def test_the_program_takes_what_it_says(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ztune.onhost", "forget", *words], capture_output=True, text=True,
        env=children.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == "" and "forget --state DIR --disk PATH" in done.stderr


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("needs root and loop devices")
    with (tmp_path / "disk").open("wb") as image:
        image.truncate(64 << 20)
    argv = ["losetup", "--find", "--show", str(tmp_path / "disk")]
    made = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    yield made
    subprocess.run(["losetup", "-d", made], check=True)


def test_a_disk_that_was_given_away_is_refused_until_it_is_forgotten_and_stays_as_it_is(
    state: Path, loop: str
) -> None:
    dead(state, refused="", **{**to_json(devices.Disk.of(loop)), "pool": "zt1-main", "class": "data"})
    subprocess.run(["mkfs.ext4", "-q", loop], check=True)
    with Path(loop).open("rb") as content:
        before = hashlib.file_digest(content, "sha256").hexdigest()
    for _ in range(2):
        said = io.StringIO()
        assert not clean.clean(state, Events(said))
        assert f"disk {loop}: left alone: it holds an ext4 file system that is not ours" in said.getvalue()
    (one,) = forget(state, loop, do=True)
    assert one["forgotten"]
    assert clean.clean(state, Events(io.StringIO())) and not state.exists()
    with Path(loop).open("rb") as content:
        assert hashlib.file_digest(content, "sha256").hexdigest() == before


def test_a_disk_is_not_opened_to_be_forgotten(state: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "disk")  # who opens it waits
    dead(state, node=str(tmp_path / "disk"), path=str(tmp_path / "disk"))
    (one,) = forget(state, str(tmp_path / "disk"), do=True)
    assert one["forgotten"]
