from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.trial.journal import Journal, Thing
from ztune.onhost.trial.lifecycle import teardown


def begin(path: Path) -> Journal:
    return Journal.create(path, run="r-1", trial="r-1-1", token="ztune:x", about={"job": "writer"})


def test_what_is_left_is_what_was_made_and_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = begin(path)
    journal.make("disk:a", "disk", path="/dev/a")
    journal.made("disk:a")
    journal.make("pool:main", "pool", name="zt1-main")
    journal.made("pool:main", guid="7")
    journal.make("mount:x", "mount", point="/x")
    journal.append("removed", id="mount:x")
    journal.close()
    again = Journal.open(path)
    assert (again.run, again.trial, again.token) == ("r-1", "r-1-1", "ztune:x")
    assert list(again.things) == ["disk:a", "pool:main"]
    assert again.things["pool:main"].facts == {"name": "zt1-main", "guid": "7"}
    assert again.things["pool:main"].made
    again.append("removed", id="pool:main")
    again.close()
    assert list(Journal.open(path).things) == ["disk:a"]


def test_at_every_byte_where_it_may_be_cut_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = begin(path)
    journal.make("disk:a", "disk", path="/dev/ä")
    journal.made("disk:a")
    journal.close()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    seen = set()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found = Journal.open(path)
        complete = whole[:length].count(b"\n")
        assert found.empty == (complete == 0)
        assert list(found.things) == (["disk:a"] if complete >= 2 else [])
        found.append("note", id="disk:a", facts={"mark": 1})
        found.close()
        # What is written after the cut is whole, and nothing of the torn line is left.
        for line in path.read_bytes().splitlines():
            json.loads(line)
        seen.add(complete)
    assert seen == set(range(len(lines) + 1))


def test_damage_before_the_last_line_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    begin(path).close()
    with path.open("ab") as file:
        file.write(b"#!garbage\n" + b'{"n":3,"do":"note"}\n')
    with pytest.raises(ZtuneError, match="line 2 of the journal is damaged; nothing was removed"):
        Journal.open(path)


def test_another_program_s_file_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"do":"open","format":"other","version":1}\n')
    with pytest.raises(ZtuneError, match="not a journal of this version"):
        Journal.open(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ZtuneError, match="can't be read"):
        Journal.open(link)


def test_a_journal_is_never_begun_twice(tmp_path: Path) -> None:
    begin(tmp_path / "j").close()
    with pytest.raises(ZtuneError, match="can't be made"):
        begin(tmp_path / "j")


class FullDisk:
    """Lets so many bytes be written, as a full disk does: the last write that fits is short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 20
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        fits = bytes(data[: self.free])
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.free -= len(fits)
        return self._write(fd, fits)


def test_a_line_that_a_full_disk_cuts_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every number of bytes that still fit: later lines are whole, and none is glued to a half one."""
    whole = len(b'{"n":3,"t":1234567890.123,"do":"make","id":"b","kind":"pool","facts":{},"boot":""}')
    for fits in range(whole):
        path = tmp_path / f"{fits}.jsonl"
        journal = Journal.create(path, run="r", trial="t", token="k", about={})
        journal.make("a", "pool")
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            disk = FullDisk(patch)
            disk.free = fits
            with pytest.raises(ZtuneError, match="the journal can't be written: No space left on device"):
                journal.make("b", "pool")
        assert path.read_bytes() == before and list(journal.things) == ["a"]
        journal.made("a", guid="1")
        journal.close()
        again = Journal.open(path)
        assert list(again.things) == ["a"] and again.things["a"].made
        again.close()


def test_a_cut_line_that_stayed_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even the cut line could not be taken back, the next that is written takes its place."""
    path = tmp_path / "journal.jsonl"
    journal = Journal.create(path, run="r", trial="t", token="k", about={})

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        FullDisk(patch).free = 10
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(ZtuneError):
            journal.make("a", "pool")
    assert not path.read_bytes().endswith(b"\n")
    reader = Journal.open(path)  # as it is while another process writes: nothing is changed by looking
    assert reader.things == {} and not path.read_bytes().endswith(b"\n")
    reader.make("c", "pool")
    reader.close()
    again = Journal.open(path)
    assert list(again.things) == ["c"]
    again.close()


def test_removals_go_on_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal.create(path, run="r", trial="t", token="k", about={})
    for name in "abc":
        journal.make(name, "pool")
        journal.made(name)
    with monkeypatch.context() as patch:
        FullDisk(patch).free = 20
        journal.try_append("remove", id="c")
        journal.try_append("removed", id="c")
        assert list(journal.things) == ["a", "b"]
    # The removal made room.
    journal.try_append("removed", id="b")
    journal.close()
    again = Journal.open(path)
    assert list(again.things) == ["a", "c"], "what was not written is removed once more, which does no harm"
    again.close()


def test_one_that_cannot_be_begun_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch).free = 30
        with pytest.raises(ZtuneError, match="the journal can't be written: No space left on device"):
            begin(tmp_path / "journal.jsonl")
    assert list(tmp_path.iterdir()) == []


class Remover:
    """A door that notes what goes through it."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def remove(self, thing: Thing) -> None:
        self.gone.append(thing.id)

    def remove_directory(self) -> None:
        self.gone.append("directory")


def test_everything_is_removed_although_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.create(tmp_path / "journal.jsonl", run="r", trial="t", token="k", about={})
    for name in "abc":
        journal.make(name, "pool")
    door: Any = Remover()
    with monkeypatch.context() as patch:
        FullDisk(patch).free = 0
        assert teardown(journal, door, lambda share, text: None) == []
    assert door.gone == ["c", "b", "a", "directory"]
    journal.close()
