"""The table of files and the parser of strace's lines, without recording anything."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ztune.trace.recorders.files import IGNORED, UNKNOWN, Call, FileTable, Mounts, is_storage
from ztune.trace.recorders.strace_parser import FoundFile, Parser, Row, RunningSystem
from ztune.trace.roles import RoleRules
from ztune.trace.schema import Flag, Op

RULES = RoleRules.parse([])


def call(t: int) -> Call:
    return Call(t, 1, 10, 10)


class Nothing(RunningSystem):
    """A system on which every file is regular, 100 bytes long and old."""

    def look(self, path: str) -> FoundFile | None:
        return FoundFile(1, hash(path) & 0xFFFFFF | 1, 100, 1, 1, True)

    def folder(self, pid: int) -> str:
        return "/srv/db"

    def group(self, tid: int) -> tuple[int, int]:
        return tid, 0

    def descriptor(self, pid: int, fd: int) -> tuple[int, int] | None:
        return None


def parse(*lines: str) -> tuple[list[Row], FileTable, Parser]:
    table = FileTable()
    rows: list[Row] = []
    parser = Parser(table, 5_000_000_000, rows.append, Nothing(), "/srv/db")
    for line in lines:
        parser.line(line)
    return rows, table, parser


def shown(path: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in path.encode())


A = shown("/srv/db/a")


def test_a_call_that_was_interrupted_by_others_is_put_together() -> None:
    rows, _, parser = parse(
        f'7 5.000000100 openat(-100<{shown("/srv/db")}>, "{shown("a")}", 0x2) = 3<{A}> <0.000001000>',
        f"7 5.000002000 pwrite64(3<{A}>,  <unfinished ...>",
        f'8 5.000002500 write(9<{shown("pipe:[1]")}>, ""..., 5) = 5 <0.000000100>',
        '7 5.000009000 <... pwrite64 resumed>""..., 10, 4096) = 10 <0.000006500>',
        f'7 5.000010000 read(3<{A}>, ""..., 10) = -1 EIO (Input/output error) <0.000001000>',
        f"7 5.000011000 fsync(3<{A}>) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.000001000>",
        "7 5.000012000 +++ killed by SIGKILL +++",
    )
    assert rows == [(2000, 6500, 7, 7, Op.WRITE, 0, Flag.POSITIONED, 1, 0, 4096, 10)]
    assert parser.exits == {7: -9} and parser.odd_lines == 0


def test_a_child_that_speaks_before_its_birth_is_reported() -> None:
    rows, _, _ = parse(
        f'7 5.000000100 openat(-100<{shown("/srv/db")}>, "{shown("a")}", 0x2) = 3<{A}> <0.000001000>',
        f'7 5.000000200 read(3<{A}>, ""..., 10) = 10 <0.000000100>',
        "7 5.000001000 clone3({flags=0x4100, exit_signal=17}, 88 <unfinished ...>",
        f'8 5.000002000 read(3<{A}>, ""..., 20) = 20 <0.000000100>',
        "7 5.000003000 <... clone3 resumed>) = 8 <0.000002000>",
        f'7 5.000004000 read(3<{A}>, ""..., 30) = 30 <0.000000100>',
    )
    assert [(row[2], row[9], row[10]) for row in rows] == [(7, 0, 10), (8, 10, 20), (7, 30, 30)]


def test_lines_that_make_no_sense_are_counted() -> None:
    _, _, parser = parse("what?", "7 5.000000000 --- SIGCHLD {si_signo=0x11} ---", "7 5.0 exit_group(0) = ?")
    assert parser.odd_lines == 1


def test_a_call_under_way_at_the_end_is_not_odd() -> None:
    """strace says this of each thread that waits when it lets a process go."""
    rows, _, parser = parse(
        "7 5.000000100 clock_nanosleep(0x1, 0x1, {tv_sec=1, tv_nsec=5},  <detached ...>",
        f"8 5.000000100 fsync(3<{A}> <detached ...>",
        "9 5.000000100 <... read resumed> <detached ...>",
    )
    assert rows == [] and parser.odd_lines == 0


def test_rename_over_and_reuse_of_a_name() -> None:
    table = FileTable()
    table.seen(1, 0, "/d/a", 1, 11, 5)
    table.seen(2, 0, "/d/b", 1, 12, 6)
    table.rename(call(1), "/d/a", "/d/b")
    table.seen(3, 2, "/d/a", 1, 13, 0, created=True)
    table.unlink(call(3), "/d/b")
    chosen = table.select([1, 2, 3], 3, [], RULES)
    assert [(f.path, f.deleted, f.created) for f in chosen.files] == [
        ("/d/b", True, False),
        ("/d/b", True, False),
        ("/d/a", False, True),
    ]
    assert [(op, file, other) for _, op, file, other, _ in chosen.events] == [
        (Op.RENAME, 0, 1),
        (Op.UNLINK, 0, -1),
    ]


def test_a_renamed_folder_takes_its_files_along() -> None:
    table = FileTable()
    table.seen(1, 0, "/d/x/a", 1, 11, 5)
    table.rename(call(1), "/d/x", "/d/y")
    table.unlink(call(2), "/d/y/a")
    chosen = table.select([1], 1, [], RULES)
    assert [f.path for f in chosen.files] == ["/d/y/a"]
    assert [op for _, op, _, _, _ in chosen.events] == [Op.UNLINK]


def test_many_renames_take_no_longer_each() -> None:
    """Files that are written under another name and then renamed, as many programs do."""
    table = FileTable()
    begun = time.process_time()
    for i in range(20_000):
        table.seen(i + 1, i, f"/d/{i}.tmp", 1, i + 1, 0, created=True)
        table.rename(call(i), f"/d/{i}.tmp", f"/d/{i}")
    assert time.process_time() - begun < 10  # 30 s, when each looked through all names
    table.rename(call(20_000), "/d", "/e")
    table.rename(call(20_001), "/e", "/f/g")
    assert table.named("/d/7") is None and table.named("/f/g/7") is not None
    for i in range(20_000):
        table.unlink(call(20_002), f"/f/g/{i}")
    table.seen(20_001, 0, "/d/x/y", 1, 99_999, 0)
    table.rename(call(20_003), "/d", "/e")
    assert table.named("/e/x/y") is not None


def test_a_file_without_a_name_gets_one(tmp_path: Path) -> None:
    """``O_TMPFILE``, and then a link to its descriptor."""
    table = FileTable()
    (tmp_path / "named").touch()
    inode = (tmp_path / "named").stat()
    table.seen(1, 0, f"{tmp_path}/#7", inode.st_dev, inode.st_ino, 0, links=0, created=True)
    table.link(call(1), "/proc/self/fd/3", str(tmp_path / "named"))
    [file] = table.select([1], 1, [], RULES).files
    assert (file.path, file.deleted, file.size_end) == (str(tmp_path / "named"), False, 0)


def test_a_file_that_lost_its_name_is_not_taken_for_one_with_its_number(tmp_path: Path) -> None:
    table = FileTable()
    (tmp_path / "new").touch()
    inode = (tmp_path / "new").stat()
    table.seen(1, 0, f"{tmp_path}/old", inode.st_dev, inode.st_ino, 0, created=True)
    table.unlink(call(1), f"{tmp_path}/old")
    table.link(call(2), f"{tmp_path}/elsewhere", str(tmp_path / "new"))
    [file] = table.select([1], 1, [], RULES).files
    assert (Path(file.path).name, file.deleted) == ("old", True)


def test_exchanged_names() -> None:
    table = FileTable()
    table.seen(1, 0, "/d/a", 1, 11, 5)
    table.seen(2, 0, "/d/b", 1, 12, 6)
    table.rename(call(1), "/d/a", "/d/b", exchange=True)
    assert [entry.path for entry in table.entries] == ["/d/b", "/d/a"]
    named = table.named("/d/a")
    assert named is not None and named.ino == 12


def test_numbers_that_were_never_explained_and_files_outside(tmp_path: Path) -> None:
    table = FileTable()
    table.seen(1, 0, str(tmp_path / "in"), 1, 11, 5)
    table.seen(2, 0, "/elsewhere/out", 1, 12, 6)
    chosen = table.select([1, 2, 3], 3, [tmp_path], RULES)
    assert chosen.numbers.tolist() == [-1, 0, IGNORED, UNKNOWN]
    assert chosen.ids == {1: 0}


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/dev/shm/PostgreSQL.123", False),
        ("/dev/shm/folder/base/1", True),
        ("/tmp/hsperfdata_me/4711", False),
        ("/srv/pg/base/5/1259", True),
    ],
)
def test_memory_with_a_name_is_no_storage(path: str, kept: bool) -> None:
    assert is_storage(path) is kept


def test_a_folder_below_a_bind_mount_has_the_names_of_both() -> None:
    mounts = Mounts()
    mounts.add(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 8:1 /srv/pg /var/lib/pg rw - ext4 /dev/sda1 rw\n"
        "3 1 0:9 / /nowhere rw - tmpfs tmpfs rw\n"
    )
    assert mounts.names(Path("/var/lib/pg/main")) == {"/var/lib/pg/main", "/srv/pg/main"}
    assert mounts.names(Path("/srv/pg/main")) == {"/var/lib/pg/main", "/srv/pg/main"}
    assert mounts.names(Path("/srv")) == {"/srv", "/var/lib/pg"}
    assert mounts.names(Path("/nowhere/x")) == {"/nowhere/x"}
    # What lies on top counts, whatever lies below: an automount whose bind has come.
    mounts.add("4 1 0:8 / /data rw - autofs systemd-1 rw\n5 4 8:1 /srv/pg /data rw - ext4 /dev/sda1 rw\n")
    assert mounts.names(Path("/data/main")) == {"/data/main", "/var/lib/pg/main", "/srv/pg/main"}


def test_what_a_process_names_has_the_name_that_its_descriptors_have() -> None:
    mounts = Mounts()
    mounts.add("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:1 /srv/pg /var/lib/pg rw - ext4 /dev/sda1 rw\n")
    assert mounts.usual("/var/lib/pg/base/1") == mounts.absolute(os.makedev(8, 1), "/srv/pg/base/1")
    assert mounts.usual("/srv/x") == "/srv/x"
    # In a container, whose volume is a folder of this host.
    mounts.add(
        "9 8 0:40 / / rw - overlay overlay rw\n10 9 8:1 /volumes/v /data/db rw - ext4 /dev/sda1 rw\n",
        theirs=True,
    )
    assert mounts.usual("/data/db/journal/1") == "/volumes/v/journal/1"
    assert mounts.usual("/tmp/x") == "/tmp/x"


def test_paths_are_made_absolute_by_the_mounts() -> None:
    mounts = Mounts()
    mounts.read()
    for path in ("/", "/proc/self/mountinfo"):
        dev = Path(path).stat().st_dev
        assert mounts.of(dev) is not None
    dev = Path("/proc").stat().st_dev
    assert mounts.absolute(dev, "/self/maps") == "/proc/self/maps"


def test_a_file_that_goes_while_it_is_looked_at_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "short-lived"
    path.write_bytes(b"x")
    system = RunningSystem()
    found = system.look(str(path))
    assert found is not None and found.size == 1
    stat = Path.stat

    def then_gone(self: Path) -> os.stat_result:
        status = stat(self)
        self.unlink()
        return status

    monkeypatch.setattr(Path, "stat", then_gone)
    assert system.look(str(path)) is None
