"""The server under supervision, on the real PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ztune.databases.postgresql.onhost.server import Binaries, PostgresServer, find_binaries
from ztune.databases.postgresql.workload_oltp import PostgresOltp
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import Account
from ztune.onhost.host.workdir import WorkDir


def fake(directory: Path, version: str, *, leave_out: str = "") -> Path:
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb", "psql", "pgbench"):
        if name != leave_out:
            (directory / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version} (Somewhere)'\n")
            (directory / name).chmod(0o755)
    return directory


def test_newest_complete_installation_wins(tmp_path: Path) -> None:
    fake(tmp_path / "9.6" / "bin", "9.6.24")
    fake(tmp_path / "15" / "bin", "15.7")
    fake(tmp_path / "17" / "bin", "17.1", leave_out="pgbench")
    found = find_binaries({}, (tmp_path,))
    assert (found.directory, found.version, found.major) == (tmp_path / "15" / "bin", "15.7", 15)


def test_path_is_the_last_resort(tmp_path: Path) -> None:
    there = fake(tmp_path / "somewhere", "18beta1")
    found = find_binaries({"PATH": str(there)}, (tmp_path / "none",))
    assert (found.directory, found.major) == (there, 18)


def test_environment_comes_first_and_is_checked(tmp_path: Path) -> None:
    fake(tmp_path / "15" / "bin", "15.7")
    own = fake(tmp_path / "own", "16.2")
    assert find_binaries({"ZTUNE_PG_BINDIR": str(own)}, (tmp_path,)).version == "16.2"
    (own / "psql").unlink()
    with pytest.raises(InputError, match=r"ZTUNE_PG_BINDIR=.*no program 'psql'"):
        find_binaries({"ZTUNE_PG_BINDIR": str(own)}, (tmp_path,))


def test_nothing_found_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"install them with `.*postgresql.*ZTUNE_PG_BINDIR"):
        find_binaries({"PATH": ""}, (tmp_path,))


@pytest.fixture
def work(parent: Path) -> Iterator[WorkDir]:
    made = WorkDir.create("pg", parent=parent)
    yield made
    made.remove()


def server_in(work: WorkDir, binaries: Binaries | None = None) -> PostgresServer:
    user = Account.for_database("postgres")
    home, data, wal = (work.sub(name, owner=user.owner) for name in ("run", "data", "wal"))
    return PostgresServer(binaries or find_binaries(), work, home, user, data=data, wal=wal)


@pytest.fixture
def server(needs_postgres: None, work: WorkDir) -> Iterator[PostgresServer]:
    made = server_in(work)
    made.initialise()
    made.configure({"fsync": False, "shared_buffers": "1MB", "max_connections": 10})
    yield made
    made.kill()


def test_private_and_split(server: PostgresServer, work: WorkDir) -> None:
    server.start()
    assert server.value("SHOW data_checksums") == "on"
    assert server.value("SHOW listen_addresses") == ""
    assert (server.data / "pg_wal").resolve() == server.wal and any(server.wal.iterdir())
    process = psutil.Process(server.pid)
    assert process.uids().real != 0
    family = [process, *process.children(recursive=True)]
    found: list[object] = []
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # workers of its own come and go
            found += [c for c in one.net_connections() if c.family != socket.AF_UNIX]
    assert process.is_running() and found == []
    assert server.socket_dir.stat().st_mode & 0o077 == 0
    assert server.sql("SELECT 1, 'a' UNION ALL SELECT 2, 'b'") == [["1", "a"], ["2", "b"]]
    with pytest.raises(ZtuneError, match='relation "nothing" does not exist'):
        server.sql("SELECT * FROM nothing")
    server.stop()
    assert not server.running and not (server.data / "postmaster.pid").exists()
    server.stop()


def test_refused_settings_are_told_with_the_servers_words(server: PostgresServer) -> None:
    server.configure({"shared_buffers": "lots"})
    with pytest.raises(InputError, match=r"PostgreSQL did not start .*exit code 1.*shared_buffers") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert not server.running


def test_death_in_the_middle_ends_the_client_too(server: PostgresServer) -> None:
    server.start()
    pid = server.pid

    def strike(line: str) -> None:
        if line == "now":
            os.kill(pid, signal.SIGQUIT)

    with pytest.raises(
        ZtuneError, match=r"PostgreSQL died during the work .*its log ends: .*immediate shutdown"
    ):
        server.sql("SELECT 'now'; SELECT pg_sleep(60);", on_line=strike)
    with pytest.raises(ZtuneError, match="died"):
        server.stop()
    server.stop()


def test_a_server_that_ignores_us_is_killed_with_its_children(server: PostgresServer) -> None:
    server.start()
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    os.kill(server.pid, signal.SIGSTOP)
    server.kill()
    assert psutil.wait_procs(family, timeout=20)[1] == []


def test_long_paths_get_a_short_socket(needs_postgres: None, parent: Path) -> None:
    deep = parent / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True, mode=0o755)
    work = WorkDir.create("pg", parent=deep)
    server = server_in(work)
    try:
        server.initialise()
        server.configure({"fsync": False, "shared_buffers": "1MB"})
        server.start()
        assert not server.socket_dir.is_relative_to(work.path)
        assert server.value("SELECT 1") == "1"
    finally:
        server.kill()
        work.remove()
    assert not server.socket_dir.exists() and not server.socket_dir.parent.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the database as another user")
def test_a_directory_that_the_databases_user_cannot_enter(needs_postgres: None, parent: Path) -> None:
    closed = parent / "closed"
    closed.mkdir(mode=0o700)
    work = WorkDir.create("pg", parent=closed)
    with pytest.raises(InputError, match=r"closed: the database's user '\w+' can't work below it.*/var/tmp"):
        PostgresOltp().prepare(work)
    work.remove()
    assert list(closed.iterdir()) == []


def test_a_program_that_does_not_run(tmp_path: Path, work: WorkDir) -> None:
    broken = fake(tmp_path / "bin", "15.7")
    (broken / "initdb").write_text("#!/bin/sh\necho 'initdb: no room' >&2; exit 1\n")
    server = server_in(work, Binaries(broken, "15.7"))
    with pytest.raises(ZtuneError, match=r"initdb ended with exit code (1|126)"):
        server.initialise()
