from __future__ import annotations

import shutil
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import MS, S, build, files

from ztune.errors import InputError
from ztune.trace.event_counts import EventCounts
from ztune.trace.figures import GroupSummary, Summary, Transfers
from ztune.trace.reader import Trace
from ztune.trace.schema import VERSION, Flag, Op, Via
from ztune.trace.summary import MOST_BINS, summarise

K = 1024


def summary(
    tmp_path: Path, events: list[dict[str, int]], *entries: tuple[str, str | None, int], **fields: object
) -> Summary:
    spaced = [{"t": index * MS, **event} for index, event in enumerate(events)]
    trace = build(tmp_path / "s.trace", spaced, files(*(entries or (("/d", "data", 0),))), **fields)
    return summarise(trace)


def role(summary: Summary, name: str = "data") -> GroupSummary:
    return next(group for group in summary.roles if group.name == name)


def write(offset: int, size: int, **more: int) -> dict[str, int]:
    return {"op": Op.WRITE, "offset": offset, "size": size, **more}


def read(offset: int, size: int, **more: int) -> dict[str, int]:
    return {"op": Op.READ, "offset": offset, "size": size, **more}


def test_sizes_are_counted_by_power_of_two_as_quantize_does(tmp_path: Path) -> None:
    # The two modes of the orientdb-import study's WAL: single bytes and 64 KiB.
    sizes = [1, 1, 1, 65536, 65537, 131071, 131072, 2, 3, 4, 0]
    writes = role(summary(tmp_path, [write(0, size) for size in sizes])).writes
    assert writes.sizes == {0: 1, 1: 3, 2: 2, 4: 1, 65536: 3, 131072: 1}
    assert writes.size_bytes == {0: 0, 1: 3, 2: 5, 4: 4, 65536: 65536 + 65537 + 131071, 131072: 131072}
    assert writes.count == 11
    assert writes.bytes == sum(sizes)
    assert writes.mean == pytest.approx(sum(sizes) / 11)


def calls(found: Transfers) -> dict[str, tuple[int, int, float, float]]:
    return {name: (c.count, c.bytes, c.mean, c.stdev) for name, c in found.by_call.items()}


def by_numpy(sizes: list[int]) -> tuple[int, int, float, float]:
    numbers = np.array(sizes, np.float64)
    return len(sizes), sum(sizes), round(float(numbers.mean()), 3), round(float(numbers.std()), 3)


def test_mean_and_deviation_by_call_are_numpys(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    how: dict[str, dict[str, int]] = {
        "write": {},
        "pwrite": {"flags": Flag.POSITIONED | Flag.SYNC},
        "aio": {"via": Via.AIO, "flags": Flag.DIRECT},
        "io_uring": {"via": Via.URING},
    }
    sizes = {
        name: [int(size) for size in draw.lognormal(9, 2, n)]
        for name, n in zip(how, (400, 300, 200, 100), strict=True)
    }
    events = [write(0, size, file=size % 2, **how[name]) for name in how for size in sizes[name]]
    events += [read(0, size, flags=Flag.POSITIONED) for size in (1, 2, 4)]
    events += [{"op": Op.FSYNC, "via": Via.AIO}]
    result = summary(tmp_path, events, ("/a", "data", 0), ("/b", "data", 0))
    writes = role(result).writes
    assert calls(writes) == {name: by_numpy(found) for name, found in sizes.items()}
    assert list(writes.by_call) == list(how), "most calls first"
    together = [size for found in sizes.values() for size in found]
    assert (writes.count, writes.bytes, writes.mean, writes.stdev) == by_numpy(together)
    assert calls(role(result).reads) == {"pread": by_numpy([1, 2, 4])}
    assert role(result).operations == {"read": 3, "write": 1000, "fsync": 1}
    for entry in result.files:
        mine = [size for size in together if size % 2 == (entry.name == "/b")]
        assert (entry.writes.count, entry.writes.bytes, entry.writes.mean, entry.writes.stdev) == by_numpy(
            mine
        )
    assert result.to_json()["roles"][0]["writes"]["by_call"]["aio"]["stdev"] == by_numpy(sizes["aio"])[3]


def test_sizes_that_no_float_holds_have_an_exact_deviation(tmp_path: Path) -> None:
    large = 1 << 59
    writes = role(summary(tmp_path, [write(0, large), write(0, large + 2)])).writes
    assert writes.stdev == 1.0


PUBLISHED = Path(__file__).parents[2] / "studies/published"
BY_CALL = {
    "orientdb-import": {"write": "write-data", "pwrite": "pwrite-data"},
    "orientdb-graph": {"write": "writes-data-write", "pwrite": "writes-data-pwrite"},
}


@pytest.mark.parametrize("study", BY_CALL)
def test_a_published_histogram_by_call_comes_out_in_its_own_shape(tmp_path: Path, study: str) -> None:
    """What the studies counted by call, as a trace: the same sizes by call, and numpy's mean of them."""
    found = tomllib.loads((PUBLISHED / f"{study}.toml").read_text())["histogram"]
    published = {h["name"]: {int(low): n for low, n in h["counts"].items()} for h in found}
    events, expected, sizes = [], {}, {}
    for call, name in BY_CALL[study].items():
        # A fiftieth of them, and at least one: the shape, not the length of the import.
        expected[call] = {low: -(-n // 50) for low, n in published[name].items()}
        sizes[call] = [low for low, n in expected[call].items() for _ in range(n)]
        flags = Flag.POSITIONED if call == "pwrite" else 0
        events += [write(0, size, flags=flags, t=0) for size in sizes[call]]
    writes = role(summary(tmp_path, events)).writes
    assert {call: one.sizes for call, one in writes.by_call.items()} == expected
    assert calls(writes) == {call: by_numpy(found) for call, found in sizes.items()}


def test_an_older_trace_does_not_say_whether_it_was_write_or_pwrite(tmp_path: Path) -> None:
    events = [write(0, 3), write(0, 5), write(0, 7, via=Via.AIO)]
    trace = build(tmp_path / "old.trace", events, files(("/d", "data", 0)))
    manifest = trace.path / "trace.json"
    manifest.write_text(manifest.read_text().replace(f'"version": {VERSION}', '"version": 2'))
    writes = role(summarise(Trace.open(trace.path))).writes
    assert calls(writes) == {"write or pwrite": by_numpy([3, 5]), "aio": by_numpy([7])}


def test_sequential_is_per_file_and_kind(tmp_path: Path) -> None:
    events = [
        write(0, 10),  # the first is not
        read(10, 10),  # continues no read
        write(10, 5),  # continues the write before the read
        write(100, 5, file=1),
        write(15, 1),  # continues, though another file came between
        write(15, 1),  # the same again does not
        read(20, 1),  # continues the read
    ]
    result = summary(tmp_path, events, ("/a", "data", 0), ("/b", "data", 0))
    assert role(result).writes.sequential == pytest.approx(2 / 5)
    assert role(result).reads.sequential == pytest.approx(1 / 2)


def test_writes_of_one_time_wait_for_a_sync_in_one_row(tmp_path: Path) -> None:
    events = [write(0, 1, t=S, file=file) for file in (0, 0, 0, 1, 1)] + [{"op": Op.FSYNC, "t": 2 * S}]
    trace = build(tmp_path / "s.trace", events, files(("/a", "data", 0), ("/b", "data", 0)))
    tally = EventCounts(trace.manifest.files, ())
    (part,) = trace.parts()
    for _ in range(3):
        tally.add({name: values[:5] for name, values in part.items()})
    assert len(tally._waiting["t"]) == 6
    tally.add({name: values[5:] for name, values in part.items()})
    tally.finish()
    assert tally.of_file["sync_writes"].tolist() == tally.of_file["sync_write_bytes"].tolist() == [9, 0]


def test_synchronous_writes(tmp_path: Path) -> None:
    events = [
        write(0, 1, t=0),  # synced at exactly 5 s: yes
        {"op": Op.FDATASYNC, "t": 5 * S},
        write(0, 2, t=5 * S + 1),  # synced 5 s and 1 ns after: no
        {"op": Op.FSYNC, "t": 10 * S + 2},
        write(0, 4, t=11 * S),  # never synced: no
        write(0, 8, t=11 * S, flags=Flag.SYNC),
        write(0, 16, t=11 * S, flags=Flag.DSYNC | Flag.DIRECT),
        write(0, 32, t=11 * S, flags=Flag.DIRECT),
        write(0, 64, t=12 * S, file=1),  # another file's sync is not its own
        {"op": Op.FSYNC, "t": 12 * S + 1, "file": 2},
        write(0, 128, t=13 * S, file=1),
        {"op": Op.SYNC_RANGE, "t": 13 * S + 1, "file": 1},  # promises nothing
        write(0, 256, t=30 * S, file=1),
        {"op": Op.MSYNC, "t": 31 * S, "file": 1},
    ]
    result = summary(
        tmp_path, events, ("/a", "data", 0), ("/b", "wal", 0), ("/c", "temp", 0), duration_ns=40 * S
    )
    assert role(result).sync_write_bytes == 1 + 8 + 16
    assert role(result).sync_writes == 3
    assert role(result).sync_share == pytest.approx(3 / 6)
    assert role(result).syncs == 2
    assert role(result, "wal").sync_write_bytes == 256
    assert role(result, "wal").operations == {"write": 3, "sync_range": 1, "msync": 1}


def test_a_sync_of_everything_counts_for_every_file(tmp_path: Path) -> None:
    events = [
        write(0, 1, t=0),
        write(0, 2, t=1 * S, file=1),
        {"op": Op.SYNC, "file": -1, "t": 6 * S},
        write(0, 4, t=7 * S),
    ]
    result = summary(tmp_path, events, ("/a", "data", 0), ("/b", "wal", 0))
    assert role(result).sync_write_bytes == 0
    assert role(result, "wal").sync_write_bytes == 2
    assert result.global_syncs == 1


def test_overwritten_is_what_lies_below_the_size_at_that_time(tmp_path: Path) -> None:
    events = [
        write(0, 100),  # 100 below 1000
        write(950, 100),  # 50 below, and the file is 1050 now
        write(1050, 10),  # appends: 1060
        write(1050, 10),  # over what was just appended: 10
        {"op": Op.TRUNCATE, "size": 500},
        write(400, 200),  # 100; 600 now
        write(2000, 1),  # leaves a gap; 2001 now
        write(1000, 5),  # in the gap, but below the size: 5
        {"op": Op.FALLOCATE, "offset": 0, "size": 3000},
        write(2500, 7),  # allocated: 7
        {"op": Op.FALLOCATE, "offset": 0, "size": 9000, "flags": Flag.KEEP_SIZE},
        write(5000, 3),  # 0; 5003 now
        {"op": Op.COPY, "offset": 6000, "size": 1000, "file2": -1},
        write(6999, 2),  # 1
        write(50, 5, file=1),  # of another file: 5 below 60
    ]
    result = summary(tmp_path, events, ("/a", "data", 1000), ("/b", "data", 60))
    assert role(result).overwritten_bytes == 100 + 50 + 10 + 100 + 5 + 7 + 1 + 5
    [a] = [group for group in result.files if group.name == "/a"]
    assert a.overwritten_bytes == 273
    assert a.overwrite_share == pytest.approx(273 / (100 + 100 + 10 + 10 + 200 + 1 + 5 + 7 + 3 + 2))


def test_a_created_file_starts_empty(tmp_path: Path) -> None:
    events: list[dict[str, int]] = [{"op": Op.CREATE}, write(0, 10), write(5, 10)]
    assert role(summary(tmp_path, events)).overwritten_bytes == 5


def test_alignment_needs_offset_and_size(tmp_path: Path) -> None:
    events = [
        write(8 * K, 8 * K),
        write(4 * K, 8 * K),
        write(0, 4 * K),
        write(512, 512),
        write(1, 8 * K),
        write(8 * K, 3),
    ]
    writes = role(summary(tmp_path, events, page_size={"data": 12288})).writes
    assert writes.aligned == {
        512: pytest.approx(4 / 6, abs=1e-6),
        4 * K: 0.5,
        8 * K: pytest.approx(1 / 6, abs=1e-6),
        12288: 0.0,
    }


def test_the_working_set_counts_each_page_once(tmp_path: Path) -> None:
    events = [
        read(0, 1),
        read(4095, 2),  # pages 0 and 1
        read(40960, 8192),  # 10, 11
        write(4096, 4096),  # 1
        write(1, 0),  # none
        write(2**50, 1),
        read(0, 4096, file=1),
    ]
    data = role(summary(tmp_path, events, ("/a", "data", 0), ("/b", "data", 0)))
    assert data.reads.pages == 4 + 1
    assert data.writes.pages == 2
    assert data.pages == 5 + 1


def test_rates_by_second(tmp_path: Path) -> None:
    events = [
        write(0, 10, t=0),
        write(0, 10, t=S - 1),
        read(0, 7, t=S),
        {"op": Op.FSYNC, "t": 2 * S},
        write(0, 5, t=2 * S + 5, file=1),
    ]
    result = summary(tmp_path, events, ("/a", "data", 0), ("/b", None, 0), duration_ns=3 * S)
    assert result.bin_s == 1
    rates = result.rates["data"]
    assert (rates.writes, rates.write_bytes) == ([2, 0, 0], [20, 0, 0])
    assert (rates.reads, rates.read_bytes, rates.syncs) == ([0, 1, 0], [0, 7, 0], [0, 0, 1])
    assert result.rates["none"].write_bytes == [0, 0, 5]


def test_long_traces_have_wider_bins(tmp_path: Path) -> None:
    result = summary(tmp_path, [write(0, 1, t=9_999 * S)], duration_ns=10_000 * S)
    assert result.bin_s == 4
    assert len(result.rates["data"].writes) == 2500 <= MOST_BINS
    assert result.rates["data"].writes[-1] == 1


def test_sync_latencies_are_those_recorded(tmp_path: Path) -> None:
    events = [{"op": Op.FSYNC, "dur": n * MS} for n in range(1, 101)]
    latency = role(summary(tmp_path, events)).sync_latency_ms
    assert latency is not None
    assert (latency.count, latency.mean, latency.max) == (100, 50.5, 100)
    assert latency.p50 == pytest.approx(50.5)
    assert latency.p99 == pytest.approx(99.01)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 60), st.integers(0, 2**40)), min_size=1, max_size=300))
def test_latencies_are_numpys_quantiles(durations: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        events = [{"op": Op.FSYNC, "dur": dur, "file": at % 2} for at, dur in enumerate(durations)]
        result = summary(Path(folder), events, ("/a", "data", 0), ("/b", "data", 0))
    groups = {"data": durations, "/a": durations[::2], "/b": durations[1::2]}
    for group in (role(result), *result.files):
        latency, took = group.sync_latency_ms, np.array(groups[group.name]) / 1e6
        assert latency is not None
        assert latency.count == len(took) and latency.max == pytest.approx(took.max(), abs=1e-4)
        assert latency.mean == pytest.approx(took.mean(), abs=1e-4)
        wanted = np.quantile(took, [0.5, 0.9, 0.99])
        assert [latency.p50, latency.p90, latency.p99] == pytest.approx(wanted, abs=1e-4)


def test_sizes_and_order(tmp_path: Path) -> None:
    entries = files(("/small", "data", 10), ("/idle", "data", 5), ("/big", "wal", 0))
    entries[0]["size_end"] = 30
    trace = build(tmp_path / "s.trace", [write(0, 1), write(0, 100, file=2)], entries)
    result = summarise(trace)
    assert [group.name for group in result.files] == ["/big", "/small"]  # /idle has no events
    assert [group.name for group in result.roles] == ["data", "wal"]
    data = role(result)
    assert (data.files, data.size_start, data.size_end) == (2, 15, 35)
    assert [group.name for group in summarise(trace, files=1).files] == ["/big"]


def test_an_empty_trace(tmp_path: Path) -> None:
    result = summarise(build(tmp_path / "e.trace", [], []))
    assert result.roles == result.files == []
    result = summary(tmp_path, [])
    assert role(result).writes.count == role(result).pages == 0
    assert role(result).sync_share == role(result).overwrite_share == 0


def test_absurd_offsets_are_counted(tmp_path: Path) -> None:
    n = 2100
    entries = files(*((f"/f{i}", "data", 0) for i in range(n)))
    trace = build(tmp_path / "s.trace", [read(2**63 - 2, 1, file=i) for i in range(n)], entries)
    assert role(summarise(trace)).pages == n


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    trace = build(tmp_path / "s.trace", [read(0, 2**62), read(0, 2**62)], files(("/a", "data", 0)))
    with pytest.raises(InputError, match="sizes are larger than any file system"):
        summarise(trace)


event = st.fixed_dictionaries(
    {
        "t": st.integers(0, 20 * S),
        "op": st.sampled_from(
            [Op.READ, Op.WRITE, Op.WRITE, Op.FSYNC, Op.TRUNCATE, Op.CREATE, Op.FALLOCATE, Op.SYNC]
        ),
        "flags": st.sampled_from([0, 0, 0, Flag.DSYNC, Flag.KEEP_SIZE]),
        "file": st.integers(0, 2),
        "offset": st.integers(0, 40_000),
        "size": st.integers(0, 20_000),
    }
).map(lambda one: {**one, "file": -1} if one["op"] == Op.SYNC else one)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(event, max_size=40),
    starts=st.tuples(*[st.integers(0, 50_000)] * 3),
    part=st.sampled_from([1, 2, 7, 100]),
)
def test_against_counting_one_by_one(
    tmp_path: Path, events: list[dict[str, int]], starts: tuple[int, ...], part: int
) -> None:
    path = tmp_path / "p.trace"
    shutil.rmtree(path, ignore_errors=True)
    entries = files(*((f"/{i}", "data", size) for i, size in enumerate(starts)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ztune.trace.writer.ROW_GROUP", part)
        result = summarise(build(path, events, entries, duration_ns=20 * S))
    events = sorted(events, key=lambda one: one["t"])
    size = list(starts)
    end: dict[tuple[int, int], int] = {}
    overwritten = synced = sequential = 0
    pages: dict[int, set[tuple[int, int]]] = {Op.READ: set(), Op.WRITE: set()}
    for index, one in enumerate(events):
        op, file, offset, length = one["op"], one["file"], one["offset"], one["size"]
        if op in (Op.READ, Op.WRITE):
            sequential += end.get((file, op)) == offset
            end[file, op] = offset + length
            pages[op] |= {
                (file, page) for page in range(offset // 4096, (offset + length + 4095) // 4096) if length
            }
        if op == Op.WRITE:
            overwritten += min(max(size[file] - offset, 0), length)
            size[file] = max(size[file], offset + length)
            later = [
                x for i, x in enumerate(events) if i > index or (x["op"] == Op.SYNC and x["t"] == one["t"])
            ]
            synced += bool(one["flags"] & Flag.DSYNC) or any(
                (x["op"] == Op.SYNC or (x["op"] == Op.FSYNC and x["file"] == file))
                and x["t"] - one["t"] <= 5 * S
                for x in later
            )
        elif op == Op.TRUNCATE:
            size[file] = length
        elif op == Op.CREATE:
            size[file] = 0
        elif op == Op.FALLOCATE and not one["flags"] & Flag.KEEP_SIZE:
            size[file] = max(size[file], offset + length)
    data = role(result)
    assert data.overwritten_bytes == overwritten
    assert data.sync_writes == synced
    counted = data.reads.sequential * data.reads.count + data.writes.sequential * data.writes.count
    assert counted == pytest.approx(sequential, abs=0.01)
    assert data.reads.pages == len(pages[Op.READ])
    assert data.writes.pages == len(pages[Op.WRITE])
    assert data.pages == len(pages[Op.READ] | pages[Op.WRITE])
    # What is told file by file adds up to the role.
    for total, parts in (
        (data.reads.bytes, [f.reads.bytes for f in result.files]),
        (data.sync_writes, [f.sync_writes for f in result.files]),
        (data.pages, [f.pages for f in result.files]),
    ):
        assert total == sum(parts)
    assert sum(result.rates["data"].write_bytes) == data.writes.bytes
