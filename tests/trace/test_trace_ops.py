from __future__ import annotations

import errno
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from trace_builder import build, files

from ztune.errors import InputError
from ztune.onhost.host import shared_files
from ztune.places import replay
from ztune.places.replay import prepare
from ztune.trace import content
from ztune.trace.enough import recorded
from ztune.trace.ops import BlankTails, Threads, export_ops, join_ops, read_ops
from ztune.trace.prefilled import Prefilled
from ztune.trace.schema import Flag, Op, Via

FILES = files(("/log", None, 7), ("/db/data", "data", 4096), ("/tmp/x", None, 0), ("/db/wal", "wal", 100))


def test_the_bytes_are_those_of_the_contract(tmp_path: Path) -> None:
    event = {
        "t": 11,
        "dur": 12,
        "pid": 100,
        "tid": 101,
        "op": Op.WRITE,
        "via": Via.URING,
        "flags": Flag.DSYNC | Flag.POSITIONED,  # which is not the engine's
        "file": 3,
        "offset": 2**40,
        "size": 8192,
        "since_sync": 7,
        "waited": 5,
    }
    info = export_ops(build(tmp_path / "a.trace", [event], FILES), tmp_path / "ops.bin")
    data = (tmp_path / "ops.bin").read_bytes()
    assert data[:32] == b"ZTOPS\0\0\0" + struct.pack("<IIQII", 3, 64, 1, 2, 1)
    assert data[32:] == struct.pack("<qqqqiiHBBIIIII", 11, 12, 2**40, 8192, 1, -1, 0, 2, 2, 2, 0, 7, 5, 0)
    assert [(f.id, f.trace_id, f.role, f.size, f.path) for f in info.files] == [
        (0, 1, "data", 4096, "/db/data"),
        (1, 3, "wal", 100, "/db/wal"),
    ]
    assert (info.nops, info.threads, info.left_out) == (1, 1, 0)


def test_files_are_numbered_as_they_were_made(tmp_path: Path) -> None:
    """Which their names tell, and not the order in which the recording met them: a load goes by it."""
    given = files(*((f"/db/{name}", "data", 8192) for name in ("10/9", "9/100", "9/99", "9/99_vm", "1.log")))
    info = export_ops(build(tmp_path / "a.trace", [{"op": Op.FSYNC, "file": 2}], given), tmp_path / "ops.bin")
    assert [file.path.removeprefix("/db/") for file in info.files] == [
        *("1.log", "9/99", "9/99_vm", "9/100", "10/9"),
    ]
    assert [file.trace_id for file in info.files] == [4, 2, 3, 1, 0]


def exported(tmp_path: Path, *events: dict[str, int], deleted: tuple[int, ...] = ()) -> list[dict[str, int]]:
    given = [{**file, "deleted": file["id"] in deleted} for file in FILES]
    trace = build(tmp_path / "a.trace", [{"t": t, **event} for t, event in enumerate(events)], given)
    export_ops(trace, tmp_path / "ops.bin")
    records = read_ops(tmp_path / "ops.bin")[1]
    return [{name: int(record[name]) for name in ("op", "file", "file2")} for record in records]


def test_calls_that_openzfs_would_refuse_are_counted_and_said(tmp_path: Path) -> None:
    events = [
        {"t": 1, "op": Op.WRITE, "file": 1, "offset": 0, "size": 8192, "flags": Flag.DIRECT},
        {"t": 2, "op": Op.READ, "file": 1, "offset": 512, "size": 4096},
        {"t": 3, "op": Op.READ, "file": 0, "offset": 0, "size": 512, "flags": Flag.DIRECT},  # has no role
        {"t": 4, "op": Op.TRUNCATE, "file": 1, "size": 512, "flags": Flag.DIRECT},
    ]
    whole = build(tmp_path / "a.trace", events, FILES)
    assert export_ops(whole, tmp_path / "ops.bin").refused == 0
    assert not [text for text in prepare(whole).warnings if "O_DIRECT" in text]
    events += [
        {"t": 5, "op": Op.READ, "file": 1, "offset": 512, "size": 8192, "flags": Flag.DIRECT | Flag.DSYNC},
        {"t": 6, "op": Op.WRITE, "file": 1, "offset": 0, "size": 512, "flags": Flag.DIRECT},
    ]
    odd = build(tmp_path / "b.trace", events, FILES)
    assert export_ops(odd, tmp_path / "ops.bin").refused == 2
    for _ in ("made", "found again"):
        [said] = [text for text in prepare(odd).warnings if "O_DIRECT" in text]
        assert said.startswith("2 reads and writes with O_DIRECT are not") and "direct=disabled" in said


def test_an_export_that_does_not_fit_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{"t": 1, "op": Op.WRITE, "file": 1, "offset": 0, "size": 8192}]
    trace = build(tmp_path / "a.trace", events, FILES)
    other = build(tmp_path / "b.trace", [{**events[0], "t": 2}], FILES)
    there = prepare(other).ops

    def full(_: object, folder: Path, *__: object) -> dict[str, Path]:
        (folder / "data-0.bin").write_bytes(bytes(100))
        raise InputError(f"{folder}: it can't be written") from OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(content, "content_pools", full)
    folder = replay.export_folder(trace.sha)
    with pytest.raises(InputError, match="can't be written"):
        prepare(trace)
    assert not folder.exists() and not shared_files.lock_of(folder).exists() and there.exists()
    # Where more calls than there is room for were recorded, nothing is written at all.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=2 << 30))
    with pytest.raises(InputError, match=r"what a replay reads of a\.trace: about .* set ZTUNE_HOME"):
        prepare(trace)
    assert not folder.exists()


def test_a_log_that_asks_for_its_disks_block_is_not_direct_on_zfs(tmp_path: Path) -> None:
    """MariaDB asks the kernel how large that is, and opens the log as other files where it does not say."""
    given = files(("/d/t.ibd", "data", 16384), ("/d/ib_logfile0", "wal", 512))
    events = [
        {"t": t, "op": Op.WRITE, "file": t, "offset": 0, "size": size, "flags": Flag.DIRECT | Flag.DSYNC}
        for t, size in enumerate((16384, 512))
    ]
    trace = build(tmp_path / "a.trace", events, given)
    assert export_ops(trace, tmp_path / "ops.bin").refused == 0
    flags = read_ops(tmp_path / "ops.bin")[1]["flags"]
    assert flags.tolist() == [Flag.DIRECT | Flag.DSYNC, Flag.DSYNC]
    found = recorded(trace)
    assert (found["data"].direct, found["wal"].direct) == (16384, 0)


def test_files_without_a_role_are_left_out_and_sync_of_everything_stays(tmp_path: Path) -> None:
    assert exported(
        tmp_path,
        {"op": Op.WRITE, "file": 0, "offset": 0, "size": 1},
        {"op": Op.SYNC, "file": -1},
        {"op": Op.MMAP, "file": 1},
        {"op": Op.MSYNC, "file": 1},
        {"op": Op.UNLINK, "file": 2},
    ) == [
        {"op": Op.SYNC, "file": -1, "file2": -1},
        {"op": Op.MMAP, "file": 0, "file2": -1},
        {"op": Op.MSYNC, "file": 0, "file2": -1},
    ]


def test_a_copy_from_a_file_without_role_is_a_write(tmp_path: Path) -> None:
    copy = {"op": Op.COPY, "file": 1, "offset": 0, "size": 10}
    assert exported(
        tmp_path, {**copy, "file2": 3}, {**copy, "file2": 2}, {**copy, "file": 2, "file2": 1}
    ) == [
        {"op": Op.COPY, "file": 0, "file2": 1},
        {"op": Op.WRITE, "file": 0, "file2": -1},
    ]


def test_a_renamed_over_file_without_role_is_nobody(tmp_path: Path) -> None:
    rename = {"op": Op.RENAME, "file": 3}
    assert exported(tmp_path, {**rename, "file2": 1}, {**rename, "file2": 2}, deleted=(1,)) == [
        {"op": Op.RENAME, "file": 1, "file2": 0},
        {"op": Op.RENAME, "file": 1, "file2": -1},
    ]


def test_a_file_with_two_names_is_removed_with_the_last(tmp_path: Path) -> None:
    """PostgreSQL up to version 14 links a log segment's second name, unlinks the first, and writes on."""
    write = {"op": Op.WRITE, "file": 3, "offset": 0, "size": 1}
    unlink, over = {"op": Op.UNLINK, "file": 3}, {"op": Op.RENAME, "file": 1, "file2": 3}
    for name in ("kept", "removed", "replaced"):
        (tmp_path / name).mkdir()
    kept = exported(tmp_path / "kept", unlink, write, over)
    assert [(op["op"], op["file2"]) for op in kept] == [(Op.RENAME, -1), (Op.WRITE, -1), (Op.RENAME, -1)]
    removed = exported(tmp_path / "removed", unlink, write, unlink, deleted=(3,))
    assert [op["op"] for op in removed] == [Op.RENAME, Op.WRITE, Op.UNLINK]
    replaced = exported(tmp_path / "replaced", unlink, write, over, deleted=(3,))
    assert [(op["op"], op["file2"]) for op in replaced] == [(Op.RENAME, -1), (Op.WRITE, -1), (Op.RENAME, 1)]


def test_transfers_of_nothing_are_left_out(tmp_path: Path) -> None:
    empty = {"file": 1, "offset": 4096, "size": 0}
    truncate = {"op": Op.TRUNCATE, "file": 1, "size": 0}
    assert exported(tmp_path, {**empty, "op": Op.READ}, {**empty, "op": Op.WRITE}, truncate) == [
        {"op": Op.TRUNCATE, "file": 0, "file2": -1}
    ]


def test_no_roles_at_all_is_bad_input(tmp_path: Path) -> None:
    trace = build(tmp_path / "a.trace", [], files(("/x", None, 0)))
    with pytest.raises(InputError, match="has a role"):
        export_ops(trace, tmp_path / "ops.bin")
    assert not (tmp_path / "ops.bin").exists()


def test_an_export_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    trace = build(tmp_path / "a.trace", [], FILES)
    with pytest.raises(InputError, match="can't write"):
        export_ops(trace, tmp_path / "none" / "ops.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]


@pytest.mark.parametrize("data", [b"", b"x" * 40, b"ZTOPS\0\0\0" + struct.pack("<IIQII", 3, 64, 2, 0, 0)])
def test_what_is_no_ops_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "o").write_bytes(data)
    with pytest.raises(InputError):
        read_ops(tmp_path / "o")


def threads(*events: tuple[int, int, int]) -> tuple[list[int], int]:
    """(tid, t, dur) of each event → its dense number, and how many there are; the same in parts of two."""
    columns = np.array(events, np.int64).reshape(-1, 3).T
    tid = columns[0].astype(np.int32)
    found = []
    for at_once in (max(len(tid), 1), 2):
        told = Threads()
        for begin in range(0, len(tid), at_once):
            part = slice(begin, begin + at_once)
            told.add(tid[part], columns[1][part], columns[2][part])
        found.append((told.numbers()(tid).tolist(), told.used))
    assert found[0] == found[1]
    return found[0]


def test_threads_are_numbered_without_gaps() -> None:
    assert threads((70, 0, 1), (5, 1, 1), (70, 2, 1), (5, 3, 1)) == ([0, 1, 0, 1], 2)
    assert threads() == ([], 0)


def test_a_number_is_used_again_after_its_thread_has_ended() -> None:
    # 7 ends at 10; 8 begins at 10 (still overlapping), 9 at 11.
    assert threads((7, 0, 10), (8, 10, 5), (9, 11, 1)) == ([0, 1, 0], 2)


def test_times_of_a_wall_clock_are_refused(tmp_path: Path) -> None:
    """A replay would go through all the years since 1970."""
    write = {"op": Op.WRITE, "file": 1, "t": 1_800_000_000 * 10**9, "offset": 0, "size": 10}
    trace = build(tmp_path / "a.trace", [write], FILES)
    with pytest.raises(InputError, match=r"a\.trace has an event that ends 57\.0 years after it began"):
        export_ops(trace, tmp_path / "ops.bin")
    assert not (tmp_path / "ops.bin").exists()


def test_a_call_of_years_is_refused(tmp_path: Path) -> None:
    """A replay would go through them without an end in sight."""
    for dur in (2 * 365 * 86_400 * 10**9, 2**63 - 1):
        write = {"op": Op.WRITE, "file": 1, "t": 10, "dur": dur, "offset": 0, "size": 10}
        trace = build(tmp_path / f"{dur}.trace", [write], FILES)
        with pytest.raises(InputError, match=r"has an event that ends \d+\.\d years after it began"):
            export_ops(trace, tmp_path / "ops.bin")


def test_too_many_threads_at_once(tmp_path: Path) -> None:
    events = [{"op": Op.FSYNC, "tid": tid, "file": 1, "t": 0, "dur": 1} for tid in range(65_537)]
    trace = build(tmp_path / "a.trace", events, FILES)
    with pytest.raises(InputError, match="65537 threads"):
        export_ops(trace, tmp_path / "ops.bin")
    assert not (tmp_path / "ops.bin").exists()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_threads_that_overlap_never_share_a_number(events: list[tuple[int, int, int]]) -> None:
    events = sorted(events, key=lambda event: event[1])
    numbers, used = threads(*events)
    assert set(numbers) == set(range(used))
    life: dict[int, tuple[int, int]] = {}
    number_of: dict[int, int] = {}
    for (tid, t, dur), number in zip(events, numbers, strict=True):
        first, last = life.get(tid, (t, t + dur))
        life[tid] = first, max(last, t + dur)
        assert number_of.setdefault(tid, number) == number
    for a in life:
        for b in life:
            if a != b and life[a][0] <= life[b][1] and life[b][0] <= life[a][1]:
                assert number_of[a] != number_of[b]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_export_holds_exactly_the_events_of_files_with_roles(tmp_path: Path, data: st.DataObject) -> None:
    roles = data.draw(st.lists(st.sampled_from(["data", "wal", None]), min_size=1, max_size=6))
    events = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "t": st.integers(0, 1000),
                    "tid": st.integers(1, 9),
                    "op": st.sampled_from([Op.READ, Op.WRITE, Op.TRUNCATE, Op.FALLOCATE]),
                    "file": st.integers(0, len(roles) - 1),
                    "offset": st.integers(0, 2**50),
                    "size": st.integers(1, 2**30),
                }
            ),
            max_size=30,
        )
    )
    name = tmp_path / "p.trace"
    shutil.rmtree(name, ignore_errors=True)
    trace = build(name, events, files(*((f"/f{i}", role, i) for i, role in enumerate(roles))))
    if not any(roles):
        with pytest.raises(InputError):
            export_ops(trace, tmp_path / "o")
        return
    info = export_ops(trace, tmp_path / "o")
    header, records = read_ops(tmp_path / "o")
    assert header["nops"][0] == info.nops == len(records)
    assert header["nfiles"][0] == len(info.files) == sum(role is not None for role in roles)
    back = {file.id: file.trace_id for file in info.files}
    got = [
        (int(r["t"]), int(r["op"]), back[int(r["file"])], int(r["offset"]), int(r["size"])) for r in records
    ]
    kept = [e for e in sorted(events, key=lambda e: e["t"]) if roles[e["file"]]]
    assert got == [(e["t"], e["op"], e["file"], e["offset"], e["size"]) for e in kept]


def ahead(*calls: tuple[int, int, int, int]) -> list[int]:
    """Return the places of calls (operation, file, offset, size) that only fill a log, 1 and 2, ahead."""
    columns: dict[str, NDArray[Any]] = {
        name: np.array([call[i] for call in calls], np.int64)
        for i, name in enumerate(("op", "file", "offset", "size"))
    }
    found: list[list[int]] = []
    for at_once in (len(calls), 1, 3):
        filled = Prefilled(np.array([False, True, True, False]))
        for begin in range(0, len(calls), at_once):
            part = {name: values[begin : begin + at_once] for name, values in columns.items()}
            filled.add(part, np.arange(len(part["op"])))
        places, sizes = filled.found()
        assert [calls[place][3] for place in places.tolist()] == sizes.tolist()
        found.append([int(place) for place in places])
    assert found[0] == found[1] == found[2]
    return found[0]


def test_a_log_that_is_filled_ahead_holds_zeros_until_it_is_written_again() -> None:
    half, page = 512 << 10, 8192
    made = [(Op.CREATE, 1, -1, 0), (Op.WRITE, 1, 0, half), (Op.WRITE, 0, 0, page), (Op.WRITE, 1, half, half)]
    used = [(Op.FSYNC, 1, -1, 0), (Op.RENAME, 1, -1, 0), (Op.WRITE, 1, 3 * page, page)]
    assert ahead(*made, *used, (Op.WRITE, 1, 0, half)) == [1, 3]
    assert ahead(*made, *used[:2]) == []  # nobody knows what it is for
    assert ahead(*made[1:], *used) == []  # it was there before
    assert ahead(*made[:3], *used) == []  # too short
    assert ahead(*made, (Op.WRITE, 1, 2 * half, page), (Op.WRITE, 1, 2 * half + page, page)) == []
    # Synced on its way: so a log is written as it is used. And one that goes on where it is full.
    assert ahead(*made[:2], used[0], *made[2:], *used) == []
    assert ahead(*made, used[0], (Op.WRITE, 1, 2 * half, page), used[-1]) == []


def test_what_fills_a_log_ahead_is_blank_in_the_export(tmp_path: Path) -> None:
    calls = [
        {"op": Op.CREATE, "file": 3, "offset": -1},
        {"op": Op.WRITE, "file": 3, "offset": 0, "size": 2 << 20},
        {"op": Op.FSYNC, "file": 3, "offset": -1},
        {"op": Op.WRITE, "file": 3, "offset": 0, "size": 8192},
    ]
    trace = build(tmp_path / "a.trace", [{"t": t, **call} for t, call in enumerate(calls)], FILES)
    export_ops(trace, tmp_path / "ops.bin")
    assert read_ops(tmp_path / "ops.bin")[1]["blank"].tolist() == [0, 2 << 20, 0, 0]


def tails(*writes: tuple[int, int, int]) -> list[int]:
    """Return the blank bytes of writes (file, offset, size), where files 1 and 2 are logs."""
    columns: dict[str, NDArray[Any]] = {
        "op": np.full(len(writes), Op.WRITE, np.uint8),
        "file": np.array([file for file, _, _ in writes], np.int32),
        "offset": np.array([offset for _, offset, _ in writes], np.int64),
        "size": np.array([size for _, _, size in writes], np.int64),
    }
    logs = np.array([False, True, True, False])
    found = []
    for at_once in (max(len(writes), 1), 1, 2):
        told, blank = BlankTails(logs), [0] * len(writes)
        for begin in range(0, len(writes), at_once):
            part = {name: values[begin : begin + at_once] for name, values in columns.items()}
            for place, size in zip(*told.add(part, np.arange(len(part["op"]))), strict=True):
                blank[place] = int(size)
        found.append(blank)
    assert found[0] == found[1] == found[2]
    return found[0]


def test_a_logs_page_that_is_written_again_was_not_full() -> None:
    page = 8192
    # Three times the first page, then on to the second: a quarter, half, three quarters were used.
    assert tails((1, 0, page), (1, 0, page), (1, 0, page), (1, 0, 2 * page), (1, 3 * page, page)) == [
        page * 3 // 4,
        page // 2,
        page // 4,
        0,  # nothing says that its second page was written again
        0,
    ]
    # A write of several pages: only the last of them, which is where the next write begins.
    assert tails((1, 0, 4 * page), (1, 3 * page, 2 * page), (1, 4 * page, 2 * page)) == [
        page // 2,
        page // 2,
        0,
    ]


def test_what_is_written_again_but_never_beyond_is_no_log_page() -> None:
    page = 8192
    assert tails((1, 0, page), (1, 0, page), (1, 0, page)) == [0, 0, 0]
    # The same writes to a file of data; and to a log, but with another file's write in between.
    assert tails((0, 0, page), (0, 0, 2 * page)) == [0, 0]
    assert tails((1, 0, page), (2, 0, page), (1, 0, 2 * page), (2, 0, 2 * page)) == [
        page // 2,
        page // 2,
        0,
        0,
    ]
    # A rewritten megabyte is no page, and what goes back is another lap of the log.
    assert tails((1, 0, 1 << 20), (1, 0, 2 << 20)) == [0, 0]
    assert tails((1, page, page), (1, 0, page)) == [0, 0]
    assert tails() == []


def test_two_recordings_become_one_in_the_order_of_time(tmp_path: Path) -> None:
    one = build(
        tmp_path / "a.trace",
        [
            {"t": 0, "op": Op.WARM, "file": 1, "offset": 0, "size": 1},
            {"t": 10, "op": Op.READ, "file": 1, "offset": 0, "size": 1},
            {"t": 30, "op": Op.FSYNC, "file": 3, "tid": 7},
        ],
        FILES,
    )
    two = build(
        tmp_path / "b.trace",
        [
            {"t": 0, "op": Op.WARM, "file": 1, "offset": 0, "size": 2},
            {"t": 5, "op": Op.READ, "file": 3, "offset": 0, "size": 3},
            {"t": 15, "op": Op.SYNC, "file": -1},
            {"t": 16, "op": Op.READ, "file": 3, "offset": 0, "size": 4},
        ],
        FILES,
    )
    export_ops(one, tmp_path / "one.bin")
    export_ops(two, tmp_path / "two.bin")
    join_ops(tmp_path / "one.bin", tmp_path / "two.bin", tmp_path / "both.bin", start_ns=10, end_ns=26)
    header, both = read_ops(tmp_path / "both.bin")
    threads = int(read_ops(tmp_path / "one.bin")[0]["nthreads"][0])
    assert (int(header["nfiles"][0]), int(header["nthreads"][0])) == (4, threads + 1)
    # What is in the caches first; the second's files and threads are none of the first's; its end is cut.
    found = [(int(r["t"]), int(r["op"]), int(r["file"]), int(r["thread"]) >= threads) for r in both]
    assert found == [
        (0, Op.WARM, 0, False),
        (0, Op.WARM, 2, True),
        (10, Op.READ, 0, False),
        (15, Op.READ, 3, True),
        (25, Op.SYNC, -1, True),
        (30, Op.FSYNC, 1, False),
    ]
    join_ops(None, tmp_path / "two.bin", tmp_path / "alone.bin", start_ns=10, end_ns=100)
    alone = read_ops(tmp_path / "alone.bin")[1]
    assert [(int(r["t"]), int(r["file"])) for r in alone] == [(0, 0), (15, 1), (25, -1), (26, 1)]
