"""Programs built in the cache: found without a look at every source, built once, removed when unused."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ztune import native, paths
from ztune.onhost.host import shared_files

PROGRAM = native.NativeProgram("ztune-tried", "tried", "ZTUNE_TRIED", "a tried one", uses_openzfs=True)
# Takes a moment, as a compiler does, and says that it ran.
MAKEFILE = """\
build/ztune-tried all:
\t@mkdir -p build; echo built >> {log}; sleep 0.5; echo '#!/bin/sh' > build/ztune-tried
\t@chmod +x build/ztune-tried
"""
DAY = 86400.0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed package with the sources of one program; the file gets a line for each build."""
    log = tmp_path / "log"
    (tmp_path / "sources" / "tried").mkdir(parents=True)
    (tmp_path / "sources" / "tried" / "Makefile").write_text(MAKEFILE.format(log=log))
    monkeypatch.setattr(native, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(native, "ALL", (PROGRAM,))
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    native._digest.cache_clear()
    return log


def test_its_version_is_asked_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def version() -> str:
        asked.append(1)
        return "2.3"

    monkeypatch.setattr(native, "openzfs_here", version)
    path = PROGRAM.find()
    assert PROGRAM.built() == PROGRAM.find() == path
    assert len(asked) == 1
    native.find_all()  # after the set-up, which may have brought another OpenZFS
    assert len(asked) == 2


def test_two_at_a_time_build_it_once(log: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(PROGRAM.find())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and found[0] == found[1]
    assert log.read_text() == "built\n"


UNUSED, USED, BUSY = ("0123456789abcdef", "1" * 16, "2" * 16)


def build_of(name: str, days: float) -> Path:
    """A build in the cache that was used so long ago."""
    folder = paths.below(paths.cache(), "programs") / name
    (folder / "tried" / "build").mkdir(parents=True)
    (folder / ".lock").touch()
    os.utime(folder, (0, time.time() - days * DAY))
    return folder


def test_a_build_removes_those_that_nobody_used(log: Path) -> None:
    build_of(UNUSED, 31)
    build_of(USED, 29)
    with shared_files.locked(build_of(BUSY, 31) / ".lock"):
        path = PROGRAM.find()
    assert {p.name for p in path.parents[3].iterdir()} == {USED, BUSY, path.parents[2].name}


def test_what_is_no_build_of_ours_is_left(log: Path, tmp_path: Path) -> None:
    """Folders of other names, with other things in them, without a lock; links to folders; files."""
    notes = build_of(UNUSED, 0)
    (notes / "notes.txt").write_text("mine")
    bare = build_of(USED, 0)
    (bare / ".lock").unlink()
    left = {notes, bare, build_of("backup", 0), build_of("0123456789ABCDEF", 0), build_of("1" * 17, 0)}
    programs = notes.parent
    elsewhere = build_of(BUSY, 0).rename(tmp_path / "elsewhere")
    (programs / BUSY).symlink_to(elsewhere)
    (programs / ("3" * 16)).write_text("a file")
    for path in (*left, elsewhere, programs / ("3" * 16)):
        os.utime(path, (0, time.time() - 400 * DAY))
    held = {path: sorted(path.rglob("*")) for path in (*left, elsewhere)}
    path = PROGRAM.find()
    assert set(programs.iterdir()) == left | {programs / BUSY, programs / ("3" * 16), path.parents[2]}
    assert {path: sorted(path.rglob("*")) for path in held} == held


def test_what_is_found_counts_as_used(log: Path) -> None:
    top = PROGRAM.find().parents[2]
    os.utime(top, (0, time.time() - 31 * DAY))
    PROGRAM.find()
    assert time.time() - top.stat().st_mtime < DAY
