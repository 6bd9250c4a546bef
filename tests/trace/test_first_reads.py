"""What first reads tell of the caches of a server that was recorded while it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import invoke
from synthetic_traces import STAND_IN
from trace_builder import MS, S, build, files

from ztune.store.db import Store
from ztune.trace import first_blocks, first_reads
from ztune.trace.manifest import COLD, FIRST_READS, Warning_
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op, Via
from ztune.trace.warm_share import WHOLE, share

PAGE = 8192
FAST, SLOW = 5_000, 4 * MS
LARGE = 1 << 30


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))


def call(t: int, page: int, dur: int = FAST, op: Op = Op.READ, **more: int) -> dict[str, int]:
    size = more.pop("size", PAGE)
    return {"t": t, "dur": dur, "op": op, "offset": page * PAGE, "size": size, **more}


def recorded(path: Path, events: Sequence[Mapping[str, int]], **fields: Any) -> Trace:
    entries = files(("/db/data", "data", LARGE), ("/db/log", "wal", LARGE), ("/db/new", "data", 0))
    said = [Warning_(code=COLD, message="It is cold.")]
    return build(path, events, entries, **{"warnings": said, **fields})


def told(trace: Trace, file: int = 0) -> list[tuple[int, int]]:
    """First page and number of pages of what was cached, by its place in the file."""
    have = first_reads.with_caches(trace).columns("op", "file", "offset", "size")
    rows = (have["op"] == Op.WARM) & (have["file"] == file)
    return sorted(
        zip((have["offset"][rows] // PAGE).tolist(), (have["size"][rows] // PAGE).tolist(), strict=True)
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
            call(6, 40, first_blocks.HIT_NS + PAGE),
            call(7, 50, first_blocks.HIT_NS + PAGE - 1),
        ],
    )
    assert told(trace) == [(10, 1), (30, 4), (50, 1)]


def test_it_is_a_trace_of_the_same_events_that_says_what_it_knows(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "a.trace", [call(1, 10), call(2, 300, op=Op.WRITE)])
    found = first_reads.with_caches(trace)
    assert [one.code for one in found.manifest.warnings] == [FIRST_READS]
    assert "took no disk's time show that 0.0 MiB of what it uses" in found.manifest.warnings[0].message
    assert found.manifest.duration_ns == trace.manifest.duration_ns
    have = found.columns()
    kept = have["op"] != Op.WARM
    for name, values in trace.columns().items():
        assert have[name][kept].tolist() == values.tolist()
    assert not kept[0] and not have["t"][~kept].any()
    # It is made once, and nothing more is told of it.
    assert [one.path for one in first_reads.made_of(trace)] == [found.path]
    assert first_reads.with_caches(trace).path == found.path
    assert first_reads.with_caches(found) is found


def test_where_nothing_is_told_the_trace_stays(tmp_path: Path) -> None:
    known = recorded(tmp_path / "a.trace", [call(1, 10)], warnings=[])
    slow = recorded(tmp_path / "b.trace", [call(1, 10, SLOW), call(2, 20, op=Op.WRITE)])
    empty = recorded(tmp_path / "c.trace", [])
    for one in (known, slow, empty):
        assert first_reads.with_caches(one) is one and not first_reads.made_of(one)


def test_what_may_have_been_read_ahead_goes_by_the_first(tmp_path: Path) -> None:
    def scan(t: int, page: int, *durations: int, step: int = MS) -> list[dict[str, int]]:
        return [call(t + i * step, page + i, dur) for i, dur in enumerate(durations)]

    trace = recorded(
        tmp_path / "a.trace",
        [
            *scan(0, 100, SLOW, FAST, FAST, FAST),
            *scan(10 * MS, 200, FAST, FAST, FAST),
            *scan(20 * MS, 300, FAST, FAST, SLOW),
            *scan(30 * MS, 400, SLOW, FAST, FAST, step=first_blocks.AHEAD_NS),
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


def test_a_log_and_what_was_not_there_are_left_out(tmp_path: Path) -> None:
    events = [
        call(1, 10, file=1),
        call(2, 10, file=2, op=Op.WRITE),
        call(3, 10, file=2),
        call(4, LARGE // PAGE - 1, size=4 * PAGE),  # it grows: what there was is its last page
        call(5, 1000, size=first_blocks.LARGEST + 1),
    ]
    trace = recorded(tmp_path / "a.trace", events)
    assert told(trace) == [(LARGE // PAGE - 1, 1)]
    assert told(trace, 1) == told(trace, 2) == []


def test_what_is_used_most_is_warmed_last_and_stays_in_the_smallest_cache(tmp_path: Path) -> None:
    events = [call(100 * i + n, 16 * i) for i in range(10) for n in range(i + 1)]
    have = first_reads.with_caches(recorded(tmp_path / "a.trace", events)).columns("op", "offset", "dur")
    warm = have["op"] == Op.WARM
    assert (have["offset"][warm] // (16 * PAGE)).tolist() == list(range(10))
    assert have["dur"][warm].tolist() == [WHOLE * (10 - i) // 10 for i in range(10)]


def test_more_blocks_than_are_told_apart_become_larger_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [call(i, 64 * i, SLOW if i % 2 else FAST) for i in range(100)]
    fine = recorded(tmp_path / "a.trace", events)
    assert len(told(fine)) == 50 and {n for _, n in told(fine)} == {1}
    monkeypatch.setattr(first_blocks, "BLOCKS", 100)
    monkeypatch.setattr(first_blocks, "_AT_A_TIME", 64)
    rows = first_blocks.cached(fine)
    assert sorted((rows["offset"] // PAGE).tolist()) == [64 * i for i in range(0, 100, 2)]
    assert set((rows["size"] // PAGE).tolist()) == {1}
    monkeypatch.setattr(first_blocks, "BLOCKS", 12)  # several pages are one: that of the first read counts
    rows = first_blocks.cached(fine)
    assert 0 < len(rows) <= 12 and int(np.gcd.reduce(rows["size"])) % (8 * 64 * PAGE) == 0


def test_a_cut_into_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [call(i, 37 * i % 500, SLOW if i % 3 else FAST, size=(i % 5 + 1) * PAGE) for i in range(300)]
    trace = recorded(tmp_path / "a.trace", events)
    whole = first_blocks.cached(trace)
    monkeypatch.setattr(first_blocks, "_AT_A_TIME", 7)
    assert len(whole) and first_blocks.cached(trace).tolist() == whole.tolist()


def test_how_much_of_it_an_arc_has(tmp_path: Path) -> None:
    def of(environment: dict[str, Any], arc: int) -> float:
        trace = recorded(tmp_path / f"{len(list(tmp_path.iterdir()))}.trace", [], environment=environment)
        return share(trace.manifest, arc)

    assert of({"memory": LARGE // 2}, LARGE // 8) == 0.25  # its cache, at most
    assert of({"memory": 8 * LARGE}, LARGE // 8) == 0.125  # no more than the files, without the log
    assert of({"memory": LARGE, "arc_max": LARGE // 4}, LARGE // 8) == 0.5
    assert of({"memory": LARGE}, 2 * LARGE) == 1.0
    assert of({}, LARGE // 8) == 0.125
    assert of({"memory": "much"}, LARGE // 8) == 0.125


def test_screen_replays_it_and_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    events = [call(i * MS, 16 * i % 1000) for i in range(300)]
    events += [call(i * MS + 1, i, op=Op.WRITE, file=1) for i in range(300)]
    trace = recorded(tmp_path / "a.trace", events, duration_ns=S, environment={"memory": LARGE})
    ask = ("screen", str(trace.path), "--budget", "1", "--no-elsewhere", "--arc", "128M")
    monkeypatch.setenv("STAND_IN", "crash=131072")
    code, _, err = invoke(*ask)
    assert code, err
    monkeypatch.delenv("STAND_IN")
    code, _, err = invoke("screen", str(trace.path), "--resume")
    assert code == 0, err
    with Store.open() as store:
        run = store.run()
        [trial, *_] = store.trials(run.id)
    assert Trace.open(run.trace_path).sha == first_reads.made_of(trace)[0].sha
    assert any("told from its first reads" in text for text in run.warnings)
    assert not any("It is cold" in text for text in run.warnings)
    assert trial.spec is not None and trial.spec["warm"] == WHOLE // 8
