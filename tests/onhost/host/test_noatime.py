"""Files that another user has named are opened only where they are files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ztune.onhost.host import noatime


def test_a_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert noatime.part(tmp_path / "file", 2, 3) == b"234"
    assert noatime.part(tmp_path / "file", 8, 30) == b"89"
    assert noatime.part(tmp_path / "none", 0, 3) == b""


def test_what_has_become_something_else_is_not_opened(tmp_path: Path) -> None:
    # To open a device may do something: a watchdog begins to count.
    (tmp_path / "folder").symlink_to("/dev")
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "folder" / "zero", tmp_path / "link", tmp_path / "pipe"):
        assert noatime.part(path, 0, 3) == b""
        with pytest.raises(OSError, match="no regular file"):
            noatime.open_regular(path, os.O_NOFOLLOW)
