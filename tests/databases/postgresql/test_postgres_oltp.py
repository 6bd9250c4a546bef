from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lz4.block
import psutil
import pytest
import zstandard

from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.databases.workload import running
from ztune.errors import ZtuneError
from ztune.onhost.host.workdir import WorkDir
from ztune.onhost.jobs.filler import BYTES_PER_SCALE, WORDS, row_sql

SMALL = {"scale": 1, "seconds": 2, "warmup": 1, "clients": 3, "rate": 200, "max_wal_size": "32M"}


@pytest.fixture(scope="module")
def loaded(needs_postgres: None, open_parent: Path) -> Iterator[PostgresOltp]:
    """A workload that is filled and started once for the tests that only look or run it again."""
    parent = open_parent / "oltp"
    parent.mkdir(mode=0o755)
    with running(PostgresOltp(SMALL), parent=parent) as workload:
        yield workload
    assert list(parent.iterdir()) == []
    parent.rmdir()


@pytest.mark.parametrize("script", ["tpcb", "mix21"])
def test_the_job_is_done_and_proved(loaded: PostgresOltp, script: str) -> None:
    loaded.job.params["script"] = script
    loaded.job.recount()
    seen: list[tuple[str, float]] = []
    result = loaded.verify(loaded.run(lambda step, done: seen.append((step, done))))
    assert all(check.ok for check in result.checks) and len(result.checks) == 3
    assert result.operations == result.details["latencies_logged"] > 0
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["p99"] <= result.latency_ms["max"]
    assert result.offered_per_second == 200
    assert result.details["wal_bytes"] > 0 and result.details["checkpoints"] >= 1
    assert seen[-1] == ("run the load", 1.0)
    info = loaded.info(result)
    assert info["name"] == "postgres-oltp" and info["version"].startswith("PostgreSQL ")
    assert info["parameters"]["scale"] == 1 and info["result"]["operations"] == result.operations


def test_work_that_was_not_done_is_found(loaded: PostgresOltp) -> None:
    loaded.job.recount()
    result = loaded.run()
    loaded.job.server.sql("DELETE FROM pgbench_history WHERE ctid = (SELECT min(ctid) FROM pgbench_history)")
    try:
        with pytest.raises(ZtuneError, match="rows added to pgbench_history should be"):
            loaded.verify(result)
    finally:
        loaded.job.server.sql(
            "TRUNCATE pgbench_history; UPDATE pgbench_accounts SET abalance = 0 WHERE abalance <> 0"
        )


def test_roles_pids_and_pages(loaded: PostgresOltp) -> None:
    paths = loaded.role_paths()
    assert set(paths) == {"data", "wal", "temp"} == set(loaded.page_sizes())
    assert paths["data"] not in paths["wal"].parents and paths["data"] in paths["temp"].parents
    [pid] = loaded.pids()
    open_files = []
    for process in psutil.Process(pid).children():
        # It may close one, or end, between two looks.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    open_files.append(link.readlink())
    assert any(paths["data"] in path.parents for path in open_files)
    assert loaded.job.server.value("SHOW block_size") == str(loaded.page_sizes()["data"])


def test_settings_reach_the_server(loaded: PostgresOltp) -> None:
    want = {"shared_buffers": "32MB", "max_wal_size": "32MB", "fsync": "on", "synchronous_commit": "on"}
    assert {name: loaded.job.server.value(f"SHOW {name}") for name in want} == want


def test_rows_compress_as_real_ones(loaded: PostgresOltp) -> None:
    """The bounds of the table in ``ztune.onhost.jobs.filler``."""
    assert len(set(WORDS)) == 256
    relative = loaded.job.server.value("SELECT pg_relation_filepath('pgbench_accounts')")
    loaded.job.server.sql("CHECKPOINT;")
    data = (loaded.job.server.data / relative).read_bytes()
    rng = random.Random(1)
    for size, low, high in ((8192, 1.6, 2.0), (16384, 1.75, 2.15), (131072, 1.9, 2.4)):
        blocks = [data[at * size : (at + 1) * size] for at in rng.sample(range(len(data) // size), 60)]
        fast = len(blocks) * size / sum(len(lz4.block.compress(block, store_size=False)) for block in blocks)
        strong = zstandard.ZstdCompressor(level=3)
        good = len(blocks) * size / sum(len(strong.compress(block)) for block in blocks)
        assert low < fast < high, f"lz4 at {size}"
        assert fast * 1.3 < good < 3.7, f"zstd-3 at {size}"
    index = loaded.job.server.value("SELECT pg_relation_size('pgbench_accounts_pkey')")
    assert abs(len(data) + int(index) - BYTES_PER_SCALE) < 0.15 * BYTES_PER_SCALE


def test_seed_decides_the_rows(loaded: PostgresOltp) -> None:
    # A fixed text: the same seed must give the same rows on another machine and with another PostgreSQL.
    row = loaded.job.server.value("SELECT rtrim(filler) FROM pgbench_accounts WHERE aid = 1")
    assert row == "notice money able other company chicago join 71297fbb48e17335a6e1bcd5"
    other = row_sql("text", 2, 1, 1)
    assert loaded.job.server.value(f"SELECT t FROM ({other}) AS r(aid, bid, abalance, t)") not in ("", row)


def test_failed_fill_leaves_nothing(
    needs_postgres: None, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ztune.onhost.jobs.filler.row_sql", lambda *_args: "SELECT 1/0, 1, 1, 1")
    with pytest.raises(ZtuneError, match="division by zero"), running(PostgresOltp(SMALL), parent=parent):
        pass
    assert list(parent.iterdir()) == []


def test_steps_out_of_order() -> None:
    workload = PostgresOltp(SMALL)
    with pytest.raises(ZtuneError, match="prepare comes before"):
        workload.load()
    workload.stop()
    workload.cleanup()


def name_of(process: psutil.Process) -> str:
    """Return the name of a process, or nothing if it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE or not process.is_running() else process.name()
    except psutil.NoSuchProcess:
        return ""


RUN = """
import sys
from pathlib import Path
from ztune.databases.workload import running
from ztune.databases.postgresql.workload_oltp import PostgresOltp
workload = PostgresOltp({"scale": 1, "seconds": 100, "warmup": 0, "rate": 100})
with running(workload, parent=Path(sys.argv[1])) as w:
    print(w.pids()[0], flush=True)
    w.run(lambda step, done: print("working", flush=True))
"""


# All but SIGKILL become the same interruption; `test_screening` sends SIGINT, `test_stop` SIGTERM.
@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGTERM)),
        signal.SIGHUP,
        signal.SIGKILL,
    ],
)
def test_killed_in_the_middle(needs_postgres: None, parent: Path, number: signal.Signals) -> None:
    """No process stays; no directory either, save after SIGKILL, whose leftover the next run removes."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, parent], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    postmaster = int(child.stdout.readline())
    family = [psutil.Process(postmaster), *psutil.Process(postmaster).children(recursive=True)]
    assert child.stdout.readline() == "working\n"
    clients = [p for p in psutil.Process(child.pid).children(recursive=True) if name_of(p) == "pgbench"]
    assert clients
    family += clients
    os.kill(child.pid, number)
    child.communicate()
    assert child.returncode != 0
    psutil.wait_procs(family, timeout=20)
    deadline = time.monotonic() + 20
    while any(name_of(p) for p in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [name_of(p) for p in family if name_of(p)] == []
    if number == signal.SIGKILL:
        assert len(list(parent.iterdir())) == 1
        WorkDir.create("next", parent=parent).remove()
    assert list(parent.iterdir()) == []
