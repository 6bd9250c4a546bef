"""Files that nothing touched are in a trace: they take space."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ztune.cli.record import command
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Trace
from ztune.trace.record import Recording, record
from ztune.trace.roles import RoleRules
from ztune.trace.untouched import UntouchedFiles, find_untouched, with_more

RULES = ["**/*.tab=data", "**/*.log=wal"]
READS = "f = open('a/used.tab', 'r+b', 0); f.read(4096); f.close()"


@pytest.fixture
def database(work: Path) -> Path:
    """A folder with files that have a role, and others."""
    for name in ("a/used.tab", "a/idle.tab", "a/idle.log", "a/notes", "a/below/deep.tab", "b/other.tab"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(b"x" * (100_000 + len(name)))
    (work / "a/empty.tab").touch()
    (work / "a/link.tab").symlink_to(work / "b/other.tab")
    return work


def recorded(database: Path, recorder: str, *, code: str = READS, below: str | None = None) -> Trace:
    """Record a program that uses files of the database; ``below``: no others than those of this folder."""
    return record(
        Recording(
            database.parent / "t.trace",
            command=["python3", "-I", "-c", f"import os; os.chdir({str(database)!r}); {code}"],
            recorder=recorder,
            rules=RoleRules.parse(RULES, builtin=False),
            paths=[] if below is None else [database / below],
        )
    )


def names(trace: Trace, database: Path) -> dict[str, TraceFile]:
    return {os.path.relpath(f.path, database): f for f in trace.manifest.files if f.role is not None}


def test_beside_what_was_used(database: Path, recorder: str) -> None:
    trace = recorded(database, recorder)
    found = names(trace, database)
    assert found.keys() == {"a/used.tab", "a/idle.tab", "a/idle.log"}
    idle = found["a/idle.tab"]
    assert (idle.size_start, idle.size_end, idle.role) == (100_010, 100_010, "data")
    events = trace.columns("file")["file"]
    assert idle.id not in events and found["a/used.tab"].id in events
    # How they compress is measured, whether something touched them or not.
    assert {c.role for c in trace.manifest.compressibility if not c.touched} == {"data", "wal"}


def test_anywhere_below_the_paths_asked_for(database: Path, recorder: str) -> None:
    trace = recorded(database, recorder, below="a")
    assert names(trace, database).keys() == {"a/used.tab", "a/idle.tab", "a/idle.log", "a/below/deep.tab"}
    assert "nothing" not in {w.code for w in trace.manifest.warnings}


def test_nothing_was_used_among_files_that_are_there(database: Path, recorder: str) -> None:
    trace = recorded(database, recorder, below="b")
    assert names(trace, database).keys() == {"b/other.tab"}
    assert "nothing" in {w.code for w in trace.manifest.warnings}


def test_a_file_that_was_made_anew_is_there_once(database: Path, recorder: str) -> None:
    code = "os.rename('a/idle.tab', 'a/moved.tab'); open('a/idle.tab', 'wb', 0).write(b'new')"
    found = names(recorded(database, recorder, code=code), database)
    assert found.keys() == {"a/moved.tab", "a/idle.tab", "a/used.tab", "a/idle.log"}
    assert found["a/idle.tab"].created and not found["a/moved.tab"].created


def test_what_is_like_files_whose_role_was_told_from_use(work: Path, ebpf: str) -> None:
    for box in range(9):
        (work / f"{box}/cur").mkdir(parents=True)
        for n in range(20):
            (work / f"{box}/cur/{n}.msg").write_bytes(bytes(range(256)) * 40)
    (work / "notes").write_text("x")
    script = f"""
import os
for box in range(9):
    for n in range(5):
        f = open(f"{work}/{{box}}/cur/{{n}}.msg", "rb", 0); f.read(9000); f.close()
"""
    (work.parent / "load.py").write_text(script)
    out = work.parent / "t.trace"
    words = ["--out", str(out), "--path", str(work), "--", sys.executable, "-I", str(work.parent / "load.py")]
    done = CliRunner().invoke(command, words, standalone_mode=False)
    assert done.exit_code == 0, done
    trace = Trace.open(out)
    of_role = [file for file in trace.manifest.files if file.role is not None]
    assert len(of_role) == 9 * 20 and {file.role for file in of_role} == {"data"}
    assert sum(file.size_end for file in of_role) == 9 * 20 * 10_240
    assert len(np.unique(trace.columns("file")["file"])) == 9 * 5
    # Of too many the largest.
    manifest = trace.manifest.model_copy(update={"files": trace.manifest.files[: 9 * 5]})
    rules = RoleRules.parse(["**/cur/*.msg=data"], builtin=False)
    more = with_more(manifest, UntouchedFiles((), cut=True), rules, [work], most=10)
    assert len(more.files) == 9 * 5 + 10
    [said] = [w.message for w in more.warnings if w.code == "untouched"]
    assert "10 are in the trace" in said and "125 smaller ones and what is in folders" in said


def test_the_largest_are_taken_where_there_are_too_many(tmp_path: Path) -> None:
    for n in range(1, 8):
        (tmp_path / f"{n}.tab").write_bytes(b"x" * n)
    found = find_untouched([tmp_path], lambda path: path.endswith(".tab"), deep=False, most=3)
    assert [f.size for f in found.files] == [5, 6, 7] and found.left_out == 4 and not found.cut


def test_who_looks_for_too_long_says_so(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}").mkdir()
        (tmp_path / f"{n}" / "a.tab").write_bytes(b"x")
    found = find_untouched([tmp_path], lambda path: True, deep=True, seconds=-1.0)
    assert found.cut and len(found.files) < 3


def test_a_trace_says_what_is_left_out(
    database: Path, recorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_untouched, "__kwdefaults__", {"most": 1, "seconds": 10.0})
    trace = recorded(database, recorder)
    said = [w for w in trace.manifest.warnings if w.code == "untouched"]
    assert [w.count for w in said] == [1] and "missing: 1 smaller one." in said[0].message


def test_what_another_can_read_alone_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    assert find_untouched([tmp_path / "gone" / "away"], lambda path: True, deep=True).files == ()
