"""The workload ``rocksdb`` with the db_bench that is here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import pytest

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trial.jobs import db_bench
from ztune.trial.jobs.workdir import WorkDir
from ztune.workloads.base import running
from ztune.workloads.rocksdb import Rocksdb

SMALL = {"size": "4M", "operations": 600, "threads": 2, "write_buffer": "128K", "compression": "none"}

needs_rocksdb = pytest.mark.skipif(
    shutil.which("db_bench") is None or shutil.which("ldb") is None,
    reason="no db_bench here; `ztune setup rocksdb` brings it",
)

REPORT = """\
readrandomwriterandom :     569.640 micros/op 5442 ops/sec 4.500 seconds 6 operations; ( reads:3 )
Microseconds per read:
Count: 4 Average: 12.5000  StdDev: 1.0
Min: 1  Median: 9.8  Max: 40
Percentiles: P50: 9.82
------------------------------------------------------
[       0,      10 ]        2  50.000%  50.000% ##
(      10,      20 ]        1  25.000%  75.000% #
(      30,      50 ]        1  25.000% 100.000% #

Microseconds per write:
Count: 2 Average: 1000.0000  StdDev: 1.0
Min: 900  Median: 9.8  Max: 1100
Percentiles: P50: 9.82
------------------------------------------------------
(     870,    1300 ]        2 100.000% 100.000% ####

Microseconds per other:
nothing
STATISTICS:
rocksdb.wal.synced COUNT : 2
rocksdb.number.keys.written COUNT : 2
rocksdb.db.get.micros P50 : 9.4 P95 : 21.1 P99 : 80.1 P100 : 34827.0 COUNT : 4 SUM : 290647
"""


def test_the_report_is_read() -> None:
    report = db_bench.parse("fillseq : 1.0 micros/op 1 ops/sec 1.0 seconds 9 operations;\n" + REPORT)
    assert (report.name, report.seconds, report.operations) == ("readrandomwriterandom", 4.5, 6)
    assert report.counters == {"rocksdb.wal.synced": 2, "rocksdb.number.keys.written": 2}
    assert [(one.kind, one.count, len(one.bins)) for one in report.histograms] == [
        ("read", 4, 3),
        ("write", 2, 1),
    ]
    [read, _] = report.histograms
    assert db_bench.latency_summary([read]) == {
        "mean": 0.0125, "p50": 0.01, "p90": 0.04, "p99": 0.04, "p999": 0.04, "max": 0.04,
    }  # fmt: skip
    both = db_bench.latency_summary(report.histograms)
    assert both["mean"] == pytest.approx((4 * 0.0125 + 2 * 1.0) / 6, abs=1e-4) and both["max"] == 1.1
    assert db_bench.latency_summary([]) == {}
    with pytest.raises(ZtuneError, match="reported no result; it ends: put error: No space left"):
        db_bench.parse("RocksDB\nput error: No space left\n")


@pytest.fixture(scope="module")
def saved(open_parent: Path) -> Iterator[dict[str, Path]]:
    """The state after the load, as a trial keeps it."""
    parent = open_parent / "rocks"
    places = places_of(parent / "made")
    workload = Rocksdb(SMALL)
    workload.prepare(WorkDir.create("rk", parent=parent), places)
    assert all(list(path.iterdir()) == [] for path in places.values())
    workload.load()
    workload.cleanup()
    yield places
    shutil.rmtree(parent)


def places_of(parent: Path) -> dict[str, Path]:
    made = {role: parent / role for role in ("data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    parent.parent.chmod(0o755)
    return made


def adopted(saved: dict[str, Path], parent: Path, values: dict[str, object], **database: str) -> Rocksdb:
    workload = Rocksdb({**SMALL, **values}, database=database)
    places = places_of(parent / "trial")
    workload.prepare(WorkDir.create("rk", parent=parent), places)
    for role, path in saved.items():
        shutil.copytree(path, places[role], dirs_exist_ok=True)
    workload.job.adopt(places)
    return workload


@needs_rocksdb
@pytest.mark.parametrize("mix", ["mixed", "update", "overwrite"])
def test_a_copy_is_taken_over_and_the_job_proved(saved: dict[str, Path], parent: Path, mix: str) -> None:
    workload = adopted(saved, parent, {"mix": mix}, block_size="8192", use_direct_reads="off")
    try:
        workload.start()
        assert len(workload.pids()) == 1
        result = workload.verify(workload.run())
        details = result.details
        assert result.operations == 600 and all(check.ok for check in result.checks)
        read, written = details["keys_read"], details["keys_written"]
        if mix == "mixed":
            assert read + written == 600 and 320 < read < 480
        else:
            assert (read, written) == (600 if mix == "update" else 0, 600)
            assert details["flushed_bytes"] > 0
        assert details["wal_bytes_per_write"] > 416 and details["wal_syncs"] * 2 >= written
        assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
        assert details["settings"]["block_size"] == "8192"
        paths = workload.role_paths()
        assert list(paths["wal"].glob("*.log")) and not list(paths["data"].glob("*.log"))
        written_options = max(paths["data"].glob("OPTIONS-*")).read_text()
        assert "block_size=8192" in written_options and f"wal_dir={paths['wal']}" in written_options
        workload.stop()
    finally:
        workload.cleanup()


@needs_rocksdb
def test_the_whole_life_leaves_nothing(parent: Path) -> None:
    with running(Rocksdb({**SMALL, "seconds": 1, "sync": False}), parent=parent) as workload:
        result = workload.verify(workload.run())
        # By the clock, not by the count.
        assert 0.5 < result.seconds < 5 and result.operations > 600
        assert result.details["wal_syncs"] == 0
        blocks = []
        for path in workload.role_paths()["data"].glob("*.sst"):
            data = path.read_bytes()
            blocks += [data[at : at + 16384] for at in range(0, len(data) - 16384, 16384)]
        ratio = len(blocks) * 16384 / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks)
        assert 1.4 < ratio < 2.3
    assert list(parent.iterdir()) == []


@needs_rocksdb
def test_work_that_was_not_done_is_found(saved: dict[str, Path], parent: Path) -> None:
    workload = adopted(saved, parent, {})
    try:
        workload.start()
        result = workload.run()
        key = workload.job._ldb("scan", "--max_keys=1", "--hex").split()[0]
        workload.job._ldb("--hex", "delete", key)
        with pytest.raises(ZtuneError, match="the job was not done: keys in the database should be"):
            workload.verify(result)
    finally:
        workload.cleanup()


@needs_rocksdb
def test_a_state_that_is_damaged_is_told_with_rocksdb_s_words(saved: dict[str, Path], parent: Path) -> None:
    workload = adopted(saved, parent, {})
    try:
        for path in workload.role_paths()["data"].glob("MANIFEST-*"):
            path.write_bytes(b"no manifest")
        workload.start()
        with pytest.raises(ZtuneError, match=r"db_bench ended with exit code 1: .*[Cc]orrupt"):
            workload.run()
        for path in workload.role_paths()["data"].glob("CURRENT"):
            path.unlink()
        with pytest.raises(ZtuneError, match="there is no RocksDB database to take over"):
            workload.job.adopt(workload.role_paths())
    finally:
        workload.cleanup()


@needs_rocksdb
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"blok_size": "1"}, "did you mean 'block_size'"),
        ({"db": "/x"}, "no setting 'db' that a layout could choose"),
        ({"compression_type": "best"}, "Cannot parse compression type 'best'"),
        ({"block_size": "big"}, "does not take the settings: ERROR: illegal value 'big'"),
    ],
)
def test_settings_are_checked_before_anything_is_made(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Rocksdb(SMALL, database=settings).check()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match="db_bench was not found; install it with"):
        Rocksdb(SMALL).check()
    with pytest.raises(InputError, match="too few for 4 threads"):
        Rocksdb({"operations": 3})
