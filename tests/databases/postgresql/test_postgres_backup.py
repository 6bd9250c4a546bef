"""The workloads ``postgres-backup`` and ``postgres-restore`` with the PostgreSQL that is here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ztune.databases.postgresql.onhost.server import Binaries, find_binaries
from ztune.databases.postgresql.workload_backup import PostgresBackup, PostgresRestore
from ztune.databases.workload import running
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir


def places_of(parent: Path, *roles: str) -> dict[str, Path]:
    found = {role: parent / role for role in roles}
    for path in found.values():
        path.mkdir(parents=True)
    parent.chmod(0o755)
    return found


@pytest.fixture(scope="module", autouse=True)
def needs_clients(needs_postgres: None) -> None:
    directory = find_binaries().directory
    for name in ("pg_basebackup", "pg_verifybackup", "pg_dump", "pg_restore"):
        if not (directory / name).exists():
            pytest.skip(f"no {name} here")


def test_a_base_backup_and_its_archive_are_made_and_proved(parent: Path) -> None:
    with running(PostgresBackup({"scale": 1, "rate": 500}), parent=parent) as workload:
        assert set(workload.role_paths()) == {"data", "wal", "backup", "archive"}
        assert set(workload.job.roles()) == set(workload.role_paths())
        result = workload.verify(workload.run())
        assert result.operations == 100_011 and all(check.ok for check in result.checks)
        base, archive = workload.role_paths()["backup"] / "base", workload.role_paths()["archive"]
        assert (base / "backup_manifest").exists() and not any((base / "pg_wal").glob("0*"))
        segments = sorted(path for path in archive.iterdir() if "." not in path.name)
        assert len(segments) == result.details["segments_archived"] >= 1
        assert result.details["archive_bytes"] == len(segments) * (16 << 20)
        assert result.details["transactions_meanwhile"] > 0
        # A segment that is missing, and one that is not as it was.
        kept = segments[-1].read_bytes()
        segments[-1].write_bytes(kept[:100] + bytes([kept[100] ^ 0xFF]) + kept[101:])
        with pytest.raises(ZtuneError, match=r"pg_verifybackup|segments like those in the log"):
            workload.verify(result)
        segments[-1].unlink()
        with pytest.raises(ZtuneError, match=r"pg_verifybackup|segments in the archive should be"):
            workload.verify(result)
    assert list(parent.iterdir()) == []


def test_an_archive_that_takes_nothing_is_told(parent: Path) -> None:
    with running(PostgresBackup({"scale": 1, "rate": 0}), parent=parent) as workload:
        # The name that the first segment would get is taken.
        archive = workload.job._archive
        (archive.folder / f"{1:08X}{0:08X}{archive._first:08X}").touch()
        with pytest.raises(ZtuneError, match=r"could not archive its log; .*archive command failed"):
            workload.run()
        workload.cleanup()


def test_a_base_backup_with_its_own_log_is_made_and_proved(parent: Path) -> None:
    with running(PostgresBackup({"scale": 1, "archive": False}), parent=parent) as workload:
        assert "archive" not in {*workload.job.roles(), *workload.role_paths()}
        server, shell = workload.pids()
        assert server != shell
        result = workload.verify(workload.run())
        assert result.operations == 100_011 and all(check.ok for check in result.checks)
        backup = workload.role_paths()["backup"] / "base"
        assert (backup / "backup_manifest").exists() and result.details["backup_bytes"] > 20 << 20
        # A byte that is not as it was.
        path = max((backup / "base").rglob("*"), key=lambda path: path.stat().st_size)
        with path.open("r+b") as file:
            file.seek(100)
            (was,) = file.read(1)
            file.seek(100)
            file.write(bytes([was ^ 0xFF]))
        with pytest.raises(ZtuneError, match=r"pg_verifybackup .*checksum mismatch"):
            workload.verify(result)
    assert list(parent.iterdir()) == []


def test_a_dump_is_made_from_a_copy_and_proved(parent: Path) -> None:
    first = PostgresBackup({"scale": 1, "method": "dump"})
    saved = places_of(parent / "saved", "data", "wal", "backup")
    first.prepare(WorkDir.create("pg", parent=parent), saved)
    first.load()
    first.cleanup()
    workload = PostgresBackup(
        {"scale": 1, "method": "dump", "compress": 1}, database={"shared_buffers": "16MB"}
    )
    places = places_of(parent / "trial", "data", "wal", "backup")
    workload.prepare(WorkDir.create("pg", parent=parent), places)
    try:
        for role, path in saved.items():
            shutil.copytree(path, places[role], symlinks=True, dirs_exist_ok=True)
        workload.job.adopt(places)
        workload.start()
        result = workload.verify(workload.run())
        counts = {check.name.split()[2]: check.got for check in result.checks}
        assert counts == {
            "pgbench_accounts": 100_000, "pgbench_branches": 1, "pgbench_history": 0, "pgbench_tellers": 10,
        }  # fmt: skip
        assert 1 << 20 < result.details["backup_bytes"] < 12 << 20
        assert workload.job.server.value("SHOW shared_buffers") == "16MB"
        workload.stop()
    finally:
        workload.cleanup()


def test_a_dump_is_restored_and_proved(parent: Path) -> None:
    with running(PostgresRestore({"scale": 1}), parent=parent) as workload:
        assert workload.job.server.value("SELECT count(*) FROM pg_class WHERE relname ~ '^pgbench'") == "0"
        result = workload.verify(workload.run())
        assert result.operations == 100_011 and all(check.ok for check in result.checks)
        assert set(workload.role_paths()) == {"data", "wal", "source"} == set(workload.job.roles())
        workload.job.server.sql("DELETE FROM pgbench_accounts WHERE aid = 5")
        with pytest.raises(ZtuneError, match="rows of pgbench_accounts should be 100000 but is 99999"):
            workload.verify(result)
    assert list(parent.iterdir()) == []


def test_a_dump_that_is_cut_is_told_with_the_clients_words(parent: Path) -> None:
    with running(PostgresRestore({"scale": 1}), parent=parent) as workload:
        dump = workload.role_paths()["source"] / "database.dump"
        with dump.open("r+b") as file:
            file.truncate(dump.stat().st_size // 2)
        with pytest.raises(ZtuneError, match=r"pg_restore ended with exit code 1: .*error"):
            workload.run()


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    workload = PostgresRestore({"scale": 1})
    workload.job._binaries = Binaries(tmp_path, "15.0")
    with pytest.raises(MissingError, match="postgres-restore: there is no pg_restore beside"):
        workload.check()
