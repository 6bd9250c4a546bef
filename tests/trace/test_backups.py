"""A backup has the files' names of its database: which of two is told from who writes them, and how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic_traces import Made

from ztune.observe import roles_by_use
from ztune.observe.model import Group, ObservedTransfers, Syncs
from ztune.trace import reassign
from ztune.trace.propose import as_rules, proposals, rest
from ztune.trace.reader import Trace
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Op

K = 1024
SEGMENT = "00000001000000000000000"
SERVER, TOOL, RECEIVER = 10, 20, 30


class Server(Made):
    """A PostgreSQL that reads its tables, writes pages over and syncs its log; and what others write."""

    def __init__(self, top: Path) -> None:
        super().__init__(top)
        rng = np.random.default_rng(1)
        self.table = self.file("main/base/5/1000", b"page" * 65536, "data", size_start=4 << 20)
        self.log = self.file(f"main/pg_wal/{SEGMENT}1", b"log " * 9999, "wal", size_start=16 << 20)
        for i in range(300):
            at = int(rng.integers(500)) * 8 * K
            self.by(SERVER, Op.READ, self.table, at, 8 * K)
            self.by(SERVER + 1, Op.WRITE, self.table, at, 8 * K)
            self.by(SERVER + 1, Op.WRITE, self.log, i * 8 * K, 8 * K)
            self.by(SERVER, Op.FDATASYNC, self.log)

    def by(self, pid: int, op: Op, file: int, offset: int = -1, size: int = 0) -> None:
        self.rows.append((len(self.rows) * 1000, 100, pid, pid, op, 0, 0, file, -1, offset, size))

    def copied(self, name: str, role: str, pid: int, syncs: int = 1, **more: object) -> int:
        """A file of 2 MiB that ``pid`` writes once."""
        file = self.file(name, b"copy" * 9999, role, **{"created": True, **more})
        for i in range(64):
            self.by(pid, Op.WRITE, file, i * 32 * K, 32 * K)
        for _ in range(syncs):
            self.by(pid, Op.FSYNC, file)
        return file


def _roles(trace: Trace, top: Path) -> dict[str, str | None]:
    return {one.glob.removeprefix(f"{top}/"): one.proposed for one in rest(trace, asked=True)}


def test_a_base_backup_and_copies_of_the_log_are_none_of_the_database(tmp_path: Path) -> None:
    made = Server(tmp_path)
    for number in range(3):
        made.copied(f"b/base/base/5/{number + 1000}", "data", TOOL)
        made.copied(f"b/received/{SEGMENT}{number}", "wal", RECEIVER, syncs=3)
        made.copied(f"b/copied/{SEGMENT}{number}", "wal", 40 + number)  # each by a `cp` of its own
    made.copied("b/base/global/1262", "data", TOOL)
    made.copied(f"b/base/pg_wal/{SEGMENT}7", "wal", TOOL + 1)
    trace = made.write(tmp_path / "b.trace")
    found = _roles(trace, tmp_path)
    assert found == {"b/base/**": "backup", "b/received/*": "archive", "b/copied/*": "archive"}
    kinds = rest(trace)
    changed = reassign.change(trace, reassign.with_roles(trace, as_rules(kinds), reassign.sentence(kinds)))
    roles = {file.path.removeprefix(f"{tmp_path}/"): file.role for file in changed.manifest.files}
    assert roles["main/base/5/1000"] == "data" and roles[f"main/pg_wal/{SEGMENT}1"] == "wal"
    assert {role for path, role in roles.items() if path.startswith("b/base/")} == {"backup"}
    # Said once, it stays so, and `trace roles` says where it is from.
    assert not rest(changed)
    shown = {one.glob.removeprefix(f"{tmp_path}/"): one for one in proposals(changed)}
    assert shown["b/base/base/5/*"].by_use and shown["b/base/base/5/*"].otherwise == ("postgresql", "data")


def test_a_backup_that_had_begun_before_the_recording_is_one(tmp_path: Path) -> None:
    made = Server(tmp_path)
    made.copied("b/base/5/2000", "data", TOOL)
    half = made.file("b/base/5/1000", b"copy" * 9999, "data", size_start=1 << 20)
    made.by(TOOL, Op.WRITE, half, 1 << 20, 1 << 20)
    assert _roles(made.write(tmp_path / "b.trace"), tmp_path) == {"b/base/5/**": "backup"}


@pytest.mark.parametrize("what", ["server", "read", "over", "synced", "little"])
def test_what_a_server_makes_is_no_copy(tmp_path: Path, what: str) -> None:
    """A new table in a tablespace of its own is written once, and not read, too."""
    made = Server(tmp_path)
    name, role = ("ts/PG_15_1/5/9", "data") if what != "synced" else (f"log/{SEGMENT}9", "wal")
    if what == "little":
        file = made.file(name, b"x", role, created=True)
        made.by(TOOL, Op.WRITE, file, 0, 8 * K)
    else:
        pid = SERVER + 1 if what == "server" else TOOL
        file = made.copied(name, role, pid, syncs=20 if what == "synced" else 1)
        if what == "read":
            made.by(SERVER, Op.READ, file, 0, 8 * K)
        if what == "over":
            for i in range(0, 60, 2):
                made.by(TOOL, Op.WRITE, file, i * 8 * K, 8 * K)
    assert not _roles(made.write(tmp_path / "s.trace"), tmp_path)


@pytest.mark.parametrize(
    ("size", "syncs", "expected"), [(12 << 20, 1, "backup"), (12 << 20, 9, "wal"), (1 << 20, 1, "wal")]
)
def test_a_dump_in_small_pieces_is_no_log(tmp_path: Path, size: int, syncs: int, expected: str) -> None:
    made = Made(tmp_path)
    file = made.file("nightly", b"dump" * 9999, created=True)
    for i in range(size // (4 * K)):
        made.do(Op.WRITE, file, i * 4 * K, 4 * K)
    for _ in range(syncs):
        made.do(Op.FSYNC, file)
    (kind,) = proposals(made.write(tmp_path / "d.trace"))
    assert kind.proposed == expected


def test_a_binary_log_of_any_name_is_known_by_its_index() -> None:
    rules = RoleRules.parse()
    assert rules.among(["/log/foo.000001", "/log/foo.index"]).role("/log/foo.000001") == "wal"
    assert rules.among(["/log/foo.000001", "/log/bar.index"]).role("/log/foo.000001") is None


def test_an_observation_names_the_folders_that_look_like_a_backup() -> None:
    def file(path: str, role: str, reads: int = 0, over: int = 0, syncs: int = 1) -> Group:
        size = 2 << 20
        writes = ObservedTransfers(
            calls=64, bytes=size, sequential=63, aligned=64, overwritten=over, synced=0
        )
        read = ObservedTransfers(calls=reads, bytes=reads * 8192, sequential=0)
        return Group(kind="file", name=path, role=role, reads=read, writes=writes, syncs=Syncs(calls=syncs))

    seen = [
        file("/srv/pg/base/5/1000", "data", reads=9),
        file("/srv/pg/base/5/1001", "data"),  # a new table of the same database
        file(f"/srv/pg/pg_wal/{SEGMENT}1", "wal", syncs=300),
        file("/backup/base/base/5/1000", "data"),
        file("/backup/base/global/1262", "data"),
        file(f"/srv/copies/{SEGMENT}1", "wal", syncs=0),
        file("/srv/ts/PG_15_1/5/9", "data", over=1 << 20),
    ]
    found = {one.glob: one.role for one in roles_by_use.copies(seen)}
    assert found == {"/backup/**": "backup", "/srv/copies/**": "archive"}
