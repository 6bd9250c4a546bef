"""The workload ``mariadb-oltp`` with the MariaDB and sysbench that are here."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import pytest

from ztune.databases.mariadb.onhost import sysbench
from ztune.databases.mariadb.onhost.oltp import MariadbOltp as Job
from ztune.databases.mariadb.onhost.server import find_binaries
from ztune.databases.mariadb.workload import MariadbOltp
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir

SMALL = {"size": "2M", "seconds": 1, "warmup": 0, "threads": 2, "rate": 60, "buffer_pool": "24M"}

REPORT = """\
[ 1s ] thds: 4 tps: 99.00 qps: 700.00 (r/w/o: 400/200/200) lat (ms,95%): 9.0 err/s: 0.00 reconn/s: 0.00
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       1.000 |*********                                2
      20.000 |**************************************** 7
      50.000 |*                                        1
SQL statistics:
    queries performed:
        read:                            44
        write:                           21
        other:                           22
        total:                           87
    transactions:                        10     (9.90 per sec.)
    queries:                             87     (80.0 per sec.)
    ignored errors:                      1      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          1.0100s
    total number of events:              10

Latency (ms):
         min:                                    1.00
         avg:                                   19.20
         max:                                   49.50
         95th percentile:                        0.00
         sum:                                   192.00
"""


@pytest.fixture(scope="session")
def needs_mariadb() -> None:
    try:
        find_binaries()
    except ZtuneError as error:
        pytest.skip(f"no MariaDB here: {error}")
    if shutil.which("sysbench") is None:
        pytest.skip("no sysbench here; `ztune setup mariadb-oltp` brings it")


def places_of(parent: Path) -> dict[str, Path]:
    made = {role: parent / role for role in ("data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    return made


@pytest.fixture(scope="module")
def saved(needs_mariadb: None, open_parent: Path) -> Iterator[dict[str, Path]]:
    """The state after the load, as a trial keeps it."""
    parent = open_parent / "maria"
    parent.mkdir(mode=0o755)
    places = places_of(parent / "made")
    workload = MariadbOltp(SMALL)
    workload.prepare(WorkDir.create("my", parent=parent), places)
    assert all(list(path.iterdir()) == [] for path in places.values()), "prepare leaves the places empty"
    workload.load()
    assert workload.pids() == []
    workload.cleanup()
    assert [path.name for path in parent.iterdir()] == ["made"]
    assert sorted(path.name for path in places["wal"].iterdir()) == ["redo"]
    yield places
    shutil.rmtree(parent)


@pytest.fixture
def trials(saved: dict[str, Path], parent: Path) -> Iterator[object]:
    made: list[MariadbOltp] = []

    def make(values: dict[str, object] | None = None, **database: str) -> MariadbOltp:
        workload = MariadbOltp({**SMALL, **(values or {})}, database=database)
        made.append(workload)
        places = places_of(parent / "trial")
        workload.prepare(WorkDir.create("my", parent=parent), places)
        for role, path in saved.items():
            shutil.copytree(path, places[role], dirs_exist_ok=True)
        workload.job.adopt(places)
        return workload

    yield make
    for workload in made:
        workload.cleanup()


def test_the_report_is_read() -> None:
    found = sysbench.parse(REPORT)
    assert (found.transactions, found.reads, found.writes, found.errors) == (10, 44, 21, 1)
    assert found.seconds == 1.01
    assert found.latency_ms == {
        "mean": 19.2, "p50": 20.0, "p90": 20.0, "p95": 49.5, "p99": 49.5, "p999": 49.5, "max": 49.5,
    }  # fmt: skip
    assert sysbench.parse_progress(REPORT.splitlines()[0]) == 1.0
    assert sysbench.parse_progress("Initializing worker threads...") is None
    with pytest.raises(ZtuneError, match="names no number of reads: 'FATAL: no'"):
        sysbench.parse("FATAL: no")


def test_a_copy_is_taken_over_and_the_job_proved(trials: object) -> None:
    workload = trials({"warmup": 1}, innodb_flush_method="fsync", innodb_use_native_aio="0")  # type: ignore[operator]
    workload.start()
    [pid] = workload.pids()
    assert Path(f"/proc/{pid}/comm").read_text().strip() in ("mariadbd", "mysqld")
    result = workload.verify(workload.run())
    details = result.details
    assert result.operations > 0 and all(check.ok for check in result.checks) and len(result.checks) == 4
    assert details["reads"] >= 4 * result.operations and details["writes"] >= 2 * result.operations
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
    settings = details["settings"]
    assert settings["innodb_flush_method"] == "fsync" and settings["innodb_use_native_aio"] == "OFF"
    assert settings["innodb_flush_log_at_trx_commit"] == "1" and settings["sync_binlog"] == "1"
    assert details["innodb_dblwr_pages_written"] > 0 and details["binlog_commits"] == result.operations
    assert details["innodb_os_log_written"] > 0
    assert result.log["writes"] == details["innodb_log_writes"] > 0 and result.log["waits"] == 0
    # Since 10.8 it does not count syncs, and no version times them: absent, not zero.
    assert ("syncs" in result.log) == ("innodb_os_log_fsyncs" in details)
    assert not {"write_s", "sync_s"} & result.log.keys()
    paths = workload.role_paths()
    rows = (paths["data"] / "db/sbtest/sbtest1.ibd").read_bytes()[1 << 20 : 2 << 20]
    blocks = [rows[at : at + 16384] for at in range(0, len(rows), 16384)]
    assert 1.6 < len(rows) / sum(len(lz4.block.compress(b, store_size=False)) for b in blocks) < 2.2
    assert (paths["wal"] / "binlog/binlog.000001").stat().st_size > 400 * result.operations
    assert (paths["data"] / "system/ibdata1").exists() and (paths["wal"] / "redo/ib_logfile0").exists()
    assert workload.job.server.sql("SHOW VARIABLES LIKE 'skip_networking';") == [["skip_networking", "ON"]]
    assert workload.page_sizes() == {"data": 16384}
    workload.stop()


def test_doublewrite_and_binlog_go_where_they_are_put(needs_mariadb: None, parent: Path) -> None:
    values = {**SMALL, "doublewrite_on": "wal", "binlog": "data", "page_size": "4K"}
    workload = MariadbOltp(values, database={"innodb_doublewrite": "0"})
    workload.prepare(WorkDir.create("my", parent=parent))
    try:
        workload.load()
        workload.start()
        result = workload.verify(workload.run())
        assert result.details["innodb_dblwr_pages_written"] == 0
        assert result.details["settings"]["innodb_page_size"] == "4096"
        paths = workload.role_paths()
        assert (paths["wal"] / "system/ibdata1").exists() and (paths["data"] / "binlog").is_dir()
        assert workload.page_sizes() == {"data": 4096}
        workload.stop()
    finally:
        workload.cleanup()
    assert list(parent.iterdir()) == []


def test_work_that_was_not_done_is_found(trials: object) -> None:
    workload = trials({"binlog": "off"})  # type: ignore[operator]
    workload.start()
    result = workload.run()
    workload.job.server.sql("UPDATE sbtest.sbtest1 SET k = k - 1 WHERE id = 1;")
    with pytest.raises(ZtuneError, match="the job was not done: transactions committed, by the sum of k"):
        workload.verify(result)
    assert not (workload.role_paths()["wal"] / "binlog").exists()


def test_no_addresses_are_reserved_for_a_larger_pool(trials: object) -> None:
    workload = trials()  # type: ignore[operator]
    workload.start()
    most = workload.job.server.sql("SHOW GLOBAL VARIABLES LIKE 'innodb_buffer_pool_size_max';")
    assert all(int(value) <= 32 << 20 for _, value in most)  # older ones have none; its own choice: 8 TiB
    workload.stop()


def test_a_server_that_dies_is_told_with_its_last_words(trials: object) -> None:
    workload = trials({"seconds": 20})  # type: ignore[operator]
    workload.start()
    [pid] = workload.pids()

    def kill(step: str, _done: float) -> None:
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(
        ZtuneError, match=r"MariaDB died during the work \(was ended by SIGKILL\); its log ends: ."
    ):
        workload.run(kill)
    with pytest.raises(ZtuneError, match="MariaDB died"):
        workload.stop()


def test_wrong_values_and_states_are_told(trials: object) -> None:
    workload = trials(innodb_log_buffer_size="sideways")  # type: ignore[operator]
    with pytest.raises(InputError, match=r"MariaDB did not start .*sideways"):
        workload.start()
    (workload.role_paths()["wal"] / "redo/ib_logfile0").unlink()
    with pytest.raises(ZtuneError, match="there is no redo log to take over"):
        workload.job.adopt(workload.role_paths())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"innodb_flush_methd": "fsync"},
            "has no setting 'innodb_flush_methd'; did you mean 'innodb_flush_method'",
        ),
        ({"zzzzzz": "1"}, "such are innodb_page_size"),
        ({"innodb_flush_method": "sideways"}, "is 'sideways'; it is one of fsync, O_DSYNC"),
        ({"port": "1"}, "'port' can't be chosen by a layout: it is reached by its own socket"),
        ({"innodb_log_group_home_dir": "/x"}, "say where files lie"),
        ({"max_connections": "5"}, "'threads' decides it"),
    ],
)
def test_settings_are_checked_before_anything_is_made(
    needs_mariadb: None, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        MariadbOltp(SMALL, database=settings).check()


def test_times_go_slower_with_the_disks() -> None:
    params = MariadbOltp(SMALL).resolved()
    usual = Job(params).settings()
    slow = Job(params, {"innodb_lock_wait_timeout": "20"}, dilation=4.0).settings()
    assert "innodb_io_capacity" not in usual and slow["innodb_io_capacity"] == "100"
    assert slow["innodb_lock_wait_timeout"] == "80" and slow["innodb_flush_log_at_timeout"] == "4"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ztune.databases.mariadb.onhost.server._find", lambda _name: None)
    with pytest.raises(
        MissingError, match=r"mariadbd, mariadb-install-db, mariadb was not found; install it"
    ):
        MariadbOltp(SMALL).check()
    with pytest.raises(InputError, match=r"'page_size': it should be a power of two"):
        MariadbOltp({"page_size": "5000"})
