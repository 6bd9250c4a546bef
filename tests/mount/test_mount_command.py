"""``ztune mount`` and ``ztune umount``, with a stand-in program and real FUSE mounts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mount_commands import CODE, bad, good, good_elsewhere, ztune

from ztune import native
from ztune.cli import _waiting
from ztune.doctor import checks
from ztune.doctor.checks import State
from ztune.errors import InputError, MissingError, Refused, ZtuneError
from ztune.onhost.host import mounted, mounts
from ztune.onhost.host.mounted import MountOptions
from ztune.onhost.trial.mount_store import MountStore
from ztune.places import mount_points, mount_program, mounting
from ztune.places.engine_spec import engine_spec, mount_spec
from ztune.runs.asked import layout_of
from ztune.study import profiles

STUDY = """
name = "small"
[[layout.pool]]
name = "main"
vdev = [{ profile = "nvme" }]
[[layout.pool]]
name = "fast"
vdev = [{ profile = "nvme" }]
[[layout.dataset]]
name = "main/db"
roles = ["data", "index"]
recordsize = "16K"
[[layout.dataset]]
name = "fast/db/wal"
roles = ["wal"]
logbias = "throughput"
atime = "on"
dnodesize = "auto"
[axes]
"data.recordsize" = ["8K", "16K"]
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(STUDY)
    return path


def mounts_below(path: Path) -> list[str]:
    return sorted(m.point.name for m in mounted.all_ours() if path in m.point.parents)


def kept(home: Path) -> list[Path]:
    return list((home / "mounts").iterdir()) if (home / "mounts").exists() else []


def test_a_whole_life(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    out = good_elsewhere("mount", study, place)
    for words in ("data, index", "main/db", f"{place}/db", "16K", "throughput", "ztune umount"):
        assert words in " ".join(out.split())
    assert "imported" not in out
    assert mounts_below(place) == ["db", "db-wal"]
    [shown] = json.loads(good("mount", "--list", "--json"))
    assert (
        shown["state"] == "mounted" and shown["layout"] == "base" and shown["options"]["disks"] == "profile"
    )
    stats = json.loads(good("mount", "--stats", place, "--json"))
    assert stats["pid"] == shown["pid"] and {row["name"] for row in stats["datasets"]} == {
        "main/db",
        "fast/db/wal",
    }
    assert "main/db" in good("mount", "--stats", place) and "mounted" in good("mount", "--list")

    assert "mounted there already" in bad(2, "mount", study, place)
    assert "kept in" in good("umount", place)
    assert mounts_below(place) == [] and not place.exists()
    assert "is not mounted" in bad(2, "umount", place)
    assert "is not mounted now" in bad(2, "mount", "--stats", place)

    again = json.loads(good("mount", study, place, "--json", "--disks", "instant", "--cache", "none"))
    assert again["imported"] is True and again["replayed"] == 7 and again["disks"] == "instant"
    assert [row["roles"] for row in again["mounts"]] == [["data", "index"], ["wal"]]
    assert again["notes"] == ["dnodesize=auto of fast/db/wal is not heeded: a mount does not have it"]
    told = json.loads((Path(again["store"]) / "disks" / "spec.json").read_text())
    assert told["datasets"][1]["properties"]["atime"] == "on" and told["files"] == []
    out = good("umount", "--destroy", place)
    assert "is deleted" in out and kept(home) == [] and not place.exists()
    assert "nothing was mounted there" in bad(2, "umount", place)
    assert (
        "Nothing is mounted" in good("mount", "--list")
        and json.loads(good("mount", "--list", "--json")) == []
    )


def test_what_is_replayed_is_said(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    pid = json.loads(good("mount", study, place, "--json"))["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for_death(place / "db")
    assert "dead: the program is gone" in good("mount", "--list")
    assert "is not mounted now" in bad(2, "mount", "--stats", place)
    assert "7 records of the intent log were replayed" in " ".join(good("mount", study, place).split())
    assert mounts_below(place) == ["db", "db-wal"]
    good("umount", place)
    assert list(place.iterdir()) == [], "a directory that was there stays"


def wait_for_death(place: Path) -> None:
    while not mounted.dead(place):
        time.sleep(0.01)


def test_after_a_crash_umount_takes_away_what_is_left(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path
) -> None:
    place = tmp_path / "mnt"
    pid = json.loads(good("mount", study, place, "--json"))["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for_death(place / "db")
    done = ztune("umount", place)
    assert done.returncode == 0 and "gone already, as in a power cut: a word of warning" in done.stderr
    assert mounts_below(place) == [] and not place.exists() and len(kept(home)) == 1
    good("umount", "--destroy", place)
    assert kept(home) == []


def test_another_layout_is_refused(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    good("mount", f"{study}:data.recordsize=8K", place)
    good("umount", place)
    said = bad(2, "mount", study, place)
    assert "data.recordsize=8K" in said and f"ztune umount --destroy {place}" in said
    said = bad(2, "mount", study, place, "--layout", "data.recordsize=8K", "--profile", "hdd-7200")
    assert "data.recordsize=8K" in said
    assert "its store is" in bad(
        2, "mount", f"{study}:data.recordsize=8K", place, "--store", tmp_path / "else"
    )
    good("mount", study, place, "--layout", "data.recordsize=8K")
    good("umount", "--destroy", place)
    good("mount", study, place)
    good("umount", "--destroy", place)


def test_what_uses_it_is_named(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    good("mount", study, place)
    with subprocess.Popen(["sleep", "600"], cwd=place / "db-wal") as user:
        try:
            said = bad(2, "umount", place)
            assert f"is used by sleep ({user.pid})" in said and "--force" in said
            assert f"sleep ({user.pid})" in bad(2, "umount", "--destroy", place)
            assert mounts_below(place) == ["db", "db-wal"]
            good("umount", "--force", place)
        finally:
            user.kill()
    assert mounts_below(place) == []
    good("umount", "--destroy", place)


def test_directories_in_the_way(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    (place / "precious").write_text("x")
    assert "is not empty" in bad(2, "mount", study, place)
    (place / "precious").unlink()
    assert "can't be mounted on" in bad(2, "mount", study, study)
    assert "lie in each other" in bad(2, "mount", study, place, "--store", place / "store")
    assert "lie in each other" in bad(2, "mount", study, place, "--store", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    assert "is not empty" in bad(2, "mount", study, place, "--store", tmp_path / "full")
    subprocess.run(["mount", "-t", "tmpfs", "somebody", place], check=True)
    try:  # DIR itself is a mount of somebody's: fine, as long as it is empty
        good("mount", study, place)
        good("umount", "--destroy", place)
    finally:
        subprocess.run(["umount", place], check=True)
    assert kept(home) == [] and list(place.iterdir()) == []
    assert (tmp_path / "full" / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_directories_of_somebody_else(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    """They could put links where root mounts, and swap its disks."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert f"{theirs} belongs to user 65534" in bad(2, "mount", study, theirs)
    assert "can't be mounted on" in bad(2, "mount", study, theirs / "mnt")
    said = bad(2, "mount", study, tmp_path / "mnt", "--store", theirs / "store")
    assert "can't become a store" in said and "belongs to user 65534" in said
    assert list(theirs.iterdir()) == [] and kept(home) == []
    # A link of theirs where everybody may make one, to a directory of root's.
    open_to_all, empty = tmp_path / "open", tmp_path / "empty"
    for path in (open_to_all, empty):
        path.mkdir()
    open_to_all.chmod(0o1777)
    (open_to_all / "mnt").symlink_to(empty)
    os.chown(open_to_all / "mnt", 65534, 65534, follow_symlinks=False)
    assert f"{open_to_all}/mnt is a symbolic link" in bad(2, "mount", study, open_to_all / "mnt")
    assert list(empty.iterdir()) == [] and kept(home) == []
    # Given away while it is mounted: what is below is not removed, in case it leads elsewhere now.
    place = tmp_path / "parent" / "mnt"
    place.parent.mkdir()
    good("mount", study, place)
    os.chown(place.parent, 65534, 65534)
    good("umount", "--destroy", place)
    assert place.is_dir() and kept(home) == []


def test_directories_in_the_way_later(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    good("mount", study, place)
    good("umount", place)
    (place / "db").mkdir(parents=True)
    (place / "db" / "precious").write_text("x")
    assert f"{place}/db: is not empty" in bad(2, "mount", study, place)
    assert len(kept(home)) == 1, "what is kept stays kept"
    good("umount", "--destroy", place)
    assert (place / "db" / "precious").exists()


def test_a_store_of_ones_own(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place, store = tmp_path / "mnt", tmp_path / "store"
    store.mkdir()
    found = json.loads(good("mount", study, place, "--store", store, "--json"))
    assert found["store"] == str(store) and (store / "disks" / "spec.json").exists()
    good("umount", place)
    (store / "precious").write_text("x")
    assert "precious in it is no file of a store's" in bad(1, "umount", "--destroy", place)
    assert (store / "disks" / "spec.json").exists()
    (store / "precious").unlink()
    good("umount", "--destroy", place)
    assert list(store.iterdir()) == [] and kept(home) == []


def test_a_store_that_is_gone(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place, store = tmp_path / "mnt", tmp_path / "store"
    good("mount", study, place, "--store", store)
    good("umount", place)
    store.rename(tmp_path / "elsewhere")
    assert "is gone" in bad(2, "mount", study, place)
    (tmp_path / "other").mkdir()
    store.symlink_to(tmp_path / "other")
    assert "symbolic link" in bad(1, "mount", study, place)
    assert "symbolic link" in bad(1, "umount", "--destroy", place)
    store.unlink()
    good("umount", "--destroy", place)
    assert kept(home) == [] and (tmp_path / "elsewhere" / "disks" / "spec.json").exists()


@pytest.mark.parametrize(("mode", "code", "says"), [("refuse", 2, "version 99"), ("missing", 3, "libzpool")])
def test_a_program_that_refuses_leaves_nothing(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    mode: str, code: int, says: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("STAND_IN", mode)
    assert says in bad(code, "mount", study, tmp_path / "mnt")
    assert kept(home) == [] and not (tmp_path / "mnt").exists()


def test_what_the_program_says_at_its_end_is_handed_on(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "slow")
    good("mount", study, tmp_path / "mnt")
    # Nobody is told the exit code of a process that is not his child; what it left is to be seen.
    done = ztune("umount", tmp_path / "mnt")
    assert done.returncode == 0 and "note: the pool can't be exported" in done.stderr
    good("umount", "--destroy", tmp_path / "mnt")


@pytest.fixture
def foreground(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "mount", str(study), str(tmp_path / "mnt"), "--foreground", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    while not said.endswith("\n}\n"):
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    process.told = json.loads(said)  # type: ignore[attr-defined]
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_in_the_foreground_signals_unmount(
    foreground: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    assert mounts_below(tmp_path / "mnt") == ["db", "db-wal"]
    foreground.send_signal(number)
    _, said = foreground.communicate(timeout=60)
    assert foreground.returncode == 0 and "is unmounted; its files are kept" in said
    assert mounts_below(tmp_path / "mnt") == [] and not (tmp_path / "mnt").exists()


def test_in_the_foreground_until_somebody_unmounts(foreground: subprocess.Popen[str], tmp_path: Path) -> None:
    good("umount", tmp_path / "mnt")
    foreground.communicate(timeout=60)
    assert foreground.returncode == 0


def test_in_the_foreground_a_death_is_told(foreground: Any, tmp_path: Path) -> None:
    os.kill(foreground.told["pid"], signal.SIGKILL)
    _, said = foreground.communicate(timeout=60)
    assert foreground.returncode == 1 and "the mount has died: a word of warning" in said
    assert mounts_below(tmp_path / "mnt") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:  # fmt: skip
    monkeypatch.setenv("STAND_IN", "silent")
    arguments = [sys.executable, "-c", CODE, "mount", str(study), str(tmp_path / "mnt")]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        while len(mounts_below(tmp_path / "mnt")) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said.endswith("ztune: interrupted\n")
    assert mounts_below(tmp_path / "mnt") == [] and not (tmp_path / "mnt").exists() and kept(home) == []


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("then", ["mount", "destroy"])
def test_a_first_mount_that_is_killed_is_not_in_the_way(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, where: str, then: str
) -> None:
    """``where``: it is killed before or after it makes the store."""
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    create = {"before": killed, "after": f"made(*words); {killed}"}[where]
    code = (
        "import os, signal; from ztune.places import mounting; from ztune.cli.main import main\n"
        "made = mounting.MountStore.create\n"
        f"def create(*words): {create}\n"
        "mounting.MountStore.create = create; main()"
    )
    place, store = tmp_path / "mnt", tmp_path / "store"
    store.mkdir(mode=0o700)
    command: list[str | Path] = [sys.executable, "-c", code, "mount", study, place, "--store", store]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    (row,) = json.loads(good("mount", "--list", "--json"))
    assert (row["directory"], row["state"], row["store"]) == (str(place), "unfinished", str(store))
    assert "--destroy deletes them" in bad(2, "umount", place)
    if then == "mount":  # of another layout too: there is nothing that one would lose
        good("mount", f"{study}:data.recordsize=8K", place, "--store", store)
        assert [row["state"] for row in json.loads(good("mount", "--list", "--json"))] == ["mounted"]
        good("umount", place)
        assert [row["state"] for row in json.loads(good("mount", "--list", "--json"))] == ["kept"]
    good("umount", "--destroy", place)
    assert kept(home) == [] and (not store.exists() or not list(store.iterdir()))


def test_a_store_that_can_not_be_had_is_left_alone(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    (store / "photos").write_text("irreplaceable")
    assert "is not empty" in bad(2, "mount", study, tmp_path / "mnt", "--store", store)
    assert kept(home) == [] and (store / "photos").exists()


def test_why_a_mount_failed_is_said_where_its_store_stays(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise Refused("a program has its lock")

    small, layout = layout_of(str(study), None, None, None)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZtuneError, match="version 99"):
        patch.setenv("STAND_IN", "refuse")
        patch.setattr(MountStore, "remove", refuse)
        mounting.mount(
            small, layout, str(tmp_path / "mnt"), MountOptions(disks="instant"), None,
            lambda _: contextlib.nullcontext(),
        )  # fmt: skip
    # What stays is known, and can be deleted.
    (row,) = json.loads(good("mount", "--list", "--json"))
    assert row["state"] == "kept"
    good("umount", "--destroy", tmp_path / "mnt")
    assert kept(home) == []


def test_what_the_arguments_must_be(home: Path, study: Path, tmp_path: Path) -> None:
    assert "what is to be mounted" in bad(2, "mount")
    assert "what is to be mounted" in bad(2, "mount", study)
    assert "--stats one" in bad(2, "mount", "--list", "x")
    assert "--stats one" in bad(2, "mount", "--stats", "x", "y")
    assert "whose counters" in bad(2, "mount", "--stats")
    assert "is no study and no workload" in bad(2, "mount", "mysql", tmp_path / "mnt")
    assert "one of them is enough" in bad(2, "mount", f"{study}:base", tmp_path / "mnt", "--layout", "base")
    assert 'has no layout "tiny"' in bad(2, "mount", f"{study}:tiny", tmp_path / "mnt")
    assert "is not a size" in bad(2, "mount", study, tmp_path / "mnt", "--arc", "much")
    assert not (tmp_path / "mnt").exists() and kept(home) == []


def test_how_a_layout_is_chosen(home: Path, study: Path) -> None:
    assert layout_of(str(study), None, None, None)[1].name == "base"
    assert layout_of(f"{study}:data.recordsize=8K", None, None, None)[1].name == "data.recordsize=8K"
    found = layout_of(str(study), "data.recordsize=8K", None, None)[1]
    assert layout_of(f"{study}:{found.hash[:6]}", None, None, None)[1] == found
    odd = study.with_name("odd:name")
    odd.write_text(STUDY)
    assert layout_of(f"{odd}:data.recordsize=8K", None, None, None)[1] == found
    found_study, layout = layout_of("postgres-oltp", None, "nvme", "1G")
    assert layout == found_study.layout and layout.arc == 1 << 30 and layout.profiles() == ("nvme",)
    assert layout_of("fio", None, None, None)[0].name == "generic"


def test_layouts_that_cannot_be_mounted(home: Path, tmp_path: Path, study: Path) -> None:
    def said(old: str, new: str) -> str:
        study.write_text(STUDY.replace(old, new))
        return bad(2, "mount", study, tmp_path / "mnt")

    assert "encrypts fast/db/wal" in said('atime = "on"', 'encryption = "on"')
    assert "as a volume with xfs" in said(
        'logbias = "throughput"\natime = "on"\ndnodesize = "auto"', 'volume = "1G"\nfilesystem = "xfs"'
    )
    text = STUDY.replace('name = "fast"', 'name = "fast"\nfilesystem = "ext4"')
    study.write_text(text.replace('logbias = "throughput"\natime = "on"\ndnodesize = "auto"', ""))
    assert "has ext4 in place of pool fast" in bad(2, "mount", study, tmp_path / "mnt")


@pytest.mark.parametrize(
    ("datasets", "directories"),
    [
        (["tank/data", "tank/wal"], ["data", "wal"]),
        (["tank/pg/data", "tank/pg/wal"], ["pg-data", "pg-wal"]),
        (["tank"], ["tank"]),
        (["tank/wal", "fast/wal", "tank/x"], ["tank-wal", "fast-wal", "x"]),
        (["tank", "fast/tank"], ["tank", "fast-tank"]),
        (["tank/a-b", "tank/a/b"], ["tank-a-b", "tank-a-b-2"]),
        (["a/x", "b/x", "c/a-x"], ["a-x", "b-x", "a-x-2"]),
    ],
)
def test_names_of_directories(datasets: list[str], directories: list[str]) -> None:
    found = mount_points.names(datasets)
    assert [found[name] for name in datasets] == directories
    assert len(set(found.values())) == len(datasets)


def test_what_a_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def means(root: bool) -> str:
        return (mount_program.lacking(device, root) or ("", ""))[0]

    device = tmp_path / "fuse"
    assert "shows no" in means(True)
    device.touch(0o600)
    assert means(True) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "takes fusermount3" in means(False) and means(True) == ""
    assert "fuse3" in (mount_program.lacking(device, False) or ("", ""))[1]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "this user may not open" in means(False)


def test_what_is_lacking_ends_the_command(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount_program, "lacking", lambda: ("the kernel shows no FUSE", "sudo modprobe fuse"))
    assert "no FUSE: `sudo modprobe fuse`" in bad(3, "mount", study, tmp_path / "mnt")
    assert not (tmp_path / "mnt").exists() and kept(home) == []


def test_what_the_doctor_says(
    stand_in_mount: Path, home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks.check_mount().state is State.OK
    pid = json.loads(good("mount", study, tmp_path / "mnt", "--json"))["pid"]
    assert "1 mounted now" in checks.check_mount().means
    os.kill(pid, signal.SIGKILL)
    wait_for_death(tmp_path / "mnt" / "db")
    found = checks.check_mount()
    assert found.state is State.LIMITED and found.fix == f"ztune umount {tmp_path / 'mnt'}"
    good("umount", "--destroy", tmp_path / "mnt")
    monkeypatch.setattr(mount_program, "others_may_enter", lambda: False)
    assert "user_allow_other" in checks.check_mount().fix
    monkeypatch.setattr(mount_program, "lacking", lambda: ("no FUSE", "sudo modprobe fuse"))
    found = checks.check_mount()
    assert found.state is State.MISSING and found.fix == "sudo modprobe fuse" and not found.needed
    monkeypatch.setenv("ZTUNE_MOUNT", str(tmp_path / "none"))
    found = checks.check_mount()
    assert found.state is State.MISSING and "ZTUNE_MOUNT" in found.means and found.fix == "make setup"


def test_whether_others_may_enter(tmp_path: Path) -> None:
    conf = tmp_path / "fuse.conf"
    assert mount_program.others_may_enter(conf, root=True)
    assert not mount_program.others_may_enter(conf, root=False)
    conf.write_text("# user_allow_other\nmount_max = 1000\n")
    assert not mount_program.others_may_enter(conf, root=False)
    conf.write_text("user_allow_other\n")
    assert mount_program.others_may_enter(conf, root=False)


def test_without_the_program(
    home: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_MOUNT", str(tmp_path / "none"))
    assert "ZTUNE_MOUNT names" in bad(3, "mount", study, tmp_path / "mnt")
    monkeypatch.setattr(native.NativeProgram, "built", lambda _: None)
    with pytest.raises(MissingError, match="is not built"):
        native.MOUNT.find()


def test_a_damaged_record(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    good("mount", study, place)
    good("umount", place)
    [folder] = kept(home)
    (folder / "record.json").write_text("{")
    assert "is damaged" in bad(2, "mount", study, place)
    assert "is damaged" in bad(2, "umount", "--destroy", place)
    done = ztune("mount", "--list")
    assert done.returncode == 0 and "is damaged" in done.stderr and "nothing kept" in done.stdout
    assert (folder / "store").exists()


def test_two_at_once(home: Path, tmp_path: Path) -> None:
    (home / "mounts").mkdir(parents=True)
    with mount_points.locked(tmp_path), pytest.raises(Exception, match="another ztune is mounting"):  # noqa: SIM117
        with mount_points.locked(tmp_path):
            pass
    assert kept(home) == []


def test_one_directory_of_a_layout(stand_in_mount: Path, home: Path, study: Path, tmp_path: Path) -> None:
    good("mount", study, tmp_path / "mnt")
    assert f"mounted at {tmp_path / 'mnt'}" in bad(2, "umount", tmp_path / "mnt" / "db")
    with pytest.raises(InputError):
        mount_points._read(Path(__file__))
    good("umount", "--destroy", tmp_path / "mnt")


def test_what_is_waited_for_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _waiting.waiting("making the pools"):
        pass
    assert capsys.readouterr().err == "", "a moment is not worth a word"
    monkeypatch.setattr(_waiting, "_MOMENT_S", 0.0)
    said = ""
    with _waiting.waiting("making the pools"):
        while not said:
            said = capsys.readouterr().err
            time.sleep(0.01)
    assert said == "making the pools\n"


def test_the_disks_caches_are_told(tmp_path: Path, study: Path) -> None:
    profile = tmp_path / "odd.toml"
    profile.write_text(profile_text("nvme") + "cache_mb = 7\n")
    found, layout = layout_of(str(study), None, str(profile), None)
    for told in (mount_spec(found, layout, 1), engine_spec(found, layout, 1)):
        assert {p.get("cache_mb") for p in told["profiles"].values()} == {7}


def profile_text(name: str) -> str:
    lines = (Path(profiles.__file__).parent / f"{name}.toml").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("cache_mb")).replace(name, "odd") + "\n"


def test_a_mapping_is_a_use(tmp_path: Path) -> None:
    code = """
import mmap, os, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0, trackfd=False) if sys.version_info >= (3, 13) else mmap.mmap(
        file.fileno(), 0)
# Python before 3.13 keeps a descriptor of its own.
for fd in range(3, 20):
    try:
        os.close(fd)
    except OSError:
        pass
print("ready", flush=True)
sys.stdin.read()
"""
    (tmp_path / "data").write_bytes(bytes(8192))
    arguments = [sys.executable, "-c", code, str(tmp_path / "data")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline() == b"ready\n"
        name = Path(f"/proc/{user.pid}/comm").read_text().strip()
        assert mounts.users(tmp_path) == [f"{name} ({user.pid})"]
        assert mounts.users(tmp_path, without={user.pid}) == []
        assert mounts.users(tmp_path.parent / (tmp_path.name + "x")) == []
        user.communicate()
