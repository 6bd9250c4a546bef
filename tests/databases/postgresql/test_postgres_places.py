"""PostgreSQL on directories that are given: as in a trial, with settings from the layout."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztune.databases.postgresql.onhost import server as postgres
from ztune.databases.postgresql.onhost.server import check_settings, find_binaries
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.process import Identity, descendants
from ztune.onhost.host.workdir import WorkDir

SMALL = {"scale": 1, "seconds": 2, "warmup": 0, "clients": 2, "rate": 100, "max_wal_size": "32M"}
SETTINGS = {"full_page_writes": "off", "wal_recycle": "off", "max_wal_size": "48MB", "shared_buffers": "16MB"}


def make(parent: Path, name: str) -> dict[str, Path]:
    made = {role: parent / name / role for role in ("data", "wal", "temp")}
    for path in made.values():
        path.mkdir(parents=True)
    return made


@pytest.fixture(scope="module")
def saved(needs_postgres: None, open_parent: Path) -> Iterator[Path]:
    """The state after the load, as a trial keeps it: one directory per role."""
    parent = open_parent / "saved"
    parent.mkdir(mode=0o755)
    places = make(parent, "made")
    workload = PostgresOltp(SMALL)
    work = WorkDir.create("pg", parent=parent)
    workload.prepare(work, places)
    assert all(list(path.iterdir()) == [] for path in places.values()), "prepare leaves the places empty"
    workload.load()
    workload.stop()
    assert workload.pids() == []
    for role, size in workload.job.expected_bytes().items():
        found = sum(path.stat().st_size for path in places[role].rglob("*") if path.is_file())
        assert 0.8 * size < found < 1.3 * size or role == "wal", role
    workload.cleanup()
    assert [path for path in parent.iterdir() if path.name != "made"] == []
    assert (places["data"] / "pg_wal").readlink() == places["wal"] and list(places["temp"].iterdir()) == []
    yield parent / "made"
    shutil.rmtree(parent)


@pytest.fixture
def job(saved: Path, parent: Path) -> Iterator[tuple[PostgresOltp, dict[str, Path]]]:
    workload = PostgresOltp(SMALL, database=SETTINGS)
    places = make(parent, "trial")
    work = WorkDir.create("pg", parent=parent)
    workload.prepare(work, places)
    for role in ("data", "wal"):
        shutil.copytree(saved / role, places[role], symlinks=True, dirs_exist_ok=True)
    yield workload, places
    workload.cleanup()


def test_a_copy_is_taken_over_and_measured(job: tuple[PostgresOltp, dict[str, Path]], saved: Path) -> None:
    workload, places = job
    (places["data"] / "PG_VERSION").chmod(0o666)
    workload.job.adopt(places)
    assert (places["data"] / "pg_wal").readlink() == places["wal"]
    assert (places["data"] / "PG_VERSION").stat().st_mode & 0o777 == 0o600
    untouched = sorted((path.name, path.stat().st_mtime_ns) for path in (saved / "wal").iterdir())
    workload.start()
    result = workload.verify(workload.run())
    details = result.details
    assert {name: details["settings"][name] for name in SETTINGS} == SETTINGS
    assert details["settings"]["fsync"] == "on" and details["settings"]["min_wal_size"] == "48MB"
    assert details["wal_bytes"] > 0 and details["wal_full_page_images"] == 0
    assert details["wal_bytes_per_transaction"] == pytest.approx(
        details["wal_bytes"] / result.operations, 0.01
    )
    # Each transaction waits for its own log, or for one written together.
    assert 0 < details["wal_syncs"] <= result.operations + 20
    log = result.log
    assert (log["writes"], log["syncs"]) == (details["wal_writes"], details["wal_syncs"])
    assert 0 < log["write_s"] < result.seconds * 4 and 0 < log["sync_s"] < result.seconds * 4
    assert details["settings"]["track_wal_io_timing"] == "on"
    assert details["checkpoints"] >= 1 and details["checkpoint_pages"] > 0
    assert json.loads(json.dumps(result.to_json()))["details"]["pages_hit"] > 0
    workload.stop()
    assert not (places["data"] / "postmaster.pid").exists()
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (saved / "wal").iterdir()) == untouched


def test_full_pages_are_counted_when_they_are_written(
    job: tuple[PostgresOltp, dict[str, Path]],
) -> None:
    workload, places = job
    del workload.job.database["full_page_writes"]
    workload.job.database["track_wal_io_timing"] = "off"
    workload.job.adopt(places)
    workload.start()
    result = workload.verify(workload.run())
    assert result.log.keys() == {"writes", "syncs"}, "what was not timed has no times, not zeros"
    details = result.details
    assert details["settings"]["full_page_writes"] == "on" and details["wal_full_page_images"] > 0
    assert details["wal_bytes"] > 1000 * details["wal_full_page_images"]
    workload.stop()


def test_states_that_are_not_right_are_refused(job: tuple[PostgresOltp, dict[str, Path]]) -> None:
    workload, places = job
    adopt = workload.job.adopt
    version = places["data"] / "PG_VERSION"
    text = version.read_text()
    version.write_text("9\n")
    with pytest.raises(ZtuneError, match=r"the cluster is PostgreSQL 9's, which .* can't open"):
        adopt(places)
    version.write_text(text)
    (places["data"] / "postmaster.pid").write_text("1\n")
    with pytest.raises(ZtuneError, match="copied while a server ran"):
        adopt(places)
    (places["data"] / "postmaster.pid").unlink()
    with pytest.raises(ZtuneError, match="data was prepared at"):
        adopt({**places, "data": places["temp"]})
    version.unlink()
    with pytest.raises(ZtuneError, match="no PostgreSQL cluster to take over"):
        adopt(places)


def test_another_scale_is_found(saved: Path, parent: Path) -> None:
    workload = PostgresOltp({**SMALL, "scale": 2})
    places = make(parent, "trial")
    workload.prepare(WorkDir.create("pg", parent=parent), places)
    try:
        for role in ("data", "wal"):
            shutil.copytree(saved / role, places[role], symlinks=True, dirs_exist_ok=True)
        workload.job.adopt(places)
        with pytest.raises(ZtuneError, match="the database has scale 1, not 2"):
            workload.start()
    finally:
        workload.cleanup()


def test_a_server_that_does_not_stop_is_forced_and_told(
    job: tuple[PostgresOltp, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, places = job
    workload.job.adopt(places)
    workload.start()
    [pid] = workload.pids()
    family = [Identity.of(pid), *descendants(pid)]
    monkeypatch.setattr(postgres, "STOP_SECONDS", 0.2)
    # Its checkpointer stands still, so the last checkpoint never comes; SIGQUIT doesn't wait for it.
    asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    os.kill(int(workload.job.server.value(asked)), signal.SIGSTOP)
    with pytest.raises(ZtuneError, match=r"did not shut down in order within 0 s and was (killed|stopped)"):
        workload.stop()
    assert not any(process is not None and process.alive() for process in family)
    workload.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"full_page_write": "off"}, "has no setting 'full_page_write'; did you mean 'full_page_writes'"),
        ({"zzzzzz": "1"}, "has no setting 'zzzzzz'; such are full_page_writes"),
        ({"port": "1"}, "'port' can't be chosen by a layout: it is reached by its own socket"),
        ({"data_directory": "/x"}, "the layout's datasets say where"),
        ({"block_size": "16384"}, "fixed when PostgreSQL is built"),
        ({"max_connections": "5"}, "'clients' decides it"),
    ],
)
def test_settings_are_checked_before_anything_is_made(
    needs_postgres: None, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        PostgresOltp(SMALL, database=settings).check()


def test_usual_settings_are_known(needs_postgres: None) -> None:
    names = (
        *("full_page_writes", "wal_recycle", "wal_init_zero", "wal_compression", "synchronous_commit"),
        *("checkpoint_timeout", "max_wal_size", "shared_buffers", "fsync", "wal_sync_method", "commit_delay"),
    )
    check_settings(find_binaries(), {**dict.fromkeys(names, "1"), "wal_sync_method": "fdatasync"})


def test_a_wrong_value_is_told_with_the_servers_words(saved: Path, parent: Path) -> None:
    workload = PostgresOltp(SMALL, database={"checkpoint_timeout": "perhaps"})
    places = make(parent, "trial")
    workload.prepare(WorkDir.create("pg", parent=parent), places)
    try:
        for role in ("data", "wal"):
            shutil.copytree(saved / role, places[role], symlinks=True, dirs_exist_ok=True)
        workload.job.adopt(places)
        with pytest.raises(InputError, match=r"PostgreSQL did not start .*checkpoint_timeout"):
            workload.start()
    finally:
        workload.cleanup()


def test_a_wrong_word_is_told_before_anything_starts(needs_postgres: None) -> None:
    with pytest.raises(InputError, match=r"synchronous_commit is 'perhaps'; it is one of on, off"):
        check_settings(find_binaries(), {"synchronous_commit": "perhaps"})


def test_places_must_be_there_and_empty(needs_postgres: None, parent: Path) -> None:
    places = make(parent, "trial")
    (places["wal"] / "theirs").write_text("x")
    for wrong, said in (
        (places, "the directory for the role wal is not empty"),
        ({"data": places["data"]}, "no dataset of the layout has the role 'wal'"),
        ({**places, "wal": parent / "none"}, "no directory for the role wal"),
    ):
        work = WorkDir.create("pg", parent=parent)
        with pytest.raises(InputError, match=said):
            PostgresOltp(SMALL).prepare(work, wrong)
        work.remove()
    assert (places["wal"] / "theirs").read_text() == "x"
