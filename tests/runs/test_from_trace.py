"""What a trace says of the layouts that are worth trying."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_traces import make_trace
from trace_builder import build, files

from ztune.errors import InputError
from ztune.runs import from_trace
from ztune.runs.asked import have_of, study_for, task
from ztune.runs.space import first_round
from ztune.study import Study, generic, ready
from ztune.trace.manifest import TraceFile, WorkloadInfo
from ztune.trace.reader import Trace
from ztune.trace.schema import Flag, Op

GIB = 1 << 30


def moved(trace: Trace, *paths: str) -> Trace:
    """Return ``trace`` with its files elsewhere."""
    files: list[TraceFile] = [
        f.model_copy(update={"path": path}) for f, path in zip(trace.manifest.files, paths, strict=True)
    ]
    trace.manifest = trace.manifest.model_copy(update={"files": files})
    return trace


def noting(trace: Trace, **environment: int) -> Trace:
    trace.manifest = trace.manifest.model_copy(update={"environment": environment})
    return trace


def test_the_values_to_try_are_those_of_the_trace(trace: Trace) -> None:
    study = from_trace.built_for(trace)
    # 8 KiB, at random in 4 MiB, and appended to a log; nothing is read.
    assert study.axes["data.recordsize"] == ("8K", "16K", "32K", "64K", "128K")
    assert study.axes["wal.recordsize"] == ("8K", "16K", "32K", "128K", "1M")
    assert "data.primarycache" not in study.axes and "data.logbias" not in study.axes
    assert study.axes["wal.logbias"] == ("latency", "throughput") and study.notes == ()


def test_direct_io_is_tried_where_it_was_asked_for_and_openzfs_heeds_it(tmp_path: Path) -> None:
    given = files(("/db/1", "data", 8 << 20), ("/db/log/ib_logfile0", "wal", 8 << 20))
    events = [
        {"t": 2 * i + f, "op": Op.WRITE, "file": f, "offset": 8192 * i, "size": 8192, "flags": Flag.DIRECT}
        for i in range(200)
        for f in (0, 1)
    ]
    trace = build(tmp_path / "a.trace", events, given)
    study = from_trace.built_for(trace)
    assert study.axes["data.direct"] == ("standard", "disabled") and study.layout.direct == ("data",)
    assert "wal.direct" not in study.axes  # MariaDB's log is not opened so on ZFS
    older = from_trace.without_direct(study)
    # What it does is what later versions do with this: so its layouts are what they are there.
    assert "data.direct" not in older.axes and older.layout.direct == ("data",)
    assert older.layout.settings()["data.direct"] == "disabled"
    assert older.notes == (*study.notes, from_trace.NO_DIRECT)
    assert older.axes == {key: values for key, values in study.axes.items() if key != "data.direct"}
    named = from_trace.suited(generic.build({"data", "wal"}), trace, named=True)
    assert named.layout.direct == ("data",) and "data.direct" not in named.axes


def test_a_job_says_whether_it_asks_for_direct_io() -> None:
    def asks(**params: str) -> tuple[str, ...]:
        return task("mariadb-oltp", params, (), None, None, native=False).study.layout.direct

    assert asks() == ("data", "index") and asks(flush_method="fsync") == ()


def test_files_of_one_directory_get_one_dataset_in_every_study(trace: Trace, tmp_path: Path) -> None:
    moved(trace, "/db/aof/1.rdb", "/db/aof/1.aof")
    study = from_trace.built_for(trace)
    assert [d.roles for d in study.layout.datasets] == [("data", "wal")]
    assert "1.rdb (data) and 1.aof (wal) are in one directory, /db/aof" in study.notes[0]
    # The data's own calls and the log's commits are both of it.
    assert "data.logbias" in study.axes and "8K" in study.axes["data.recordsize"]
    named = from_trace.suited(generic.build({"data", "wal"}), trace, named=True)
    assert [d.roles for d in named.layout.datasets] == [("data", "wal")] and named.notes == study.notes[:1]
    assert not any(key.startswith("wal.") for key in named.axes)


def test_too_little_is_left_out_unless_the_study_was_named(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.trace", writes=50)
    with pytest.raises(InputError, match=r"leaves nothing to try\. Not enough was recorded of data: 50 "):
        from_trace.built_for(trace)
    study = generic.build({"data", "wal"})
    with pytest.raises(InputError, match=r"of wal: 50 commits \(advice on a log takes 100\) and 50 reads"):
        from_trace.suited(study, trace, named=False)
    named = from_trace.suited(study, trace, named=True)
    assert named.axes == study.axes and len(named.notes) == 2


def test_a_ready_study_s_layouts_are_tried_all_the_same(tmp_path: Path) -> None:
    info = WorkloadInfo(name="postgres-oltp")
    trace = make_trace(tmp_path / "t.trace", writes=150, workload=info)
    assert study_for(trace, None, None, None).notes == ()
    trace = make_trace(tmp_path / "s.trace", writes=50)
    raw = generic.build({"data", "wal"}).to_json()
    raw["layouts"] = [{"name": "log", "set": {"wal.logbias": "throughput"}}]
    left = from_trace.suited(Study.model_validate(raw), trace, named=False)
    assert left.axes == {} and [named.name for named in left.layouts] == ["log"]


@pytest.mark.parametrize(("job", "noted"), [("mariadb-oltp", True), ("postgres-oltp", False), (None, True)])
def test_a_study_of_another_database_is_noted(tmp_path: Path, job: str | None, noted: bool) -> None:
    info = None if job is None else WorkloadInfo(name=job)
    trace = make_trace(tmp_path / "t.trace", writes=150, workload=info)
    if info is None:  # told by its files
        moved(trace, "/srv/sql/ibdata1", "/srv/sql/ib_logfile0")
    notes = study_for(trace, "postgres-oltp", None, None).notes
    said = "is of PostgreSQL and the recording of MariaDB"
    assert any(said in note for note in notes) == noted


def test_what_a_replay_can_t_vary_is_left_out_with_a_note() -> None:
    raw = generic.build({"data"}).to_json()
    raw["axes"] |= {"data.atime": ["on", "off"], "pool.tank.filesystem": ["zfs", "ext4"]}
    raw["layouts"] = [{"name": "volume", "set": {"data.volume": "1G"}}]
    raw["cross"] = []
    study = from_trace.answerable(Study.model_validate(raw))
    assert study.axes["data.atime"] == ("off",) and "8K" in study.axes["data.recordsize"]
    assert not study.layouts
    (note,) = study.notes
    assert note.endswith(
        "data.atime=on; pool.tank.filesystem=ext4; data.volume=1G. `ztune run` measures them."
    )


def test_a_layout_that_a_replay_can_t_tell_takes_nothing_else_along() -> None:
    raw = generic.build({"data"}).to_json()
    raw["axes"] = {"pool.tank.filesystem": ["zfs", "xfs"], "data.recordsize": ["8K"]}
    raw["layouts"] = [
        {
            "name": "a volume",
            "set": {"data.volume": "1G", "data.filesystem": "xfs", "data.compression": "off"},
        },
        {"name": "another file system", "set": {"pool.tank.filesystem": "ext4"}},
        {"name": "plain", "set": {"data.compression": "off"}},
    ]
    raw["cross"] = []
    study = from_trace.answerable(Study.model_validate(raw))
    assert [named.name for named in study.layouts] == ["plain"]
    (note,) = study.notes
    assert "compression" not in note and "pool.tank.filesystem=xfs, ext4; data.volume=1G" in note


@pytest.mark.parametrize(
    ("host", "files", "expected"),
    [
        ({}, GIB, None),
        ({"memory": 1 << 50}, 100 << 20, 128 << 20),  # no more than the files take
        ({"memory": 1 << 50, "arc_max": 256 << 20}, GIB, 256 << 20),
        ({"memory": 400 << 20}, GIB, 128 << 20),  # half of it, as a power of two
        ({"memory": 1 << 50}, 1 << 10, 64 << 20),
    ],
)
def test_the_arc_is_the_host_s(trace: Trace, host: dict[str, int], files: int, expected: int | None) -> None:
    first, second = trace.manifest.files
    trace.manifest = trace.manifest.model_copy(
        update={"files": [first.model_copy(update={"size_end": files, "size_start": 0}),
                          second.model_copy(update={"size_end": 0, "size_start": 0})]}
    )  # fmt: skip
    size, said = from_trace.host_arc(noting(trace, **host).manifest)
    assert size == expected and ("does not tell its host's memory" in said) is (expected is None)
    assert "--arc sets another." in said


def test_an_arc_that_the_user_gives_leaves_nothing_to_say_of_the_host_s(trace: Trace) -> None:
    noting(trace, memory=1 << 34)
    assert any("--arc sets another" in note for note in study_for(trace, None, None, None).notes)
    given = study_for(trace, None, None, "256M")
    assert given.layout.arc == 256 << 20 and given.notes == ()


def test_a_log_device_on_an_unused_pool_is_no_other_layout() -> None:
    raw = generic.build({"data", "wal"}).to_json()
    raw["layout"]["pool"].append({**raw["layout"]["pool"][0], "name": "logs"})
    raw["axes"] = {"pool.logs.slog": ["none", "nvme"], "wal.pool": ["tank", "logs"]}
    raw["cross"] = [["pool.logs.slog", "wal.pool"]]
    names = [layout.name for layout in first_round(Study.model_validate(raw))]
    assert names == ["base", "wal.pool=logs", "wal.pool=logs, pool.logs.slog=nvme"]


def test_hardware_that_is_there_is_known_and_what_a_layout_takes() -> None:
    study = ready.find("sqlite")
    assert have_of(["slog=nvme"], study) == ({"slog": "nvme"}, [])
    with pytest.raises(InputError, match=r'no layout of study "sqlite" takes that.*Did you mean "slog=nvme"'):
        have_of(["slog=nvm"], study)
    # Too few commits were recorded to vary a log device: to have one is no mistake.
    raw = generic.build({"data"}).to_json()
    without = Study.model_validate({**raw, "axes": {"data.recordsize": ["8K"]}, "cross": []})
    have, (unused,) = have_of(["slog=nvme"], without)
    assert have == {"slog": "nvme"}
    assert unused.startswith("--have slog=nvme: no layout of study ") and "varies slog, so it" in unused
    with pytest.raises(InputError, match='there is no profile "floppy"'):
        have_of(["slog=floppy"], without)
