"""Real databases on the mount: start, load, run, stop; mounted again: start, run on; their own checks."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import shutil
import signal
import sqlite3
import sqlite3.dump  # now: another user can't import it later
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mount_children import Child, Died, Signal, in_child
from mount_ground import LARGE, SMALL, Ground, Mounted, spec

from ztune.databases import registry
from ztune.databases.mariadb.onhost.oltp import MariadbOltp
from ztune.databases.postgresql.onhost.oltp import PostgresOltp
from ztune.databases.workload import JobWorkload
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir

pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may run databases as other users"),
]


@pytest.fixture
def parent() -> Iterator[Path]:
    """For work directories: what is no part of the database stays off the mount."""
    path = Path(tempfile.mkdtemp(prefix="wl-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def workload(name: str, params: dict[str, Any]) -> JobWorkload:
    made = registry.get(name)(params)
    assert isinstance(made, JobWorkload)
    try:
        made.check()
    except MissingError as error:
        pytest.skip(str(error))
    return made


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


# --- what each database says of itself -----------------------------------------------------------------


def of_postgres(made: JobWorkload) -> str:
    """The server runs. amcheck compares every index with its table; the dump is all that is in it."""
    job = made.job
    assert isinstance(job, PostgresOltp)
    job.server.sql("CREATE EXTENSION IF NOT EXISTS amcheck")
    job.server.client("pg_amcheck", "--all", "--heapallindexed", "--parent-check")
    dump = job.server.client("pg_dumpall", "--no-role-passwords")
    # Those lines have a random word in them, each time another.
    return sha("".join(line for line in dump.splitlines(True) if "restrict " not in line[:12]))


def of_mariadb(made: JobWorkload) -> str:
    job = made.job
    assert isinstance(job, MariadbOltp)
    names = [
        f"`{schema}`.`{table}`"
        for schema, table in job.server.sql(
            "SELECT table_schema, table_name FROM information_schema.tables "
            "WHERE engine = 'InnoDB' AND table_type = 'BASE TABLE'"
        )
    ]
    assert any("sbtest" in name for name in names)
    for name in names:
        for row in job.server.sql(f"CHECK TABLE {name} EXTENDED"):
            assert row[-2:] == ["status", "OK"], row
    [name] = [name for name in names if "sbtest" in name]
    return str(job.server.sql(f"CHECKSUM TABLE {name} EXTENDED"))


def of_sqlite(made: JobWorkload) -> str:
    """As the database's own user, or files would be left that it can't open."""
    nobody = pwd.getpwnam("nobody")
    path = made.role_paths()["data"] / "ledger.db"

    def look() -> str:
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return sha("\n".join(connection.iterdump()))

    return in_child(look, uid=nobody.pw_uid, gid=nobody.pw_gid)


def of_rocksdb(made: JobWorkload) -> str:
    paths = made.role_paths()
    where = f"--db={paths['data']}"
    checked = subprocess.run(["ldb", where, "checkconsistency"], capture_output=True, text=True)
    assert checked.returncode == 0 and "OK" in checked.stdout, checked.stdout + checked.stderr
    done = subprocess.run(["ldb", where, "dump", "--hex"], capture_output=True, check=True)
    assert done.stdout.count(b" ==> ") > 1000
    for table in paths["data"].glob("*.sst"):
        verified = subprocess.run(
            ["sst_dump", f"--file={table}", "--command=verify"], capture_output=True, text=True
        )
        assert verified.returncode == 0 and "corrupt" not in verified.stdout.lower(), verified.stdout
    return sha(done.stdout)


def of_orientdb(made: JobWorkload) -> str:
    return ""  # it proves itself in `verify`, by reading all that it holds


SHORT = {"seconds": 1, "warmup": 0, "rate": 0}
DATABASES: list[tuple[str, dict[str, Any], Callable[[JobWorkload], str], bool]] = [
    # name, parameters, its fingerprint, whether its server runs for that
    ("postgres-oltp", {**SHORT, "scale": 1, "clients": 3}, of_postgres, True),
    ("sqlite", {**SHORT, "size": "3M", "clients": 3}, of_sqlite, False),
    (
        "rocksdb",
        {"size": "8M", "operations": 1500, "rate": 0, "threads": 3, "write_buffer": "256K"},
        of_rocksdb,
        False,
    ),
]
LONG: list[tuple[str, dict[str, Any], Callable[[JobWorkload], str], bool]] = [
    # By default PostgreSQL stands for servers with processes and users of their own.
    ("mariadb-oltp", {**SHORT, "size": "4M", "threads": 2, "buffer_pool": "24M"}, of_mariadb, True),
    ("sqlite", {**SHORT, "size": "2M", "clients": 2, "journal_mode": "delete"}, of_sqlite, False),
    ("sqlite", {**SHORT, "size": "2M", "mmap_size": "64M", "page_size": "8K"}, of_sqlite, False),
    ("postgres-oltp", {**SHORT, "seconds": 60, "scale": 10, "clients": 8}, of_postgres, True),
    ("mariadb-oltp", {**SHORT, "seconds": 60, "size": "256M", "threads": 8}, of_mariadb, True),
    ("sqlite", {**SHORT, "seconds": 60, "size": "128M", "clients": 8}, of_sqlite, False),
    ("rocksdb", {"size": "256M", "operations": 60_000, "rate": 0, "threads": 8}, of_rocksdb, False),
    ("orientdb-graph", {"triples": 3000}, of_orientdb, False),
]


def lives(
    ground: Ground,
    folders: dict[str, Path],
    parent: Path,
    name: str,
    params: dict[str, Any],
    fingerprint: Callable[[JobWorkload], str],
    running: bool,
) -> None:
    """Data on one dataset, log on the other, where the database can."""
    made = workload(name, params)
    places = {}
    for role in made.job.roles():
        places[role] = folders["large" if role in ("wal", "backup", "source") else "small"] / role
    if name == "sqlite":
        places["wal"] = places["data"]  # its log lies beside its database
    for path in {*places.values()}:
        path.mkdir(mode=0o755)
    try:
        made.prepare(WorkDir.create("mount", parent=parent), places)
        made.load()
        made.start()
        made.verify(made.run())
        before = fingerprint(made) if running else ""
        made.stop()
        before = before or fingerprint(made)
        files = {path: sorted(os.listdir(path)) for path in places.values()}
        ground.restart()
        assert {path: sorted(os.listdir(path)) for path in places.values()} == files
        after = "" if running else fingerprint(made)
        made.start()
        assert (after or fingerprint(made)) == before
        if name != "orientdb-graph":  # its run fills an empty database
            made.run()
            if running:
                fingerprint(made)
            made.stop()
            if not running:
                fingerprint(made)
        else:
            made.stop()
    finally:
        made.cleanup()


@pytest.fixture
def folders(place: Path, other: Path) -> dict[str, Path]:
    return {"small": place, "large": other}


def named(
    cases: list[tuple[str, dict[str, Any], Callable[[JobWorkload], str], bool]],
    suffix: str = "",
    marks: tuple[pytest.MarkDecorator, ...] = (),
) -> list[Any]:
    return [pytest.param(*case, id=f"{case[0]}-{n}{suffix}", marks=marks) for n, case in enumerate(cases)]


@pytest.mark.parametrize(
    "name, params, fingerprint, running",
    named(DATABASES) + named(LONG, "-long", (pytest.mark.long, pytest.mark.timeout(1200))),
)
def test_a_database_lives_on_the_mount(
    ground: Ground,
    folders: dict[str, Path],
    parent: Path,
    name: str,
    params: dict[str, Any],
    fingerprint: Callable[[JobWorkload], str],
    running: bool,
) -> None:
    lives(ground, folders, parent, name, params, fingerprint, running)


# --- SQLite from several processes: its index of the log is memory that they share --------------------


def add_rows(path: Path, who: int, count: int, said: Signal) -> int:
    with closing(sqlite3.connect(path, timeout=100, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        said.say()
        for n in range(count):
            connection.execute("BEGIN IMMEDIATE")
            [last] = connection.execute("SELECT coalesce(max(n), -1) FROM t WHERE who = ?", (who,)).fetchone()
            assert last == n - 1, "what was committed is seen"
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", (who, n, "x" * 700))
            connection.execute("COMMIT")
    return count


@pytest.mark.parametrize("mode", ["wal", "truncate"])
def test_sqlite_from_several_processes(ground: Ground, place: Path, mode: str) -> None:
    path, said = place / "shared.db", Signal()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode,)
        connection.execute("CREATE TABLE t (who INT, n INT, filling TEXT)")
        connection.execute("CREATE INDEX i ON t (who, n)")
        children = [Child(partial(add_rows, path, who, 40, said)) for who in range(4)]
        # One that is killed in the middle must not damage or lock out the others.
        victim = Child(partial(add_rows, path, 99, 100_000, said))
        for _ in range(5):
            said.wait()
        while connection.execute("SELECT count(*) FROM t WHERE who = 99").fetchone()[0] < 3:
            pass
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(Died):
            victim.result()
        assert [child.result() for child in children] == [40] * 4
        counts = connection.execute("SELECT who, count(*), max(n) + 1 FROM t GROUP BY who").fetchall()
        assert [row for row in counts if row[0] < 99] == [(who, 40, 40) for who in range(4)]
        assert all(row[1] == row[2] for row in counts)
        before = connection.execute("SELECT * FROM t ORDER BY who, n").fetchall()
    ground.restart()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT * FROM t ORDER BY who, n").fetchall() == before


# --- LMDB: reads are memory of the file, its readers' table is shared and locked -----------------------


def lmdb_write(path: Path, who: int, writemap: bool, rounds: int) -> int:
    import lmdb

    with closing(lmdb.open(str(path), map_size=1 << 30, writemap=writemap, max_readers=32)) as env:
        r = random.Random(who)
        for n in range(rounds):
            with env.begin(write=True) as t:
                for k in range(20):
                    t.put(f"{who}-{n}-{k}".encode(), r.randbytes(r.choice([10, 500, 9000])))
                if n % 3 == 2:
                    t.delete(f"{who}-{n - 1}-0".encode())
            with env.begin() as t:  # a reader beside the other writers
                assert t.get(f"{who}-{n}-19".encode()) is not None
    return rounds


def lmdb_content(path: Path) -> tuple[int, str]:
    import lmdb

    with closing(lmdb.open(str(path), map_size=1 << 30, readonly=True)) as env, env.begin() as t:
        digest, count = hashlib.sha256(), 0
        for key, value in t.cursor():
            digest.update(key + b"=" + value)
            count += 1
        assert env.stat()["entries"] == count
        return count, digest.hexdigest()


@pytest.mark.parametrize("writemap", [False, True], ids=["pwrite", "writemap"])
def test_lmdb_from_several_processes(ground: Ground, each: Path, writemap: bool) -> None:
    pytest.importorskip("lmdb", reason="no lmdb module here: pip install lmdb")
    path = each / "db"
    path.mkdir()
    children = [Child(partial(lmdb_write, path, who, writemap, 15)) for who in range(3)]
    assert [child.result() for child in children] == [15] * 3
    before = in_child(partial(lmdb_content, path))
    assert before[0] == 3 * (15 * 20 - 5)
    ground.restart()
    assert in_child(partial(lmdb_content, path)) == before
    assert in_child(partial(lmdb_write, path, 7, writemap, 5)) == 5
    if shutil.which("mdb_dump"):
        done = subprocess.run(["mdb_dump", path], capture_output=True)
        if b"VERSION" in done.stdout:  # another version of its library may not read our file
            copy = each / "copy"
            copy.mkdir()
            subprocess.run(["mdb_load", copy], input=done.stdout, check=True, capture_output=True)
            assert subprocess.run(["mdb_dump", copy], capture_output=True).stdout.count(b"\n") > 2 * before[0]


# --- a pool that fills up under a database ----------------------------------------------------------------


# Long: on a pool's last megabytes ZFS waits for a transaction group at each write.
@pytest.mark.long
@pytest.mark.parametrize(
    "name, params, disk, said",
    [
        ("sqlite", {"size": "96M"}, 96 << 20, r"disk is full"),
        ("postgres-oltp", {"scale": 12}, 192 << 20, r"No space left on device|free disk space"),
    ],
)
def test_a_full_pool_is_said_by_the_database(
    own_mount: Callable[..., Mounted], parent: Path, name: str, params: dict[str, Any], disk: int, said: str
) -> None:
    made = workload(name, params)
    mounted = own_mount(spec(disk=disk))
    data = mounted.places[SMALL] / "data"
    wal = mounted.places[LARGE] / "wal"
    for path in (data, wal):
        path.mkdir(mode=0o755)
    with pytest.raises(ZtuneError, match=said):
        try:
            made.prepare(
                WorkDir.create("full", parent=parent),
                {"data": data, "wal": data if name == "sqlite" else wal},
            )
            made.load()
        finally:
            made.cleanup()
    mounted.restart()  # neither the program nor the pool is the worse for it
    assert data.is_dir()
