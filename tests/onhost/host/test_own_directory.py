"""What counts as a directory of ours, and that nothing leads out of it, whatever is swapped meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ztune.onhost.host import own_directory
from ztune.onhost.host.own_directory import NotOursError, OwnDirectory

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    path = tmp_path / "top"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.mkdir()
    (path / "photos").write_text("irreplaceable")
    return path


def refused(path: Path, says: str) -> None:
    with pytest.raises(NotOursError, match=says) as caught:
        OwnDirectory.open(path)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_made_whatever_the_umask(top: Path) -> None:
    before = os.umask(0o077)
    try:
        with OwnDirectory.open(top / "a/b", make=0o711) as made:
            assert made.path == top / "a/b"
        os.umask(0)
        OwnDirectory.open(top / "c", make=0o700).close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((top / name).stat().st_mode) for name in ("a", "a/b", "c")]
    assert modes == [0o711, 0o711, 0o700]
    with pytest.raises(FileNotFoundError):
        OwnDirectory.open(top / "d")
    with OwnDirectory.open(top) as found, pytest.raises(FileExistsError):
        found.below("a", make=0o700, new=True)


@as_root
@pytest.mark.parametrize("level", ["top", "top/a", "top/a/b"])
def test_a_level_of_another_user_is_refused(tmp_path: Path, top: Path, level: str) -> None:
    (top / "a/b").mkdir(parents=True)
    os.chown(tmp_path / level, NOBODY, NOBODY)
    refused(top / "a/b", rf"{tmp_path / level}.* belongs to user {NOBODY} \(nobody\), who can change what")
    with pytest.raises(NotOursError):
        own_directory.real(top / "a/b/not yet")


@pytest.mark.parametrize("level", ["top", "top/a", "top/a/b"])
@pytest.mark.parametrize("mode", [0o722, 0o702])
def test_a_level_that_others_may_write_is_refused(tmp_path: Path, top: Path, level: str, mode: int) -> None:
    (top / "a/b").mkdir(parents=True)
    (tmp_path / level).chmod(mode)
    refused(top / "a/b", rf"{tmp_path / level}.* can be written by .*chmod go-w")


def test_a_sticky_directory_holds_ours_and_is_none(top: Path) -> None:
    shared = top / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    OwnDirectory.open(shared / "ours", make=0o700).close()
    own_directory.check(shared)
    refused(shared, "can be written by every user")
    if os.geteuid() == 0:
        (shared / "theirs").mkdir()
        os.chown(shared / "theirs", NOBODY, NOBODY)
        refused(shared / "theirs", f"belongs to user {NOBODY}")
        (shared / "link").symlink_to(shared / "ours")
        os.chown(shared / "link", NOBODY, NOBODY, follow_symlinks=False)
        for path in (shared / "link", shared / "link/below"):
            with pytest.raises(NotOursError, match="symbolic link"):
                own_directory.real(path)


def test_links_are_followed_only_where_that_was_asked_for(top: Path) -> None:
    (top / "a/b").mkdir(parents=True)
    (top / "link").symlink_to("a/../a")
    (top / "whole").symlink_to(top / "link")
    refused(top / "link", f"{top}/link is a symbolic link")
    refused(top / "whole/b", "on the way to .*, is a symbolic link")
    assert own_directory.real(top / "whole/b") == top / "a/b"
    assert own_directory.real(top / "whole/b/new/er") == top / "a/b/new/er"
    (top / "loop").symlink_to("loop")
    with pytest.raises(NotOursError, match="symbolic link"):
        own_directory.real(top / "loop")


@as_root
def test_an_acl_that_lets_another_user_write_is_seen(top: Path) -> None:
    def acl(named: int) -> bytes:
        entries = [(1, 7, -1), (2, named, NOBODY), (4, 0, -1), (0x10, 7, -1), (0x20, 0, -1)]
        return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)

    try:
        os.setxattr(top, "system.posix_acl_access", acl(7))
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")
    refused(top, "can be written by .*ACL")


@as_root
def test_a_file_has_to_be_ours_too(top: Path, precious: Path) -> None:
    def says(prepare: Callable[[Path], Any], sentence: str) -> None:
        path = top / "file"
        prepare(path)
        with OwnDirectory.open(top) as found, pytest.raises(NotOursError, match=sentence):
            found.open_file("file", os.O_RDWR)
        path.unlink()

    def written(mode: int = 0o600, owner: int = 0) -> Callable[[Path], None]:
        def prepare(path: Path) -> None:
            path.write_text("x")
            path.chmod(mode)
            os.chown(path, owner, owner)

        return prepare

    says(written(owner=NOBODY), f"belongs to user {NOBODY}")
    says(written(0o620), "can be written by others")
    says(lambda path: path.symlink_to(precious / "photos"), "symbolic link")
    says(lambda path: os.link(precious / "photos", path), "has 2 names")
    says(os.mkfifo, "not a regular file")  # and waits for nobody
    with socket.socket(socket.AF_UNIX) as server:
        says(lambda path: server.bind(str(path)), "not a regular file")


def fill(path: Path, precious: Path) -> None:
    (path / "a/b").mkdir(parents=True)
    for name in ("marker", "file", "a/file", "a/b/file"):
        (path / name).write_text("x")
    (path / "a/b/link").symlink_to(precious)
    (path / "link").symlink_to(precious / "photos")
    os.mkfifo(path / "fifo")


def test_a_directory_is_removed_and_links_in_it_lead_nowhere(top: Path, precious: Path) -> None:
    fill(top, precious)
    with pytest.raises(NotOursError, match="another directory than the one that was made"):
        own_directory.remove(top, inode=(1, 1))
    assert (top / "a/b/file").exists()
    own_directory.remove(top, "marker", inode=(top.stat().st_dev, top.stat().st_ino))
    assert not top.exists() and (precious / "photos").read_text() == "irreplaceable"
    own_directory.remove(top)
    own_directory.remove(top / "below")


def test_a_removal_that_is_cut_leaves_the_last(
    top: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(top, precious)
    real = os.unlink

    def failing(name: str, *, dir_fd: int | None = None) -> None:
        if name == "file":
            raise OSError(5, "Input/output error", name)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(OSError, match="Input/output"):
        own_directory.remove(top, "marker")
    assert (top / "marker").exists()


@pytest.mark.parametrize("which", ["top", "top/a", "top/a/b"])
@pytest.mark.parametrize("call", ["scandir", "stat", "open"])
def test_a_directory_swapped_for_a_link_between_look_and_act(
    tmp_path: Path, top: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, which: str, call: str
) -> None:
    """At every call of one kind, in turn: the directory is moved away, and a link is in its place."""
    (precious / "b").mkdir()
    (precious / "b/file").write_text("irreplaceable")
    number = 0
    while True:
        fill(top, precious)
        seen, real = 0, getattr(os, call)

        def swapping(*given: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number:  # noqa: B023
                with contextlib.suppress(FileNotFoundError):  # removed already
                    path = tmp_path / which
                    path.rename(tmp_path / "moved")
                    path.symlink_to(precious)
            return real(*given, **more)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(os, call, swapping)
            with contextlib.suppress(NotOursError, OSError):
                own_directory.remove(top, "marker")
        found = sorted(str(p.relative_to(precious)) for p in precious.rglob("*"))
        assert found == ["b", "b/file", "photos"], f"call {number} of {call}"
        for left in (tmp_path / "moved", top):
            if left.is_symlink():
                left.unlink()
            shutil.rmtree(left, ignore_errors=True)
        if number > seen:
            break
        top.mkdir(mode=0o700)
        number += 1
    assert number > 3


@as_root
@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_what_is_mounted_below_is_not_touched(top: Path, precious: Path, kind: str) -> None:
    fill(top, precious)
    point = top / "a/b"
    # A bind mount has the same device number as what it lies on.
    mount: list[str | Path] = (
        ["mount", "--bind", precious, point]
        if kind == "bind"
        else [*["mount", "-t", "tmpfs", "-o", "mode=755", "x"], point]
    )
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (point / "mine").write_text("irreplaceable")
        with pytest.raises(NotOursError, match="a/b is a mount point"):
            own_directory.remove(top, "marker")
        with pytest.raises(NotOursError, match="a/b is a mount point"):
            own_directory.remove(point)
        assert (point / "mine").read_text() == "irreplaceable" and (top / "marker").exists()
    finally:
        subprocess.run(["umount", point], check=True)
    own_directory.remove(top, "marker")


@as_root
@pytest.mark.parametrize(("user", "ours"), [("0", True), ("65534", False)])
def test_what_another_user_has_mounted_is_theirs(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, ours: bool
) -> None:
    """A FUSE file system says of its files what its user likes: that they are root's."""
    point = top / "a"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "x", point], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (point / "b").mkdir(mode=0o700)
        # The kernel's own line, but of a FUSE mount.
        lines = [line for line in own_directory.MOUNTS.read_text().splitlines() if f" {point} " in line]
        (tmp_path / "table").write_text(
            f"{lines[0].partition(' - ')[0]} - fuse.sshfs x rw,user_id={user},group_id=0,allow_other\n"
        )
        monkeypatch.setattr(own_directory, "MOUNTS", tmp_path / "table")
        if ours:
            OwnDirectory.open(point / "b").close()
        else:
            refused(point / "b", f"{point}, on the way .* file system that user 65534 .* has mounted")
            refused(point, "has mounted")
    finally:
        subprocess.run(["umount", point], check=True)


def test_directories_nested_without_end_are_a_sentence(top: Path) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        with pytest.raises(NotOursError, match="are nested deeper") as caught:
            own_directory.remove(top)
        assert len(str(caught.value)) < 2000
    finally:
        subprocess.run(["rm", "-rf", top], check=True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_name_is_one_level(top: Path, name: str) -> None:
    with OwnDirectory.open(top) as found, pytest.raises(NotOursError, match="no name of a directory"):
        found.below(name)


def test_a_path_is_absolute(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top.parent)
    refused(Path("top"), "no absolute path")
    refused(top / ".." / "top", "no absolute path")


@as_root
@pytest.mark.parametrize(
    ("members", "name", "ours"), [("", "user", True), ("somebody", "user", False), ("", "users", False)]
)
def test_a_group_of_ones_own_may_write(
    top: Path, members: str, name: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As users are given one on many systems, with a umask that lets it write: a directory, and a file."""
    import grp
    import pwd

    uid = 4242
    user = pwd.struct_passwd(("user", "x", uid, uid, "", "/", "/bin/sh"))
    group = grp.struct_group((name, "x", uid, [m for m in members.split() if m]))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: user)
    monkeypatch.setattr(pwd, "getpwall", lambda: [user])
    monkeypatch.setattr(grp, "getgrgid", lambda _gid: group)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getegid", lambda: uid)
    os.chown(top, uid, uid)
    top.chmod(0o775)
    file = top / "file"
    file.touch()
    os.chown(file, uid, uid)
    file.chmod(0o664)
    with file.open() as opened:
        assert own_directory.only_ours(opened.fileno()) is ours
    if ours:
        OwnDirectory.open(top).close()
    else:
        refused(top, "can be written by group 4242")
