"""What first reads tell of the caches of a server that was recorded while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke
from synthetic_traces import STAND_IN
from trace_builder import MS, S, build, files

from ztune.places.replay import prepare
from ztune.store.db import Store
from ztune.trace import first_reads
from ztune.trace.first_reads import CachedRanges, cached
from ztune.trace.manifest import COLD, RecordedWindow, Warning_
from ztune.trace.ops import read_ops
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op, Via

PAGE = 8192
FAST, SLOW = 5_000, 4 * MS
LARGE = 1 << 30


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))


def call(t: int, page: int, dur: int = FAST, op: Op = Op.READ, **more: int) -> dict[str, int]:
    size = more.pop("size", PAGE)
    return {"t": t, "dur": dur, "op": op, "offset": page * PAGE, "size": size, **more}


def recorded(path: Path, events: Sequence[Mapping[str, int]], large: int = LARGE, **more: Any) -> Trace:
    entries = files(("/db/data", "data", large), ("/db/log", "wal", LARGE), ("/db/new", "data", 0))
    entries.append({"id": 3, "path": "/db/other", "role": "data", "size_start": PAGE * 10_000})
    said = [Warning_(code=COLD, message="It is not known.")]
    return build(path, events, entries, **{"warnings": said, **more})


def ranges(trace: Trace) -> CachedRanges:
    found = cached(trace)
    assert found is not None
    return found


def told(trace: Trace, file: int = 0) -> list[tuple[int, int]]:
    """First page and number of pages of what was cached, by its place in the file."""
    found = ranges(trace)
    mine = found.file == file
    return sorted(
        zip((found.offset[mine] // PAGE).tolist(), (found.size[mine] // PAGE).tolist(), strict=True)
    )


def test_what_is_read_first_in_no_time_was_cached(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path / "a.trace",
        [
            call(1, 10),
            call(2, 20, SLOW),
            call(3, 20),  # it is cached since
            call(4, 10, SLOW),
            call(5, 30, size=4 * PAGE),
            call(6, 40, first_reads.HIT_NS + PAGE),
            call(7, 50, first_reads.HIT_NS + PAGE - 1),
        ],
    )
    assert told(trace) == [(10, 1), (30, 4), (50, 1)]


def test_where_the_past_is_known_nothing_is_told(tmp_path: Path) -> None:
    assert cached(recorded(tmp_path / "a.trace", [call(1, 10)], warnings=[])) is None
    slow = recorded(tmp_path / "b.trace", [call(1, 10, SLOW), call(2, 20, op=Op.WRITE)])
    assert told(slow) == told(recorded(tmp_path / "c.trace", [])) == []


def test_what_may_have_been_read_ahead_goes_by_the_first(tmp_path: Path) -> None:
    def scan(t: int, page: int, *durations: int, step: int = MS) -> list[dict[str, int]]:
        return [call(t + i * step, page + i, dur) for i, dur in enumerate(durations)]

    trace = recorded(
        tmp_path / "a.trace",
        [
            *scan(0, 100, SLOW, FAST, FAST, FAST),
            *scan(10 * MS, 200, FAST, FAST, FAST),
            *scan(20 * MS, 300, FAST, FAST, SLOW),
            *scan(30 * MS, 400, SLOW, FAST, FAST, step=first_reads.AHEAD_NS),
            *scan(40 * MS, 500, *(SLOW if i == 3 else FAST for i in range(8))),  # it waited for a processor
        ],
    )
    assert told(trace) == [(200, 3), (401, 2), (500, 8)]


def test_of_two_scans_at_once_each_goes_by_its_own_first_read(tmp_path: Path) -> None:
    events = []
    for i in range(8):
        events.append(call(2 * i * MS, 100 + i, FAST if i else SLOW))
        events.append(call((2 * i + 1) * MS, 500 + i))
    assert told(recorded(tmp_path / "a.trace", events)) == [(500, 8)]


def test_direct_io_and_times_of_submission_tell_nothing(tmp_path: Path) -> None:
    events = [
        call(1, 10, flags=int(Flag.DIRECT)),
        call(2, 20, via=int(Via.AIO)),
        call(3, 30, via=int(Via.URING)),
    ]
    assert told(recorded(tmp_path / "a.trace", events)) == [(20, 1), (30, 1)]
    assert told(recorded(tmp_path / "b.trace", events, recorder={"name": "strace"})) == [(30, 1)]


def test_of_what_is_written_first_as_large_a_part_was_cached_as_of_what_is_read(tmp_path: Path) -> None:
    reads = [call(i, 16 * i, SLOW if i % 4 == 0 else FAST) for i in range(800)]
    writes = [call(1000 + i, 20_000 + 16 * i, op=Op.WRITE) for i in range(1000)]
    found = told(recorded(tmp_path / "a.trace", [*reads, *writes]))
    assert len([page for page, _ in found if page < 20_000]) == 600
    written = [(page, n) for page, n in found if page >= 20_000]
    assert 700 < len(written) < 800 and {n for _, n in written} == {1}  # whole pages


def test_a_fast_read_of_what_was_asked_to_be_read_ahead_tells_nothing(tmp_path: Path) -> None:
    asked = [call(100 * i, 16 * i, op=Op.READ_AHEAD) for i in range(1000)]
    fast = [call(100 * i + 50, 16 * i) for i in range(1000)]
    assert told(recorded(tmp_path / "a.trace", sorted([*asked, *fast], key=lambda one: one["t"]))) == []
    # As large a part as of what was read without being asked for.
    others = [call(200_000 + i, 20_000 + 16 * i, SLOW if i % 2 else FAST) for i in range(1000)]
    both = [*sorted([*asked, *fast], key=lambda one: one["t"]), *others]
    found = told(recorded(tmp_path / "b.trace", both))
    assert 450 < len([page for page, _ in found if page < 20_000]) < 550


def test_what_is_known_to_have_been_used_before_is_not_told_again(tmp_path: Path) -> None:
    warm = {"t": 0, "op": Op.WARM, "file": 0, "offset": 10 * PAGE, "size": 2 * PAGE}
    assert told(recorded(tmp_path / "a.trace", [warm, call(1, 10), call(2, 11), call(3, 12)])) == [(12, 1)]


def test_a_log_and_what_was_not_there_are_left_out(tmp_path: Path) -> None:
    last = LARGE // PAGE - 1
    events = [
        call(1, 10, file=1),
        call(2, 10, file=2, op=Op.WRITE),
        call(3, 10, file=2),
        call(4, last, size=4 * PAGE),  # it grows: what there was is its last page
        {"t": 5, "op": Op.SYNC, "file": -1, "offset": -1, "size": 0},
        call(6, (1 << 52) // PAGE),
    ]
    trace = recorded(tmp_path / "a.trace", events)
    assert told(trace) == [(last, 1)]
    assert told(trace, 1) == told(trace, 2) == []


@pytest.mark.parametrize(
    "ends",
    [
        call(2, 5, size=first_reads.LARGEST + 1),
        {"t": 2, "op": Op.TRUNCATE, "file": 0, "offset": -1, "size": PAGE},
        call(2, 0, op=Op.COPY, file=3, file2=0),
    ],
)
def test_once_a_file_is_cut_or_copied_its_reads_tell_nothing(tmp_path: Path, ends: dict[str, int]) -> None:
    trace = recorded(tmp_path / "a.trace", [call(1, 10), ends, call(3, 20), call(4, 20, file=3)])
    assert told(trace) == [(10, 1)]
    assert (20, 1) in told(trace, 3)


def test_of_a_recording_by_windows_the_first_one_tells(tmp_path: Path) -> None:
    windows = [
        RecordedWindow(t=0, duration_ns=S, started_unix_ns=1),
        RecordedWindow(t=S, duration_ns=S, started_unix_ns=3600 * S),
    ]
    trace = recorded(tmp_path / "a.trace", [call(1, 10), call(S, 20)], windows=windows)
    assert told(trace) == [(10, 1)]


def needed(trace: Trace) -> dict[int, int]:
    """Page → the bytes of ARC from which on it is warmed."""
    found = ranges(trace)
    assert found.arc.tolist() == sorted(found.arc.tolist(), reverse=True)  # what each ARC has comes last
    return dict(zip((found.offset // PAGE).tolist(), found.arc.tolist(), strict=True))


def test_what_is_read_once_is_in_an_arc_as_its_part_of_the_host_s_cache(tmp_path: Path) -> None:
    events = [call(i, 16 * i) for i in range(64)]
    for environment, cache in (
        ({"memory": LARGE // 2}, LARGE // 2),
        ({"memory": LARGE, "arc_max": LARGE // 4}, LARGE // 4),
        ({"memory": 8 * LARGE}, LARGE + 10_000 * PAGE),  # no more than the files, without the log
        ({}, LARGE + 10_000 * PAGE),
        ({"memory": "much"}, LARGE + 10_000 * PAGE),
    ):
        name = f"{len(list(tmp_path.iterdir()))}.trace"
        found = needed(recorded(tmp_path / name, events, environment=environment))
        assert sorted(found.values()) == [cache * (i + 1) // 64 for i in range(64)]


def test_what_is_read_again_is_in_each_arc_with_room_for_it_however_large_the_database_is(
    tmp_path: Path,
) -> None:
    hot = [call(3 * n * S + i, 16 * i) for i in range(64) for n in range(2 + i % 2)]
    # Some are read in small pieces, and before what the disk reads ahead could be gone.
    once = [call(10_000 + n, page, size=PAGE // 4) for page in (100_000, 110_000) for n in range(4)]
    memory = {"memory": 256 << 30}
    found = needed(recorded(tmp_path / "a.trace", [*hot, *once], 2 << 40, environment=memory))
    by_need = sorted(found, key=lambda page: found[page])
    assert {page // 16 % 2 for page in by_need[:32]} == {1}  # read three times
    assert [found[page] for page in by_need[:64]] == [PAGE * (i + 1) for i in range(64)]
    half = ((256 << 30) - 64 * PAGE) // 2
    assert [found[page] for page in by_need[64:]] == [64 * PAGE + half, 256 << 30]


def test_a_region_of_a_recording_by_sample_counts_as_what_it_stands_for(tmp_path: Path) -> None:
    times = {0: 2, 3: 3}  # how often a file is read
    events = [call(3 * n * S + 1, 10, file=file) for file, often in times.items() for n in range(often)]
    trace = recorded(tmp_path / "a.trace", events, sample={"of": 64, "region": 1 << 20})
    entries = [one.model_copy(update={"sampled": one.id == 0}) for one in trace.manifest.files]
    sampled = trace.manifest.model_copy(update={"files": entries})
    object.__setattr__(trace, "manifest", sampled)
    assert sorted(ranges(trace).arc.tolist()) == [PAGE, PAGE + 64 * PAGE]


def test_of_more_blocks_than_are_told_apart_some_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [call(i, 64 * i, SLOW if i % 2 else FAST) for i in range(400)]
    trace = recorded(tmp_path / "a.trace", events)
    whole = told(trace)
    monkeypatch.setattr(first_reads, "BLOCKS", 300)  # of 800
    monkeypatch.setattr(first_reads, "_AT_A_TIME", 64)
    found = ranges(trace)
    pages = {(at // PAGE, size) for at, size in zip(found.offset.tolist(), found.size.tolist(), strict=True)}
    assert 50 < len(pages) < 150 and {page for page, _ in pages} <= {page for page, _ in whole}
    assert {size for _, size in pages} <= {first_reads.BLOCK, PAGE}


def test_a_cut_into_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        call(i * 100 * MS, 37 * i % 50, SLOW if i % 3 else FAST, size=(i % 5 + 1) * PAGE) for i in range(300)
    ]
    trace = recorded(tmp_path / "a.trace", events)
    whole = ranges(trace)
    monkeypatch.setattr(first_reads, "_AT_A_TIME", 7)
    again = ranges(trace)
    assert len(whole)
    for one in fields(CachedRanges):
        assert getattr(again, one.name).tolist() == getattr(whole, one.name).tolist()


def test_an_export_has_it_first_and_says_so(tmp_path: Path) -> None:
    trace = recorded(
        tmp_path / "a.trace", [call(1, 10), call(2, 300, op=Op.WRITE)], environment={"memory": LARGE}
    )
    inputs = prepare(trace)
    header, records = read_ops(inputs.ops)
    warm = records[records["op"] == Op.WARM]
    assert (
        header["nops"][0] == len(records) == 2 + len(warm) and (records["op"][: len(warm)] == Op.WARM).all()
    )
    assert warm["size"].sum() == 2 * PAGE and warm["arc"].max() == LARGE // (1 << 20) + 1
    assert not any("0.0 MiB" in text for text in inputs.warnings)
    assert any("begins with an empty ARC" in text for text in inputs.warnings)
    assert prepare(trace).warnings == inputs.warnings  # kept with it
    nothing = prepare(recorded(tmp_path / "b.trace", [call(1, 10, SLOW)]))
    assert any("begins with an empty ARC" in text for text in nothing.warnings)
    known = prepare(recorded(tmp_path / "c.trace", [call(1, 10)], warnings=[]))
    warm = {"t": 0, "op": Op.WARM, "file": 0, "offset": 10 * PAGE, "size": PAGE}
    stretch = prepare(recorded(tmp_path / "d.trace", [warm, call(1, 10)]))  # its caches are warmed by that
    for inputs in (known, stretch):
        assert not any("caches" in text or "ARC" in text for text in inputs.warnings)


def test_screen_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    events = [call(i * MS, 16 * i % 1001) for i in range(300)]
    events += [call(i * MS + 1, i, op=Op.WRITE, file=1) for i in range(300)]
    trace = recorded(tmp_path / "a.trace", events, duration_ns=S)
    code, _, err = invoke("screen", str(trace.path), "--budget", "1", "--no-elsewhere", "--arc", "128M")
    assert code == 0, err
    with Store.open() as store:
        run = store.run()
    assert run.trace_sha == trace.sha
    assert any("of what is used lay in caches" in text for text in run.warnings)
