"""The one door through which a mount's store is deleted, and those who try to get other things through it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from ztune.errors import InputError, Refused
from ztune.onhost.host.mounted import Mount
from ztune.onhost.trial.mount_store import MARKER, MountStore


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.mkdir()
    (path / "photos").write_text("irreplaceable")
    return path


@pytest.fixture
def store(tmp_path: Path) -> MountStore:
    made = MountStore.create(tmp_path / "store")
    for name in ("disk-main-0.img", "disk-a b:c-data-0-1.img", "pool-a b:c.config", "spec.json", "lock"):
        (made.disks / name).write_text("x")
    made.log.write_text("said")
    with socket.socket(socket.AF_UNIX) as server:  # a socket that nobody listens on any more
        server.bind(str(made.disks / "control"))
    return made


def everything(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


def refused(store: MountStore, says: str) -> None:
    before = everything(store.path.parent)
    with pytest.raises(Refused, match=says):
        store.remove()
    assert everything(store.path.parent) == before, "nothing was deleted"


def test_made_and_removed(store: MountStore, tmp_path: Path) -> None:
    assert store.path.stat().st_mode & 0o777 == 0o700
    store.check()
    assert store.allocated() > 0
    store.remove()
    assert not store.path.exists() and list(tmp_path.iterdir()) == []
    store.remove()


def test_a_directory_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    store = MountStore.create(tmp_path / "own")
    store.remove()
    assert list(tmp_path.iterdir()) == [tmp_path / "own"] and not list((tmp_path / "own").iterdir())


def test_only_an_empty_directory_becomes_one(precious: Path) -> None:
    with pytest.raises(InputError, match="is not empty"):
        MountStore.create(precious)
    with pytest.raises(InputError, match="can't become a store"):
        MountStore.create(precious / "photos" / "below")
    assert everything(precious) == {"photos"}


@pytest.mark.parametrize(
    "where", ["photos", "disks/photos", "disks/disk-main-0.img.bak", "disks/.img", "disks/pool-.config"]
)
def test_refuses_what_a_store_does_not_hold(store: MountStore, where: str) -> None:
    (store.path / where).write_text("irreplaceable")
    refused(store, "is no file of a store's")


@pytest.mark.parametrize("name", ["disk-main-9.img", "spec.json", "photos", "control"])
def test_refuses_links_inside(store: MountStore, precious: Path, name: str) -> None:
    (store.disks / name).unlink(missing_ok=True)
    (store.disks / name).symlink_to(precious / "photos")
    refused(store, "is no file of a store's|its lock can't be opened|can't be asked")
    assert (precious / "photos").read_text() == "irreplaceable"


def test_refuses_a_hard_link_inside(store: MountStore, precious: Path) -> None:
    os.link(precious / "photos", store.disks / "disk-main-9.img")
    refused(store, "is no file of a store's")


def test_refuses_a_lock_that_is_a_link(store: MountStore, precious: Path) -> None:
    (store.disks / "lock").unlink()
    (store.disks / "lock").symlink_to(precious / "photos")
    refused(store, "its lock can't be opened")


@pytest.mark.parametrize("name", ["disk-main-9.img", "lock.d", ""])
def test_refuses_directories_inside(store: MountStore, name: str) -> None:
    place = store.disks / name if name else store.path / "disk-x.img"
    place.mkdir()
    (place / "photos").write_text("irreplaceable")
    refused(store, "is no file of a store's")


def test_refuses_a_folder_that_is_a_link(store: MountStore, precious: Path) -> None:
    shutil.rmtree(store.disks)
    store.disks.symlink_to(precious)
    refused(store, "disks in it is no file of a store's")


def test_refuses_a_link_in_its_place(store: MountStore, precious: Path) -> None:
    store.path.rename(store.path.with_name("moved"))
    store.path.symlink_to(store.path.with_name("moved"))
    refused(store, "symbolic link")


def test_refuses_a_link_on_the_way(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    store = MountStore.create(parent / "store")
    parent.rename(tmp_path / "moved")
    parent.symlink_to(tmp_path / "moved")
    refused(store, "on the way")
    assert (tmp_path / "moved" / "store" / MARKER).exists()


def test_refuses_a_file_in_its_place(store: MountStore) -> None:
    shutil.rmtree(store.path)
    store.path.write_text("irreplaceable")
    refused(store, "not a directory")


def test_refuses_without_marker(store: MountStore) -> None:
    (store.path / MARKER).unlink()
    refused(store, "no marker")


def test_refuses_the_marker_of_another_store(store: MountStore, tmp_path: Path) -> None:
    other = MountStore.create(tmp_path / "other")
    shutil.copy(other.path / MARKER, store.path / MARKER)
    refused(store, "that of another store")
    refused(MountStore(store.path, ""), "that of another store")
    refused(MountStore(store.path, other.token), "another directory than the one that we made")


def test_refuses_a_copy(store: MountStore, tmp_path: Path) -> None:
    shutil.copytree(store.path, tmp_path / "copy", ignore=shutil.ignore_patterns("control"))
    refused(MountStore(tmp_path / "copy", store.token), "another directory")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', "null"])
def test_refuses_a_spoilt_marker(store: MountStore, text: str) -> None:
    (store.path / MARKER).write_text(text)
    refused(store, "not one of ours|another store")


def test_refuses_a_marker_that_is_a_link(store: MountStore, tmp_path: Path) -> None:
    (store.path / MARKER).rename(tmp_path / "marker")
    (store.path / MARKER).symlink_to(tmp_path / "marker")
    refused(store, "can't be trusted: .* is a symbolic link")


def test_refuses_a_relative_path(store: MountStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="no absolute path"):
        MountStore(Path("store"), store.token).remove()
    assert store.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_refuses_what_belongs_to_others(store: MountStore) -> None:
    os.chown(store.path, 65534, 65534)
    refused(store, "belongs to user 65534")


@pytest.mark.parametrize("take", ["flock", "lockf"])
def test_refuses_a_store_whose_lock_is_held(store: MountStore, take: str) -> None:
    code = f"""
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.{take}(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen(
        ["python3", "-c", code, store.disks / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        refused(store, "a program has its lock")
    finally:
        holder.communicate()
    store.remove()
    assert not store.path.exists()


def test_refuses_a_store_that_is_served(store: MountStore) -> None:
    (store.disks / "control").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(store.disks / "control"))
        server.listen()
        refused(store, f"process {os.getpid()} has it mounted")
    store.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("where", ["", "disks"])
def test_refuses_mount_points(store: MountStore, precious: Path, where: str) -> None:
    place = store.path / where
    subprocess.run(["mount", "--bind", precious, place], check=True)
    try:
        refused(store, "is a mount point|no marker")
    finally:
        subprocess.run(["umount", place], check=True)
    assert (precious / "photos").exists()
    store.remove()


def test_refuses_while_mounted(stand_in_mount: Path, tmp_path: Path) -> None:
    store = MountStore.create(tmp_path / "store")
    spec = {"pools": [{"name": "main"}]}
    mount = Mount.start(stand_in_mount, spec, store.disks, {"main/db": tmp_path / "db"})
    with pytest.raises(Refused, match=f"process {mount.pid} has it mounted"):
        store.remove()
    mount.stop()
    assert json.loads((store.disks / "spec.json").read_text())["pools"] == spec["pools"]
    store.remove()
    assert not store.path.exists()


def test_a_removal_that_was_cut_is_taken_up(store: MountStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink
    calls: list[str] = []

    def failing(name: str, *, dir_fd: int | None = None) -> None:
        calls.append(name)
        if len(calls) == 3:
            raise OSError(5, "Input/output error", name)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(Refused, match="not removed entirely: Input/output error"):
        store.remove()
    monkeypatch.setattr(os, "unlink", real)
    assert (store.path / MARKER).exists()
    store.remove()
    assert not store.path.exists()


def test_a_file_that_comes_meanwhile_stays(store: MountStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink

    def slow(name: str, *, dir_fd: int | None = None) -> None:
        (store.disks / "photos").write_text("irreplaceable")
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", slow)
    with pytest.raises(Refused, match="not removed entirely"):
        store.remove()
    assert (store.disks / "photos").read_text() == "irreplaceable" and (store.path / MARKER).exists()
