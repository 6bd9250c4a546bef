"""A trial's measure begins with intent logs that are there, as those of a database in use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ztune.onhost.trial import lifecycle


def test_a_file_is_synced_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    lifecycle._begin_log(tmp_path)
    # It has a name: OpenZFS logs nothing of a file without.
    assert [file.parent for file in synced] == [tmp_path] and "deleted" not in synced[0].name
    assert list(tmp_path.iterdir()) == []


def test_where_none_can_be_made_the_job_goes_on(tmp_path: Path) -> None:
    lifecycle._begin_log(tmp_path / "gone")
