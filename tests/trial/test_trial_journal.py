from __future__ import annotations

import json
from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.trial.journal import Journal


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
