"""``mongo-restore`` on the real WiredTiger, at its smallest; skipped where that isn't installed."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from mongo_dumps import WHOLE

from ztune.databases.mongodb.onhost import bson, wiredtiger
from ztune.databases.mongodb.onhost.restore import ARCHIVE
from ztune.databases.mongodb.onhost.restore import MongoRestore as Job
from ztune.databases.mongodb.workload import MongoRestore
from ztune.databases.workload import running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Identity
from ztune.onhost.host.workdir import WorkDir
from ztune.places import bundle


@pytest.fixture(scope="module", autouse=True)
def needs_wiredtiger() -> None:
    try:
        wiredtiger.find(1.0)
    except MissingError as error:
        pytest.skip(str(error))


def docs(*numbers: int) -> bytes:
    return b"".join(bson.encode({"_id": n, "text": f"text of {n} " * 20}) for n in numbers)


def packed(*numbers: int) -> bytes:
    return gzip.compress(docs(*numbers), 1)


@pytest.fixture(scope="module")
def own(open_parent: Path) -> Path:
    path = open_parent / "own.bson.gz"
    path.write_bytes(packed(*range(2300)))
    return path


def workload(own: Path, **values: Any) -> MongoRestore:
    small = {"file": str(own), "engine": "wiredtiger", "batch": 100, "cache": "8M", **values}
    return MongoRestore(small)


def places_of(parent: Path) -> dict[str, Path]:
    made = {role: parent / role for role in ("source", "data", "wal")}
    for path in made.values():
        path.mkdir(parents=True)
    return made


def test_the_documents_are_in_and_proved(own: Path, parent: Path) -> None:
    with running(workload(own), parent=parent) as made:
        assert made.check() == "WiredTiger 11.2 (no MongoDB)" and "MongoDB 5" not in str(made.info())
        [pid] = made.pids()
        process = psutil.Process(pid)
        assert process.uids().real != 0 and process.net_connections() == []
        before = Path(f"/proc/{pid}/io").read_text()
        result = made.verify(made.run())
        assert made.pids() == [pid] and Path(f"/proc/{pid}/io").read_text() != before
        assert result.operations == 2300 and all(check.ok for check in result.checks)
        assert len(result.checks) == 5 and result.unit == "document"
        details = result.details
        assert details["input"]["sha256"] and details["input"]["archive_bytes"] == own.stat().st_size
        # Each of 23 batches was synced; the log and the data lie where their roles are.
        assert details["log_syncs"] >= 23 and details["checkpoints"] >= 1
        assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
        paths = made.role_paths()
        assert list(paths["wal"].glob("WiredTigerLog.*")) and not list(paths["data"].glob("*Log*"))
        assert {"collection-0.wt", "index-0.wt"} <= {path.name for path in paths["data"].iterdir()}
        assert made.page_sizes() == {}
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "database"),
    [
        ({"sync": False}, {}),
        ({"final_checkpoint": False, "block_compressor": "zlib"}, {"log.prealloc": "false"}),
        ({"block_compressor": "none"}, {"log.enabled": "false", "leaf_page_max": "131072"}),
        ({"leaf_page": "4K"}, {"allocation_size": "512", "log.compressor": "none", "sync": "off"}),
    ],
)
def test_settings_reach_the_database(
    own: Path, parent: Path, values: dict[str, Any], database: dict[str, str]
) -> None:
    params = workload(own, **values).resolved()
    job = Job(params, database)
    try:
        job.prepare(WorkDir.create("mongo", parent=parent), None)
        job.load()
        job.start()
        result = job.verify(job.run())
        assert {name: result.details["settings"][name] for name in database} == database
        assert bool(list(job.role_paths()["wal"].iterdir())) == ("log.enabled" not in database)
        assert (result.details["closing_seconds"] > 0) == job.params["final_checkpoint"]
        job.stop()
    finally:
        job.cleanup()


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (packed(*range(2299)), "documents restored should be 2300 but is 2299"),
        (packed(*range(2299), 4000), "sum over all documents should be"),
    ],
)
def test_a_document_that_is_lost_or_another_is_found(own: Path, parent: Path, left: bytes, said: str) -> None:
    told = pytest.raises(ZtuneError, match=said)
    with told, running(workload(own), parent=parent) as made:
        (made.role_paths()["source"] / ARCHIVE).write_bytes(left)
        made.verify(made.run())
    assert list(parent.iterdir()) == []


def test_a_document_that_the_database_does_not_hold_is_found(own: Path, parent: Path) -> None:
    told = pytest.raises(ZtuneError, match="documents in the database should be 2301 but is 2300")
    with told, running(workload(own), parent=parent) as made:
        result = made.run()
        made.job.input = replace(made.job.input, documents=2301)
        # Whoever restored them says that all are in; the database knows better.
        made.verify(replace(result, operations=2301))


def test_an_archive_with_several_collections(parent: Path) -> None:
    path = parent / "own.archive.gz"
    path.write_bytes(WHOLE)
    with running(workload(path), parent=parent) as made:
        result = made.verify(made.run())
        assert result.operations == 4
        assert result.details["input"]["namespaces"] == {"shop.a": 3, "shop.b": 1}
        names = {item.name for item in made.role_paths()["data"].iterdir()}
        assert {"collection-0.wt", "collection-1.wt", "index-1.wt"} <= names


def test_an_archive_that_is_cut_off(parent: Path) -> None:
    path = parent / "own.bson.gz"
    path.write_bytes(packed(*range(200))[:-20])
    told = pytest.raises(InputError, match=r"own\.bson\.gz: no gzip archive .* cut off or damaged")
    with told, running(workload(path), parent=parent):
        pass
    assert list(parent.iterdir()) == [path]


def test_an_archive_that_is_damaged_later_is_told(own: Path, parent: Path) -> None:
    told = pytest.raises(ZtuneError, match=r"WiredTiger 11.2 failed in 'restore': it is cut off or damaged")
    with told, running(workload(own), parent=parent) as made:
        (made.role_paths()["source"] / ARCHIVE).write_bytes(own.read_bytes()[:-20])
        made.run()


def test_an_identifier_that_is_there_twice_is_told(parent: Path) -> None:
    path = parent / "own.bson.gz"
    path.write_bytes(packed(1, 2, 3, 2))
    told = pytest.raises(ZtuneError, match=r"document 4 of ztune\.documents: .*(?i:duplicate)")
    with told, running(workload(path), parent=parent) as made:
        made.run()


def test_death_in_the_middle_is_told(parent: Path) -> None:
    path = parent / "own.bson.gz"
    path.write_bytes(packed(*range(30_000)))
    seen: list[int] = []
    told = pytest.raises(ZtuneError, match=r"WiredTiger 11.2 died in 'restore' \(was ended by SIGKILL\)")
    with told, running(workload(path), parent=parent) as made:
        [pid] = made.pids()

        def progress(step: str, done: float) -> None:
            if step == "restore the archive" and 0 < done < 1 and not seen:
                seen.append(pid)
                os.kill(pid, signal.SIGKILL)

        made.run(progress)
    assert seen and Identity.of(seen[0]) is None
    assert list(parent.iterdir()) == [path]


def test_a_copy_is_taken_over(own: Path, parent: Path) -> None:
    first = places_of(parent / "first")
    made = workload(own)
    made.prepare(WorkDir.create("mongo", parent=parent), first)
    assert all(list(path.iterdir()) == [] for path in first.values())
    made.load()
    made.stop()
    made.cleanup()
    assert list(first["data"].iterdir()) == [] and (first["source"] / ARCHIVE).is_file()
    again, second = workload(own), places_of(parent / "second")
    again.prepare(WorkDir.create("mongo", parent=parent), second)
    try:
        with pytest.raises(ZtuneError, match="there is no archive of mongo-restore to take over"):
            again.job.adopt(second)
        shutil.copytree(first["source"], second["source"], dirs_exist_ok=True)
        again.job.adopt(second)
        again.start()
        assert again.verify(again.run()).operations == 2300
        again.stop()
    finally:
        again.cleanup()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"log.path": "/x"}, "the role wal says"),
        ({"leaf_pages_max": "4096"}, "did you mean 'leaf_page_max'"),
        ({"leaf_page_max": "32K"}, "whole number"),
        ({"block_compressor": "snappy"}, "not built in here; it is one of none, lz4, zlib"),
        ({"sync": "maybe"}, "is one of on, off"),
    ],
)
def test_settings_are_checked_before_anything_is_made(own: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Job(workload(own).resolved(), settings).check()


def test_what_wiredtiger_itself_does_not_take(own: Path, parent: Path) -> None:
    job = Job(workload(own).resolved(), {"allocation_size": "5000"})
    try:
        job.prepare(WorkDir.create("mongo", parent=parent), None)
        job.load()
        with pytest.raises(InputError, match=r"WiredTiger 11.2 failed in 'open'.*its log ends: .*allocation"):
            job.start()
    finally:
        job.cleanup()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input": "file"}, "no file is named"),
        ({"input": "debian", "file": "x"}, "leave one out"),
        ({"leaf_page": "12K"}, "power of two"),
    ],
)
def test_parameters_that_make_no_sense(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        MongoRestore(values)


def test_it_runs_from_the_trial_s_archive(own: Path, parent: Path) -> None:
    """Where nothing of ztune's is installed: the client's source comes out of the zip file."""
    program = (
        f"import sys; sys.path.insert(0, {str(bundle.build())!r})\n"
        "from pathlib import Path\n"
        "from ztune.onhost.jobs import registry\n"
        "from ztune.onhost.host.workdir import WorkDir\n"
        f"job = registry.get('mongo-restore')({workload(own).resolved()!r}, {{}})\n"
        f"work = WorkDir.create('mongo', parent=Path({str(parent)!r}))\n"
        "job.prepare(work); job.load(); job.start()\n"
        "result = job.verify(job.run()); job.stop(); job.cleanup(); print(result.operations)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2300
