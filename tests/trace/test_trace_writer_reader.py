from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import build, files, rows

from ztune.errors import InputError, ZtuneError
from ztune.trace import manifest as manifests
from ztune.trace.columns import EVENTS
from ztune.trace.manifest import Manifest, Sample, WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.schema import VERSION, Op, Via
from ztune.trace.writer import EVENT_DTYPE, TraceWriter

FILES = files(("/db/data", "data", 1 << 20), ("/db/wal", "wal", 0), ("/var/log/x", None, 5))
WRITE = {"t": 5, "op": Op.WRITE, "offset": 0, "size": 10}


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return build(tmp_path / "a.trace", [WRITE, {"t": 9, "op": Op.FSYNC}], FILES)


def edit(trace: Trace, **changes: Any) -> None:
    path = trace.path / "trace.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def complaint(path: Path) -> str:
    """Return the sentence with which opening and reading the trace is refused."""
    with pytest.raises(InputError) as caught:
        Trace.open(path).table()
    text = str(caught.value)
    assert "\n" not in text
    assert text.strip()
    return text


event = st.fixed_dictionaries(
    {
        "t": st.integers(0, 2**62),
        "dur": st.integers(0, 2**62),
        "pid": st.integers(1, 2**31 - 1),
        "tid": st.integers(1, 2**31 - 1),
        "op": st.sampled_from([op for op in Op if op != Op.SYNC]),
        "via": st.sampled_from(list(Via)),
        "flags": st.integers(0, 2**16 - 1),
        "file": st.integers(0, 2),
        "file2": st.integers(-1, 2),
        "offset": st.integers(0, 2**62 - 1),
        "size": st.integers(0, 2**62),
        "since_sync": st.integers(0, 2**32 - 1),
        "waited": st.integers(0, 2**32 - 1),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(event, max_size=20), max_size=4))
def test_what_is_written_is_read_sorted_by_time(tmp_path: Path, batches: list[list[dict[str, int]]]) -> None:
    path = tmp_path / "p.trace"
    shutil.rmtree(path, ignore_errors=True)
    with TraceWriter(path) as writer:
        for batch in batches:
            writer.add_rows(rows(batch))
        writer.finish(duration_ns=1, recorder={"name": "synthetic"}, files=FILES)
    trace = Trace.open(path)
    everything = [one for batch in batches for one in batch]
    assert trace.manifest.events == len(everything)
    expected = sorted(everything, key=lambda one: one["t"])  # stable, as the writer must be
    assert trace.table().to_pylist() == [{name: int(one[name]) for name in EVENTS.names} for one in expected]


def test_the_writer_leaves_nothing_but_the_trace(tmp_path: Path) -> None:
    build(tmp_path / "a.trace", [WRITE], FILES)
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace"]
    assert sorted(p.name for p in (tmp_path / "a.trace").iterdir()) == ["events.parquet", "trace.json"]


def test_nothing_appears_under_the_final_name_before_finish(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    writer.add_rows(rows([WRITE]))
    assert [p.name for p in tmp_path.iterdir()] == ["a.trace.partial"]
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    writer.abort()


def test_leaving_the_writer_by_an_exception_removes_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), TraceWriter(tmp_path / "a.trace"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    with Path("/dev/full").open("wb", buffering=0) as full:  # a device whose writes fail with ENOSPC
        writer._spool.close()
        writer._spool._out = full
        with pytest.raises(ZtuneError, match="no space left") as caught:
            writer.add_rows(rows([WRITE]))
    assert caught.value.exit_code == 1
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.trace", "a.trace.partial"])
def test_an_existing_trace_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="exists"):
        TraceWriter(tmp_path / "a.trace")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_missing_parent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere does not exist"):
        TraceWriter(tmp_path / "nowhere" / "a.trace")


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ({**WRITE, "file": 3}, "file is not one of the 3 files"),
        ({**WRITE, "op": 99}, "op is not a known code"),
        ({**WRITE, "offset": -1}, "has no offset"),
        ({**WRITE, "size": -5}, "size is below 0"),
        ({**WRITE, "t": -5}, "t is negative"),
        ({**WRITE, "offset": 2**63 - 1}, "beyond"),
        ({**WRITE, "file": -1}, "has no file"),
        ({**WRITE, "via": 9}, "via"),
    ],
)
def test_a_recorders_wrong_event_is_named_and_leaves_nothing(
    tmp_path: Path, event: dict[str, int], what: str
) -> None:
    with pytest.raises(InputError, match=what):
        build(tmp_path / "a.trace", [WRITE, event], FILES)
    assert list(tmp_path.iterdir()) == []


def test_dropped_events_make_the_trace_incomplete(tmp_path: Path) -> None:
    assert build(tmp_path / "a.trace", [], FILES).manifest.complete
    assert not build(tmp_path / "b.trace", [], FILES, dropped=3).manifest.complete


def test_paths_that_are_not_utf8_are_kept_readable(tmp_path: Path) -> None:
    trace = build(tmp_path / "a.trace", [], files(("/db/\udcff\u00e4", "data", 0)))
    assert trace.manifest.files[0].path == "/db/\\xff\u00e4"


def test_what_is_noted_of_paths_that_are_not_utf8_is_kept_readable(tmp_path: Path) -> None:
    # A mount point, or a glob of the user's: a recording that had one could not be written at its end.
    path = os.fsdecode(b"/m\xff")
    noted = {"host_fs": {path: "ext4"}, "left_out": [f"{path}/**"]}
    trace = build(tmp_path / "t.trace", [], files(("/db", "data", 10)), environment=noted)
    assert trace.manifest.environment == {"host_fs": {"/m\\xff": "ext4"}, "left_out": ["/m\\xff/**"]}


# --- what is refused


def test_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("hello")
    assert "there is no trace" in complaint(tmp_path / "none")
    assert "not a trace" in complaint(tmp_path / "dir")
    assert "not a trace" in complaint(tmp_path / "file")
    assert "no trace" in complaint(Path("nul\0byte"))
    assert "can't open" in complaint(Path("x" * 300))


def test_an_unfinished_recording_says_so(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    assert "not finished" in complaint(writer.partial)
    writer.abort()


def test_the_manifests_own_path_works_too(trace: Trace) -> None:
    assert Trace.open(trace.path / "trace.json").path == trace.path


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format":"x"}', "{", "\xff", "[" * 100_000, '{"format": NaN}']
)
def test_foreign_json(trace: Trace, text: str) -> None:
    (trace.path / "trace.json").write_bytes(text.encode("latin-1"))
    assert "trace" in complaint(trace.path)


def test_a_newer_version_says_so_whatever_else_it_has(trace: Trace) -> None:
    edit(trace, version=VERSION + 1, ztune="9.9", unheard_of=True)
    assert "made by a newer ztune ('9.9')" in complaint(trace.path)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_is_read(trace: Trace, version: int) -> None:
    edit(trace, version=version)
    assert Trace.open(trace.path).manifest.version == version


@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5, [1]])
def test_an_impossible_version(trace: Trace, version: object) -> None:
    edit(trace, version=version)
    assert '"version"' in complaint(trace.path)


def test_an_unknown_key_is_named(trace: Trace) -> None:
    edit(trace, colour="red")
    assert 'unknown key "colour"' in complaint(trace.path)


def test_a_nested_unknown_key_is_named(trace: Trace) -> None:
    edit(trace, files=[{"id": 0, "path": "/x", "rolle": "data"}])
    assert 'unknown key "files[0].rolle"' in complaint(trace.path)


def test_a_missing_key_is_named(trace: Trace) -> None:
    raw = json.loads((trace.path / "trace.json").read_text())
    del raw["duration_ns"]
    (trace.path / "trace.json").write_text(json.dumps(raw))
    assert '"duration_ns" is missing' in complaint(trace.path)


def test_a_wrong_role_is_named_with_those_that_exist(trace: Trace) -> None:
    edit(trace, files=[{"id": 0, "path": "/x", "role": "log"}])
    text = complaint(trace.path)
    assert "files[0].role" in text
    assert "'wal'" in text


def test_file_ids_must_be_their_places(trace: Trace) -> None:
    edit(trace, files=[{"id": 1, "path": "/x"}])
    assert "files[0] has id 1" in complaint(trace.path)


def test_a_truncated_parquet_file(trace: Trace) -> None:
    path = trace.path / "events.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    assert "is truncated" in complaint(trace.path)


def test_a_missing_parquet_file(trace: Trace) -> None:
    (trace.path / "events.parquet").unlink()
    assert "lacks its events.parquet" in complaint(trace.path)


def test_changed_bytes_fail_the_checksum(trace: Trace) -> None:
    path = trace.path / "events.parquet"
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)
    assert "was changed after recording" in complaint(trace.path)


def resign(trace: Trace, table: pa.Table, row_group_size: int | None = None) -> None:
    """Replace the events and make the manifest fit, as a maker of bad traces would."""
    path = trace.path / "events.parquet"
    pq.write_table(table, path, row_group_size=row_group_size)
    data = path.read_bytes()
    said = {"rows": table.num_rows, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(trace, events=table.num_rows, parquet={"events.parquet": said})


def test_unsorted_events(trace: Trace) -> None:
    resign(trace, trace.table().take([1, 0]).cast(EVENTS))
    assert "not sorted" in complaint(trace.path)


def test_events_are_sorted_across_row_groups(trace: Trace) -> None:
    table = trace.table().take([1, 0]).cast(EVENTS)
    resign(trace, table, row_group_size=1)
    with pytest.raises(InputError, match=r"not sorted by t \(row 1: "):
        list(Trace.open(trace.path).parts())


def test_a_large_row_group_is_read_in_parts(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trace.columns()
    monkeypatch.setattr("ztune.trace.parquet.PART_ROWS", 1)
    parts = list(Trace.open(trace.path).parts())
    assert [len(part["t"]) for part in parts] == [1, 1]
    assert {name: np.concatenate([p[name] for p in parts]).tolist() for name in whole} == {
        name: values.tolist() for name, values in whole.items()
    }


def test_a_file_id_out_of_range(trace: Trace) -> None:
    edit(trace, files=[])
    assert "not one of the 0 files" in complaint(trace.path)


def test_a_missing_column(trace: Trace) -> None:
    resign(trace, trace.table().drop_columns(["size"]))
    assert "lacks the column 'size'" in complaint(trace.path)


def test_a_trace_before_version_8_tells_of_no_waits(trace: Trace) -> None:
    before = trace.table()
    resign(trace, before.drop_columns(["since_sync", "waited"]))
    edit(trace, version=7)
    again = Trace.open(trace.path)
    assert again.table().equals(before)
    (part,) = again.parts("waited", "t")
    assert part["waited"].tolist() == [0] * len(part["t"])
    assert not again.manifest.recorder.waits


def test_a_column_of_another_type(trace: Trace) -> None:
    table = trace.table()
    resign(trace, table.set_column(0, "t", table.column("t").cast(pa.float64())))
    assert "other types" in complaint(trace.path)


def test_the_columns_of_a_known_trace_are_not_looked_at_again(trace: Trace) -> None:
    events = trace.path / "events.parquet"
    events.write_bytes(bytes(events.stat().st_size))
    again = Trace.reopen(trace.path, trace.sha)
    with pytest.raises(InputError, match="checksum does not match"):
        again.table()
    with pytest.raises(InputError, match="not a Parquet file"):
        Trace.open(trace.path)
    with pytest.raises(InputError, match="not the trace that was replayed"):
        Trace.reopen(trace.path, "0" * 64)
    events.write_bytes(b"")
    with pytest.raises(InputError, match="truncated"):
        Trace.reopen(trace.path, trace.sha)


def test_more_rows_than_said(trace: Trace) -> None:
    table = trace.table()
    resign(trace, pa.concat_tables([table, table.slice(1)]))
    edit(trace, events=2, parquet={**json.loads((trace.path / "trace.json").read_text())["parquet"]})
    assert '"events" says 2' in complaint(trace.path)


def test_samples_are_checked(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.trace")
    (writer.samples_dir / "data.bin").write_bytes(b"x" * (1 << 20))
    sample = Sample(role="data", file="samples/data.bin", bytes=1 << 20, sha256="0" * 64)
    trace = Trace.open(
        writer.finish(
            duration_ns=1, recorder={"name": "synthetic"}, files=FILES, samples=[sample.model_dump()]
        )
    )
    with pytest.raises(InputError, match="checksum"):
        trace.sample("data")
    assert trace.sample("wal") is None
    (trace.path / "samples/data.bin").unlink()
    with pytest.raises(InputError, match=r"lacks its samples/data\.bin"):
        trace.sample("data")


@pytest.mark.parametrize("name", ["../x.bin", "/etc/passwd", "samples/../../x.bin", "samples/data.bin\n"])
def test_samples_cannot_point_out_of_the_trace(trace: Trace, name: str) -> None:
    edit(trace, samples=[{"role": "data", "file": name, "chunk": 4, "bytes": 4}])
    assert "samples[0].file" in complaint(trace.path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inside for place in places(child, (*path, key)))]


FULL = Manifest(
    ztune="0.1.0",
    created="2026-01-01T00:00:00+00:00",
    duration_ns=1,
    recorder={"name": "ebpf"},  # type: ignore[arg-type]
    events=0,
    command=["a"],
    pids=[1],
    warnings=[{"code": "c", "message": "m"}],  # type: ignore[list-item]
    workload=WorkloadInfo(name="w"),
    files=[{"id": 0, "path": "/x", "names": [{"t": 0, "path": "/y"}]}],  # type: ignore[list-item]
    page_size={"data": 8192},
    compressibility=[{"role": "data", "recordsize": 4096, "algorithm": "lz4", "ratio": 2.0}],  # type: ignore[list-item]
    parquet={"events.parquet": {"rows": 0, "bytes": 1, "sha256": "0" * 64}},  # type: ignore[dict-item]
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), new=json_values)
def test_a_corrupted_manifest_is_read_or_refused_with_one_sentence(data: st.DataObject, new: object) -> None:
    raw = json.loads(FULL.to_json())
    place = data.draw(st.sampled_from(places(raw)))
    holder = raw
    for key in place[:-1]:
        holder = holder[key]
    if not place:
        raw = new
    elif data.draw(st.booleans()):
        holder[place[-1]] = new
    else:
        del holder[place[-1]]
    text = json.dumps(raw)
    try:
        manifest = manifests.parse(text, "trace.json")
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    else:  # the change was harmless: it must survive being written again
        assert manifests.parse(manifest.to_json(), "again") == manifest


@settings(max_examples=200, deadline=None)
@given(cut=st.integers(0, 2000), noise=st.binary(max_size=30), at=st.integers(0, 2000))
def test_a_manifest_with_broken_bytes_is_read_or_refused(cut: int, noise: bytes, at: int) -> None:
    text = FULL.to_json().encode()
    broken = text[:at] + noise + text[at + len(noise) :]
    for one in (text[:cut], broken):
        try:
            manifests.parse(one, "trace.json")
        except InputError as error:
            assert "\n" not in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_corrupted_folder_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Break either file at any byte, keeping the stated checksum true in half of the cases."""
    path = tmp_path / "p.trace"
    shutil.rmtree(path, ignore_errors=True)
    trace = build(path, [{**WRITE, "t": t} for t in range(50)], FILES)
    parquet = path / "events.parquet"
    content = bytearray(parquet.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    parquet.write_bytes(content)
    if data.draw(st.booleans()):
        said = {"rows": 50, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        edit(trace, parquet={"events.parquet": said})
    try:
        table = Trace.open(path).table()
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert table.num_rows == 50


def test_the_row_type_is_the_schema() -> None:
    assert EVENT_DTYPE.names == tuple(EVENTS.names)
    assert EVENT_DTYPE.itemsize == sum(field.type.bit_width for field in EVENTS) // 8


@pytest.mark.parametrize("name", ["pg-12:30.trace", "s3:a.trace", "mock:a"])
def test_a_name_with_a_colon_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Arrow took such a name for one of a store elsewhere, after all had been recorded."""
    monkeypatch.chdir(tmp_path)
    assert build(Path(name), [{"op": Op.SYNC, "file": -1}], []).manifest.events == 1
    assert len(Trace.open(name).columns("t")["t"]) == 1


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"b\xff.trace")
    with pytest.raises(InputError, match="UTF-8"):
        TraceWriter(path)
    assert not list(tmp_path.iterdir())
    build(tmp_path / "a.trace", [{"op": Op.SYNC, "file": -1}], []).path.rename(path)
    with pytest.raises(InputError, match="UTF-8"):
        Trace.open(path)
