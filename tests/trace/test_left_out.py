"""How much of a recording no replay has: files without a role that may be a database's."""

from __future__ import annotations

from pathlib import Path

from synthetic_traces import Made

from ztune.databases.rules import RoleRule
from ztune.trace import left_out, reassign
from ztune.trace.manifest import Counted
from ztune.trace.propose import as_rules, proposals
from ztune.trace.reader import Trace
from ztune.trace.schema import Op

K = 1024


def _recorded(top: Path, *, lone: int, syncs: int = 0) -> Trace:
    """Return a trace of 100 synced writes of a log, and ``lone`` of files that no rule knows."""
    made = Made(top)
    log = made.file("a.wal", role="wal")
    known = made.file("server.pid")
    for i in range(100):
        made.do(Op.WRITE, log, i * 8 * K, 8 * K)
        made.do(Op.FSYNC, log)
        made.do(Op.WRITE, known, 0, 8 * K)
    files = [made.file(f"main.v{n}") for n in range(2)]
    for i in range(lone):
        made.do(Op.WRITE, files[i % 2], i // 2 * 8 * K, 8 * K)
    for _ in range(syncs):
        made.do(Op.FSYNC, files[0])
    return made.write(top / "t.trace")


def test_shares_of_bytes_and_of_syncs_are_told_of_what_no_rule_knows(tmp_path: Path) -> None:
    found = left_out.left_out(_recorded(tmp_path, lone=200, syncs=25))
    assert found is not None and found.kinds == (f"{tmp_path}/main.v*",) and not found.more
    assert found.bytes == 0.5 and found.syncs == 0.2 and not found.most
    assert "50 % of the recorded bytes and 20 % of the recorded syncs" in found.sentence()
    assert f"{tmp_path}/main.v*" in found.sentence() and "ztune trace roles" in found.sentence()


def test_more_than_half_is_most_by_bytes_or_by_syncs(tmp_path: Path) -> None:
    by_bytes = left_out.left_out(_recorded(tmp_path / "a", lone=220))
    by_syncs = left_out.left_out(_recorded(tmp_path / "b", lone=20, syncs=120))
    assert by_bytes is not None and by_bytes.most and "syncs" not in by_bytes.sentence()
    assert by_syncs is not None and by_syncs.most


def test_little_is_not_said_nor_a_server_s_start(tmp_path: Path) -> None:
    assert left_out.left_out(_recorded(tmp_path / "a", lone=10)) is None
    assert left_out.left_out(_recorded(tmp_path / "b", lone=4, syncs=9)) is None


def test_many_kinds_of_which_none_moved_much_count_together(tmp_path: Path) -> None:
    made = Made(tmp_path)
    log = made.file("a.wal", role="wal")
    for i in range(100):
        made.do(Op.WRITE, log, i * 8 * K, 8 * K)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        made.do(Op.WRITE, made.file(f"table-{letter}"), 0, 64 * K)
    found = left_out.left_out(made.write(tmp_path / "t.trace"))
    assert found is not None and found.most
    assert len(found.kinds) == 2 and found.more == 24 and "24 more kinds" in found.sentence()


def test_where_regions_alone_were_kept_the_recorder_s_counts_tell(tmp_path: Path) -> None:
    trace = _recorded(tmp_path, lone=10)
    many = Counted(reads=0, read_bytes=0, writes=900, write_bytes=900 * 8 * K, syncs=0)
    files = [f.model_copy(update={"counted": many}) if "main" in f.path else f for f in trace.manifest.files]
    changed = reassign.change(trace, trace.manifest.model_copy(update={"files": files}))
    found = left_out.left_out(changed)
    assert found is not None and found.bytes == 1800 / 2000


def test_what_the_user_left_out_is_no_gap_and_the_trace_remembers_it(tmp_path: Path) -> None:
    trace = _recorded(tmp_path, lone=300)
    assert left_out.sentence(trace)
    changed = reassign.change(trace, reassign.with_roles(trace, [RoleRule.parse("main.v*=-")]))
    again = Trace.open(changed.path)
    assert left_out.left_out(again) is None and left_out.sentence(again) == ""
    assert all(one.proposed is None for one in proposals(again) if "main" in one.glob)
    # A role that is given later goes first.
    given = reassign.change(again, reassign.with_roles(again, [RoleRule.parse("main.v*=data")]))
    assert {f.role for f in given.manifest.files} == {"wal", "data", None}


def test_given_roles_leave_nothing_out(tmp_path: Path) -> None:
    trace = _recorded(tmp_path, lone=300)
    given = reassign.change(trace, reassign.with_roles(trace, as_rules(proposals(trace))))
    assert left_out.left_out(given) is None


def test_a_run_keeps_it_and_what_older_ones_said_is_read(tmp_path: Path) -> None:
    trace = _recorded(tmp_path / "a", lone=300)
    found = left_out.left_out(trace)
    kept = left_out.kept(trace)
    said = (
        f"Left out: {tmp_path}/a/main.v*, with 60% of the recorded bytes. No rule knows them, so they have "
        "no role, and nothing here is about them; `ztune trace roles` proposes one."
    )
    assert left_out.of_run(kept, None) == found == left_out.of_run({}, trace, [said])
    assert left_out.of_run({left_out.KEY: None}, trace) is None
    old = left_out.of_run({}, None, ["Another.", said])
    assert old is not None and old.bytes == 0.6 and old.most and old.kinds == (f"{tmp_path}/a/main.v*",)
    assert left_out.of_run({}, None, ["Another."]) is None
