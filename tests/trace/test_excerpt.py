"""Windows out of a long recording: which they are, and what a trace of them has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from invoked import invoke
from synthetic_traces import STAND_IN, make_trace
from trace_builder import S, build, files

from ztune.errors import InputError
from ztune.store.db import Store
from ztune.trace import excerpt
from ztune.trace.excerpt import Stretch
from ztune.trace.manifest import WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.schema import Op

LOG_SIZE = 1 << 20


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))


def each_second(seconds: int, busy: Mapping[range, int] = {}) -> list[dict[str, int]]:
    """A read, and the write and sync of a log, in each second; in the ``busy`` ones more writes of data."""
    events = []
    for second in range(seconds):
        writes = next((n for when, n in busy.items() if second in when), 1)
        events.append({"t": second * S, "op": Op.READ, "file": 0, "offset": second * 8192, "size": 8192})
        events += [
            {"t": second * S + n, "op": Op.WRITE, "file": 0, "offset": second * 8192, "size": 8192}
            for n in range(1, writes + 1)
        ]
        events.append({"t": second * S + S // 2, "op": Op.FSYNC, "file": 1})
    return events


def recorded(path: Path, events: list[dict[str, int]], seconds: int, **fields: object) -> Trace:
    entries = files(("/db/data", "data", 1 << 30), ("/db/log", "wal", LOG_SIZE))
    return build(path, events, entries, duration_ns=seconds * S, started_unix_ns=1000 * S, **fields)


def said(trace: Trace) -> str:
    return trace.manifest.warnings[-1].message


def test_windows_have_their_events_and_follow_each_other(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "a.trace", each_second(100), 100)
    found = excerpt.of(whole, Stretch(4, 5.0))
    manifest = found.manifest
    assert manifest.duration_ns == 20 * S
    assert [one.t for one in manifest.windows] == [0, 5 * S, 10 * S, 15 * S]
    begins = [one.started_unix_ns - 1000 * S for one in manifest.windows]
    assert {b - a for a, b in itertools.pairwise(begins)} == {25 * S}
    want = [
        (t - begin + number * 5 * S, offset)
        for number, begin in enumerate(begins)
        for t, offset in zip(
            *(whole.columns("t", "offset")[name].tolist() for name in ("t", "offset")), strict=True
        )
        if begin <= t < begin + 5 * S
    ]
    have = found.columns("t", "offset", "op", "file")
    warming = have["op"] == Op.WARM
    assert list(zip(*(have[name][~warming].tolist() for name in ("t", "offset")), strict=True)) == want
    # A read and a write in each second before, and nothing of the log.
    before = [n for n in range(100) if n * S < begins[0]]
    assert len(before) >= 5
    assert have["offset"][warming].tolist() == [8192 * n for n in before for _ in range(2)]
    assert set(have["file"][warming].tolist()) == {0}
    assert said(found).startswith(
        "Of the 100.0 s that were recorded 4 windows of 5.0 s are replayed, 20.00% of the time, with 20.00%"
    )


def test_the_same_windows_are_made_once(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "a.trace", each_second(100), 100)
    found = excerpt.of(whole, Stretch(4, 5.0))
    assert excerpt.of(whole, Stretch(4, 5.0)).sha == found.sha
    assert [one.sha for one in excerpt.made_of(whole)] == [found.sha]
    other = excerpt.of(whole, Stretch(2, 5.0))
    assert {one.sha for one in excerpt.made_of(whole)} == {found.sha, other.sha}


def test_they_have_as_much_of_what_is_done_now_and_then_as_of_the_time(tmp_path: Path) -> None:
    # A checkpoint of five seconds in each fifty: windows of ten may have all of both, or none.
    events = each_second(100, {range(20, 25): 100, range(70, 75): 100})
    found = excerpt.of(recorded(tmp_path / "a.trace", events, 100), Stretch(2, 10.0))
    writes = int((found.columns("op")["op"] == Op.WRITE).sum())
    assert writes == pytest.approx(0.2 * sum(e["op"] == Op.WRITE for e in events), rel=0.25)


def test_of_a_recording_by_windows_it_has_the_first_of_each_chosen_one(tmp_path: Path) -> None:
    windows = [
        {"t": n * 10 * S, "duration_ns": 10 * S, "started_unix_ns": (1000 + 3600 * n) * S} for n in range(10)
    ]
    whole = recorded(tmp_path / "a.trace", each_second(100), 100, windows=windows)
    found = excerpt.of(whole, Stretch(5, 4.0)).manifest.windows
    hours = [(one.started_unix_ns / S - 1000) / 3600 for one in found]
    assert {round(b - a, 6) for a, b in itertools.pairwise(hours)} == {2.0}
    assert hours[0] in (0.0, 1.0)
    assert {one.duration_ns for one in found} == {4 * S}


def test_it_stays_known_which_file_is_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excerpt, "_BEGINS", 1)  # [2 s, 4 s) and [12 s, 14 s)
    names = ("kept", "grown", "renamed", "passing", "made", "gone", "late", "early", "log")
    kept, grown, renamed, passing, made, gone, late, early, log = range(len(names))
    entries = files(*((f"/db/{name}", "wal" if name == "log" else "data", 8192) for name in names))
    for number in (passing, made):
        entries[number] |= {"created": True, "size_start": 0}
    for number in (passing, gone, late, early):
        entries[number] |= {"deleted": True}
    page = {"offset": 0, "size": 8192}
    events = [
        {"t": 0, "op": Op.WARM, "file": kept, **page},
        {"t": S, "op": Op.READ, "file": kept, **page},
        {"t": S, "op": Op.WRITE, "file": log, **page},
        {"t": S, "op": Op.READ, "file": early, **page},
        {"t": S + 1, "op": Op.UNLINK, "file": early},
        {"t": 3 * S, "op": Op.READ, "file": gone, **page},
        {"t": 10 * S, "op": Op.WRITE, "file": grown, "offset": 8192, "size": 8192},
        {"t": 10 * S, "op": Op.RENAME, "file": renamed, "file2": kept},
        {"t": 10 * S, "op": Op.CREATE, "file": passing},
        {"t": 10 * S + 1, "op": Op.UNLINK, "file": passing},
        {"t": 10 * S, "op": Op.CREATE, "file": made},
        {"t": 10 * S, "op": Op.UNLINK, "file": gone},
        {"t": 13 * S, "op": Op.READ, "file": grown, "offset": 8192, "size": 8192},
        {"t": 13 * S, "op": Op.READ, "file": made, **page},
        {"t": 19 * S, "op": Op.UNLINK, "file": late},
    ]
    events = sorted(events, key=lambda event: event["t"])
    whole = build(tmp_path / "a.trace", events, entries, duration_ns=20 * S)
    found = excerpt.of(whole, Stretch(2, 2.0))
    have = found.columns("op", "file", "t")
    rows = list(zip(*(have[name].tolist() for name in ("op", "file")), strict=True))
    between = [(Op.RENAME, renamed), (Op.UNLINK, gone)]
    assert rows[:3] == [(Op.WARM, kept), (Op.WARM, kept), (Op.UNLINK, early)]
    assert rows[3] == (Op.READ, gone)
    assert sorted(rows[4:6]) == sorted(between)
    assert rows[6:] == [(Op.READ, grown), (Op.READ, made)]
    manifest = {name: found.manifest.files[number] for number, name in enumerate(names)}
    assert manifest["passing"].role is None
    assert (manifest["made"].created, manifest["made"].size_start) == (False, 8192)
    assert manifest["grown"].size_start == 16384
    assert (manifest["gone"].deleted, manifest["late"].deleted) == (True, False)


def test_of_a_long_recording_by_windows_some_of_them_are_replayed(tmp_path: Path) -> None:
    windows = [{"t": n * 60 * S, "duration_ns": 60 * S, "started_unix_ns": 3600 * n * S} for n in range(24)]
    one = recorded(tmp_path / "a.trace", each_second(1), 24 * 60, windows=windows).manifest
    found = excerpt.usual(one.model_copy(update={"events": 2 * excerpt.CALLS}))
    assert str(found) == "6x60s"


@pytest.mark.parametrize(
    ("events", "seconds", "windows"),
    [
        (excerpt.CALLS, 100, None),
        (5 * excerpt.CALLS, 500, "1x50s"),
        (50 * excerpt.CALLS, 86_400, "1x864s"),
        (50 * excerpt.CALLS, 100, "1x1s"),
    ],
)
def test_how_much_of_a_long_recording_is_replayed(
    tmp_path: Path, events: int, seconds: int, windows: str | None
) -> None:
    one = recorded(tmp_path / "a.trace", each_second(1), seconds).manifest
    found = excerpt.usual(one.model_copy(update={"events": events}))
    assert (None if found is None else str(found)) == windows


def test_windows_are_not_taken_out_of_windows(tmp_path: Path) -> None:
    found = excerpt.of(recorded(tmp_path / "a.trace", each_second(100), 100), Stretch(1, 5.0)).manifest
    assert excerpt.usual(found.model_copy(update={"events": 2 * excerpt.CALLS})) is None


def test_a_recording_of_a_workload_is_replayed_whole(tmp_path: Path) -> None:
    job = WorkloadInfo(name="fio")
    one = recorded(tmp_path / "a.trace", each_second(100), 100, workload=job)
    assert excerpt.usual(one.manifest.model_copy(update={"events": 10 * excerpt.CALLS})) is None
    with pytest.raises(InputError, match="is of the workload fio, whose operations were counted over all"):
        excerpt.of(one, Stretch(2, 2.0))


@pytest.mark.parametrize("text", ["", "6", "6x", "x20", "0x20s", "6x0s", "6x20m", "-1x20s", "6x1e3", "some"])
def test_what_is_no_windows(text: str) -> None:
    with pytest.raises(InputError, match="should be such as 6x20s, six windows of 20 seconds, or all"):
        excerpt.parse(text)


def test_more_time_than_there_is(tmp_path: Path) -> None:
    one = recorded(tmp_path / "a.trace", each_second(100), 100)
    with pytest.raises(InputError, match=r"--windows 6x20s is more than the 100.0 s of"):
        excerpt.of(one, Stretch(6, 20.0))
    assert not excerpt.made_of(one)


def test_a_file_is_as_it_was_when_the_first_window_began(tmp_path: Path) -> None:
    def cut(second: int, size: int) -> dict[str, int]:
        return {"t": second * S + 1, "op": Op.TRUNCATE, "file": 0, "size": size}

    def written(second: int, pages: int) -> dict[str, int]:
        return {"t": second * S + 2, "op": Op.WRITE, "file": 0, "offset": 0, "size": pages * 8192}

    def cuts(name: str, *events: dict[str, int]) -> list[tuple[int, int]]:
        read = {"t": 99 * S, "op": Op.READ, "file": 0, "offset": 0, "size": 8192}
        # Nothing but the end has what the whole has, so that it is the window.
        many = [{"t": 98 * S + n, "op": Op.READ, "file": 0, "offset": 0, "size": 8192} for n in range(500)]
        found = excerpt.of(recorded(tmp_path / name, [*events, *many, read], 100), Stretch(1, 10.0))
        have = found.columns("t", "op", "size")
        rows = have["op"] == Op.TRUNCATE
        return list(zip(have["t"][rows].tolist(), have["size"][rows].tolist(), strict=True))

    assert cuts("a.trace", cut(1, 0), written(2, 4)) == []
    assert cuts("b.trace", cut(1, 0), written(2, 4), cut(3, 8192)) == [(0, 8192)]
    assert cuts("c.trace", cut(1, 8192), cut(2, 16384), written(3, 2)) == [(0, 16384)]
    assert cuts("d.trace", written(1, 4), cut(2, 8192)) == [(0, 8192)]


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorded(tmp_path / "a.trace", each_second(100), 100)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ztune.trace.writer.write_synced", full)
    with pytest.raises(Exception, match="no space left for the trace"):
        excerpt.of(one, Stretch(2, 2.0))
    assert not list((tmp_path / "home" / "traces").iterdir())


def test_screen_takes_windows_of_a_long_recording_and_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZTUNE_ENGINE", str(STAND_IN))
    monkeypatch.setattr(excerpt, "CALLS", 700)
    monkeypatch.setattr(excerpt, "IN_WINDOWS", 360)
    trace = make_trace(tmp_path / "long.trace", writes=240, step_ns=S)  # 720 events in 240 s
    ask = ("screen", str(trace.path), "--budget", "1", "--no-elsewhere", "--arc", "64M")
    code, _, err = invoke(*ask)
    assert code == 0, err
    assert "Of the 240.0 s that were recorded 1 window of 120.0 s is replayed, 50.00% of the time" in err
    assert "--windows all replays everything." in err
    with Store.open() as store:
        run = store.run()
    assert Trace.open(run.trace_path).manifest.duration_ns == 120 * S
    assert any("window of" in text for text in run.warnings)
    code, _, err = invoke("screen", str(trace.path), "--resume")
    assert (code, "there is no run of" in err) == (2, True)  # it is done; one that was cut is found:
    monkeypatch.setenv("STAND_IN", "crash=131072")
    code, _, err = invoke(*ask, "--name", "cut")
    monkeypatch.delenv("STAND_IN")
    code, out, err = invoke("screen", str(trace.path), "--resume")
    assert code == 0, err
    assert "cut" in out
    for whole in (("--windows", "all"), ("--sample", "1/1")):
        code, _, err = invoke(*ask, *whole)
        assert (code, "window" in err) == (0, False)
    code, _, err = invoke(*ask, "--windows", "2x5s", "--with", str(trace.path))
    assert (code, "--windows can't be replayed with --with" in err) == (2, True)
