"""Copies of sparse files: the same bytes, the same holes, and nothing replaced."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from ztune.onhost.host import sparse


@pytest.mark.parametrize("clones", [True, False])
def test_a_copy_has_the_bytes_and_the_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clones: bool
) -> None:
    if not clones:

        def refuse(*_: object) -> int:
            raise OSError

        monkeypatch.setattr(fcntl, "ioctl", refuse)
    source, target = tmp_path / "a", tmp_path / "b"
    with source.open("wb") as file:
        file.seek(1 << 30)
        file.write(b"x" * 10_000)
        file.truncate(1 << 40)
    sparse.copy(source, target)
    found = target.stat()
    assert found.st_size == 1 << 40 and found.st_blocks * 512 < 1 << 20
    with target.open("rb") as copied:
        copied.seek((1 << 30) - 10)
        assert copied.read(10_020) == bytes(10) + b"x" * 10_000 + bytes(10)
    empty = tmp_path / "empty"
    empty.touch()
    sparse.copy(empty, tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b""


def test_a_copy_goes_to_a_file_system_of_another_kind(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    source = tmp_path / "a"
    with source.open("wb") as file:
        file.seek(1 << 20)
        file.write(b"x" * 10_000)
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for target in (Path(folder) / "there", tmp_path / "back"):
            sparse.copy(source, target)
            assert target.read_bytes() == bytes(1 << 20) + b"x" * 10_000
            assert target.stat().st_blocks * 512 < 1 << 20
            source = target


def test_nothing_is_replaced_and_no_link_followed(tmp_path: Path) -> None:
    source, target, link = tmp_path / "a", tmp_path / "b", tmp_path / "link"
    source.write_text("new")
    target.write_text("old")
    with pytest.raises(FileExistsError):
        sparse.copy(source, target)
    assert target.read_text() == "old"
    link.symlink_to(source)
    with pytest.raises(OSError, match=os.strerror(40)):
        sparse.copy(link, tmp_path / "c")
