"""The process control of mounts, against a stand-in program with real FUSE mounts."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztune.errors import InputError, MissingError
from ztune.onhost.host import mounted
from ztune.onhost.host.mounted import Mount, MountError, MountOptions

SPEC = {"version": 1, "pools": [{"name": "main"}]}


def begin(program: Path, folder: Path, **more: object) -> Mount:
    places = {"main/db": folder / "db", "main/wal": folder / "wal"}
    return Mount.start(program, SPEC, folder / "store", places, **more)  # type: ignore[arg-type]


def points(folder: Path) -> list[str]:
    return sorted(m.source for m in mounted.all_ours() if folder in m.point.parents)


def test_a_whole_life(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    assert mount.alive() and mount.pid == mount.ready["pid"] and mount.ready["imported"] is False
    assert points(tmp_path) == ["ztune:main/db", "ztune:main/wal"]
    assert mount.places == {"main/db": tmp_path / "db", "main/wal": tmp_path / "wal"}
    assert mount.stats()["datasets"][0]["name"] == "main/db"
    mount.reset()
    mount.sync()
    mount.stop()
    assert not mount.alive() and points(tmp_path) == []
    mount.stop()  # twice does nothing
    again = begin(stand_in_mount, tmp_path)
    assert again.ready["imported"] is True and again.ready["replayed"] == 7
    again.stop()
    kept = json.loads((tmp_path / "store" / "spec.json").read_text())
    assert kept == {**SPEC, "files": [], "content": {}}


def test_power_cut_and_again(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    mount.kill()
    assert not mount.alive() and points(tmp_path) == []
    with pytest.raises(MountError, match="has died"):
        mount.stats()
    again = begin(stand_in_mount, tmp_path)
    again.stop()


def test_dead_mounts_are_told_and_cleared(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    os.kill(mount.pid, signal.SIGKILL)
    while mount.alive():
        time.sleep(0.01)
    assert mounted.dead(tmp_path / "db")
    with pytest.raises(OSError) as caught:
        os.statvfs(tmp_path / "db")
    assert caught.value.errno == errno.ENOTCONN
    again = begin(stand_in_mount, tmp_path)
    assert points(tmp_path) == ["ztune:main/db", "ztune:main/wal"], "the dead ones are gone"
    assert not mounted.dead(tmp_path / "db")
    # The first object must not take away what lies there now.
    mount.kill()
    mount.stop()
    assert points(tmp_path) == ["ztune:main/db", "ztune:main/wal"] and again.alive()
    again.stop()


def test_dead_mount_of_another_dataset_is_left(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = Mount.start(stand_in_mount, SPEC, tmp_path / "a", {"main/x": tmp_path / "db"})
    os.kill(mount.pid, signal.SIGKILL)
    while mount.alive():
        time.sleep(0.01)
    with pytest.raises(MountError, match=r"ztune:main/x \(fuse.ztune\) is dead"):
        begin(stand_in_mount, tmp_path)
    assert points(tmp_path) == ["ztune:main/x"]


def test_what_is_in_the_way_is_refused(stand_in_mount: Path, tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "precious").touch()
    with pytest.raises(MountError, match=r"wal: is not empty") as caught:
        begin(stand_in_mount, tmp_path)
    assert caught.value.exit_code == InputError.exit_code
    assert [p.name for p in tmp_path.iterdir()] == ["wal"], "what was made for it is gone again"
    (tmp_path / "wal" / "precious").unlink()
    subprocess.run(["mount", "-t", "tmpfs", "somebody", tmp_path / "wal"], check=True)
    try:
        with pytest.raises(MountError, match=r"somebody \(tmpfs\) is mounted there already"):
            begin(stand_in_mount, tmp_path)
        with pytest.raises(MountError, match="not ours"):
            mounted.detach(tmp_path / "wal")
    finally:
        subprocess.run(["umount", tmp_path / "wal"], check=True)
    (tmp_path / "file").touch()
    with pytest.raises(MountError, match="can't be used as a directory"):
        Mount.start(stand_in_mount, SPEC, tmp_path / "store", {"main/db": tmp_path / "file"})
    with pytest.raises(MountError, match="two datasets"):
        Mount.start(stand_in_mount, SPEC, tmp_path / "store", {"a": tmp_path / "db", "b": tmp_path / "db"})
    with pytest.raises(MountError, match='disks is "fast"; it is one of profile, instant'):
        begin(stand_in_mount, tmp_path, options=MountOptions(disks="fast"))


def test_a_store_in_use_is_refused(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    with pytest.raises(MountError, match=f"process {mount.pid} has it mounted"):
        Mount.start(stand_in_mount, SPEC, tmp_path / "store", {"main/db": tmp_path / "other"})
    with pytest.raises(MountError, match="mounted already"):
        Mount.start(stand_in_mount, SPEC, tmp_path / "store2", {"main/db": tmp_path / "db"})
    assert mount.alive()
    mount.stop()


@pytest.mark.parametrize(
    ("mode", "says", "code"),
    [
        ("refuse", r"^spec: version 99 is unknown\.$", InputError.exit_code),
        ("missing", r"^libzpool is another one", MissingError.exit_code),
        ("early", r"killed by SIGKILL: a word of warning", 1),
        ("garbage", r"first words are not that it is ready", 1),
        ("silent", r"did not get ready in 1 s", 1),
    ],
)
def test_a_program_that_does_not_start(
    stand_in_mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, says: str, code: int
) -> None:
    monkeypatch.setenv("STAND_IN", mode)
    with pytest.raises(MountError, match=says) as caught:
        begin(stand_in_mount, tmp_path, patience_s=1.0 if mode == "silent" else 60.0)
    assert caught.value.exit_code == code
    assert points(tmp_path) == [] and not (tmp_path / "db").exists()
    assert mounted.serving(tmp_path / "store") is None


def test_a_program_that_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="can't be run") as caught:
        begin(tmp_path / "none", tmp_path)
    assert caught.value.exit_code == MissingError.exit_code


def test_a_bad_end_is_told(stand_in_mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "slow")
    mount = begin(stand_in_mount, tmp_path)
    with pytest.raises(MountError, match=r"did not end in order: the pool can't be exported"):
        mount.stop()
    assert not mount.alive() and points(tmp_path) == []


def test_a_stopped_program_is_not_waited_for(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    os.kill(mount.pid, signal.SIGSTOP)
    assert mount.alive()
    assert not mounted.dead(tmp_path / "db", 0.2), "stopped is not dead"
    with pytest.raises(MountError, match="has not ended in 0 s"):
        mount.stop(0.2)
    mount.kill()
    assert points(tmp_path) == []


def test_no_answer_is_an_error(stand_in_mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "deaf")
    mount = begin(stand_in_mount, tmp_path)
    with pytest.raises(MountError, match="has not answered `stats` in full: a word of warning"):
        mount.stats()
    mount.stop()


def test_an_error_of_the_program_is_handed_on(stand_in_mount: Path, tmp_path: Path) -> None:
    mount = begin(stand_in_mount, tmp_path)
    with pytest.raises(MountError, match=r'"dance" is no command'):
        mounted.ask(mount.store, "dance")
    mount.stop()


START = """
import sys
from pathlib import Path
from ztune.onhost.host.mounted import Mount
folder = Path(sys.argv[2])
mount = Mount.start(
    Path(sys.argv[1]),
    {{"version": 1, "pools": [{{"name": "main"}}]}},
    folder / "store",
    {{"main/db": folder / "db"}}{more}
)
print(mount.pid, flush=True)
"""


def start_elsewhere(program: Path, folder: Path, more: str = "") -> int:
    done = subprocess.run(
        [sys.executable, "-c", START.format(more=more), program, folder],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not done.stderr
    return int(done.stdout)


def test_it_outlives_who_started_it(stand_in_mount: Path, tmp_path: Path) -> None:
    pid = start_elsewhere(stand_in_mount, tmp_path)
    assert mounted.serving(tmp_path / "store") == pid
    mount = Mount.attach(tmp_path / "store", {"main/db": tmp_path / "db"})
    assert mount.pid == pid and mount.alive() and mount.stats()["seconds"] == 1.5
    mount.stop()
    assert points(tmp_path) == []
    with pytest.raises(MountError, match="nothing has it mounted"):
        Mount.attach(tmp_path / "store", {"main/db": tmp_path / "db"})


def test_a_bad_end_of_an_attached_one(
    stand_in_mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_elsewhere(stand_in_mount, tmp_path)
    mount = Mount.attach(tmp_path / "store", {"main/db": tmp_path / "db"})
    os.kill(mount.pid, signal.SIGKILL)
    with pytest.raises(MountError, match="left its mounts behind"):
        mount.stop()
    assert points(tmp_path) == []


def test_it_dies_with_the_caller_if_asked(stand_in_mount: Path, tmp_path: Path) -> None:
    start_elsewhere(stand_in_mount, tmp_path, ", die_with_caller=True")
    while mounted.serving(tmp_path / "store") is not None:
        time.sleep(0.01)
    while not mounted.dead(tmp_path / "db"):
        time.sleep(0.01)
    begin(stand_in_mount, tmp_path).stop()


def test_long_paths_of_sockets(stand_in_mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "s"
    mount = Mount.start(stand_in_mount, SPEC, short, {"main/db": tmp_path / "db"})
    deep = tmp_path / ("d" * 120)
    deep.symlink_to(tmp_path)
    assert mounted.serving(deep / "s") == mount.pid
    mount.stop()
