"""Settings of databases: real servers where they are installed, configuration files of the others."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sqlite3
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ztune.databases.mariadb.onhost import settings as mariadb
from ztune.databases.observed import databases
from ztune.databases.postgresql.onhost import control
from ztune.databases.postgresql.onhost import settings as postgresql
from ztune.databases.postgresql.onhost.server import find_binaries
from ztune.errors import ZtuneError
from ztune.onhost.host.zfs import which
from ztune.onhost.look.reading import ObservedDatabase, Process, folders, ldif, size

SECRET = "hunter2"


def one(place: Path, kind: str) -> ObservedDatabase:
    """The only database of a kind in a folder; no secret is in it."""
    found, _limits = databases(roots=[place])
    (database,) = [d for d in found if d.kind == kind]
    assert SECRET not in json.dumps(asdict(database))
    return database


def test_sizes_are_bytes() -> None:
    assert [size("16MB"), size("8", 1024), size("1g"), size("1.5G"), size("4 kb")] == [
        *("16777216", "8192", "1073741824", "1610612736", "4096")
    ]
    assert [size("-1", 8192), size("auto"), size("0", 8192)] == ["-1", "auto", "0"]
    assert postgresql.value_of("16", "8kB") == "131072" and postgresql.value_of("-1", "8kB") == "-1"
    assert postgresql.value_of("200", "ms") == "200ms" and postgresql.value_of("on", "") == "on"
    assert postgresql.value_of("2", "MB") == "2097152"


def test_options_of_a_command_line() -> None:
    words = ("x", "-D", "/a", "--socket=/s", "--datadir", "/d", "-c/conf", "--lone")
    process = Process(1, "x", words, None, None)
    assert process.option("-D") == "/a" and process.option("--socket", "-S") == "/s"
    assert process.option("--datadir") == "/d" and process.option("-c") == "/conf"
    assert process.option("--lone") is None and process.option("--other") is None


def test_ldif_entries() -> None:
    text = "# no\ndn: cn=a,\n cn=b\nAttr: 1\nattr: 2\npass:: c2VjcmV0\n\n\ndn: cn=c\n"
    assert list(ldif(text)) == [{"dn": ["cn=a,cn=b"], "attr": ["1", "2"]}, {"dn": ["cn=c"]}]


def test_folders_near_a_root_but_not_behind_links(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("/usr")
    found = folders([tmp_path / "a"], 1)
    assert {tmp_path / "a" / "b" / "c" / "d", tmp_path} <= set(found)
    assert tmp_path.parent not in found
    assert not any("link" in str(f) or str(f).startswith("/usr") for f in found)


# --- PostgreSQL


def test_postgresql_conf_with_includes(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.conf").write_text("wal_buffers=16\nwork_mem '8MB'\n")
    (tmp_path / "postgresql.conf").write_text(
        "# shared_buffers = 1GB\n"
        "shared_buffers = 128MB\t# comment\n"
        "fsync on\n"
        "Full_Page_Writes = 'off'\n"
        f"primary_conninfo = 'host=x password={SECRET}'\n"
        "include_dir 'conf.d'\n"
        "include_if_exists = 'gone.conf'\n"
        "synchronous_commit = remote_apply\n"
    )
    assert postgresql.parse_conf(tmp_path / "postgresql.conf") == {
        "shared_buffers": str(128 << 20),
        "fsync": "on",
        "full_page_writes": "off",
        "wal_buffers": str(16 * 8192),
        "work_mem": str(8 << 20),
        "synchronous_commit": "remote_apply",
    }


def test_postgresql_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "global").mkdir()
    (tmp_path / "PG_VERSION").write_text("11\n")
    (tmp_path / "postgresql.conf").write_text("shared_buffers = 128MB\nfsync = on\n")
    (tmp_path / "postgresql.auto.conf").write_text("fsync = 'off'\n")
    (tmp_path / "postmaster.opts").write_text('/usr/bin/postgres "-D" "x" "-c" "shared_buffers=1GB"\n')
    found = one(tmp_path, "postgresql")
    assert found.version == "11" and found.where == str(tmp_path)
    assert found.settings["shared_buffers"] == str(1 << 30) and found.settings["fsync"] == "off"
    assert "could not be asked" in found.unknown["full_page_writes"]
    # Came with 12: nothing to be unknown.
    assert "wal_recycle" not in found.unknown


class Cluster:
    """A PostgreSQL of its own: one role with the name of who asks, and no rights."""

    def __init__(self, base: Path) -> None:
        self.data = base / "data"
        self.account = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.binaries = find_binaries().directory
        if os.geteuid() == 0:
            shutil.chown(base, "postgres")
        self.run("initdb", "-A", "trust", "-U", "boss", "-N", "-D", str(self.data))
        self.run(
            *("pg_ctl", "-w", "-D", str(self.data), "-l", str(base / "log"), "start", "-o"),
            f"-c listen_addresses='' -c unix_socket_directories={base} -c shared_buffers=24MB -c fsync=off "
            "-c port=5987",
        )
        self.pid = int((self.data / "postmaster.pid").read_text().split()[0])
        self.psql(f'CREATE ROLE "{self.account}" LOGIN')
        self.psql("ALTER SYSTEM SET wal_recycle = off")
        self.psql("SELECT pg_reload_conf()")

    def psql(self, query: str) -> None:
        self.run(
            "psql",
            "-X",
            "-h",
            str(self.data.parent),
            "-p",
            "5987",
            "-U",
            "boss",
            "-d",
            "postgres",
            "-c",
            query,
        )

    def run(self, *words: str) -> None:
        subprocess.run(
            [str(self.binaries / words[0]), *words[1:]],
            check=True,
            capture_output=True,
            cwd="/",
            user=self.account if os.geteuid() == 0 else None,
        )

    def mtimes(self) -> dict[str, int]:
        names = ("postgresql.conf", "postgresql.auto.conf", "global/pg_control", "PG_VERSION")
        return {name: (self.data / name).stat().st_mtime_ns for name in names}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        find_binaries()
    except ZtuneError as error:
        pytest.skip(f"no PostgreSQL here: {error}")
    base = Path(tempfile.mkdtemp(prefix="pg-", dir="/var/tmp"))
    base.chmod(0o755)
    made = Cluster(base)
    try:
        yield made
    finally:
        made.run("pg_ctl", "-D", str(made.data), "-m", "immediate", "stop")
        shutil.rmtree(base)


def test_a_running_postgresql_tells_a_role_without_rights(cluster: Cluster) -> None:
    before = cluster.mtimes()
    deadline = time.monotonic() + 20
    while True:  # until the server has read its configuration again
        found, limits = databases([cluster.pid])
        if found[0].settings.get("wal_recycle") == "off" or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not limits and len(found) == 1
    (database,) = found
    assert database.where == f"{cluster.data.parent}/.s.PGSQL.5987"
    assert database.version is not None and int(database.version.split(".")[0]) >= 10
    assert database.settings["shared_buffers"] == str(24 << 20) and database.settings["fsync"] == "off"
    assert database.settings["block_size"] == "8192" and database.settings["wal_segment_size"] == str(
        16 << 20
    )
    assert database.settings["wal_recycle"] == "off" and database.settings["full_page_writes"] == "on"
    assert database.unknown == {}
    assert cluster.mtimes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the server's account")
def test_root_asks_as_the_servers_account_and_never_as_itself_unless_told(cluster: Cluster) -> None:
    (cluster.data / "pg_hba.conf").write_text("local all boss trust\nlocal all all peer\n")
    cluster.psql("SELECT pg_reload_conf()")
    cluster.psql("CREATE ROLE root LOGIN")
    before = cluster.mtimes()
    try:
        for where in ({"pids": [cluster.pid]}, {"roots": [cluster.data]}):
            (database,), limits = databases(**where)
            assert not limits and not database.unknown
            assert (database.asked_as, database.settings["block_size"]) == ("postgres", "8192")
        # One that was named is the only one that is tried.
        (database,), _limits = databases([cluster.pid], user="nobody")
        assert database.asked_as is None and "asked as nobody: " in database.unknown["full_page_writes"]
        cluster.psql("DROP ROLE postgres")
        try:
            (database,), _limits = databases([cluster.pid])
            assert database.asked_as is None and database.where == str(cluster.data)
            assert 'role "postgres" does not exist' in database.unknown["full_page_writes"]
            (database,), _limits = databases([cluster.pid], user="root")
            assert database.asked_as == "root" and not database.unknown
        finally:
            cluster.psql("CREATE ROLE postgres LOGIN")
        assert cluster.mtimes() == before
    finally:
        (cluster.data / "pg_hba.conf").write_text("local all all trust\n")
        cluster.psql("SELECT pg_reload_conf()")
        cluster.psql("DROP ROLE root")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the server's account")
def test_what_roots_environment_says_is_for_nobody_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "nobody at all")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    (database,), _limits = databases([cluster.pid])
    assert database.asked_as == "postgres" and not database.unknown


def test_a_folder_is_enough_to_find_it(cluster: Cluster) -> None:
    found, _limits = databases(roots=[cluster.data / "base"])
    assert [(d.kind, d.settings["shared_buffers"]) for d in found] == [("postgresql", str(24 << 20))]


def test_without_a_role_its_files_are_read(cluster: Cluster) -> None:
    cluster.psql(f'ALTER ROLE "{cluster.account}" RENAME TO other')
    try:
        (database,), _limits = databases([cluster.pid])
    finally:
        cluster.psql(f'ALTER ROLE other RENAME TO "{cluster.account}"')
    assert database.where == str(cluster.data)
    assert database.settings["shared_buffers"] == str(24 << 20) and database.settings["fsync"] == "off"
    assert f'role "{cluster.account}" does not exist' in database.unknown["full_page_writes"]
    if os.geteuid() in (0, cluster.data.stat().st_uid):
        assert database.settings["wal_recycle"] == "off" and database.settings["block_size"] == "8192"


def test_pg_control_says_what_pg_controldata_does(cluster: Cluster, tmp_path: Path) -> None:
    path = cluster.data / "global" / "pg_control"
    if not os.access(path, os.R_OK):
        pytest.skip("the cluster's files can't be read")
    said = subprocess.run(
        [cluster.binaries / "pg_controldata", cluster.data],
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    told = {name: value.strip() for name, _, value in (line.partition(":") for line in said.splitlines())}
    found = control.read(cluster.data)
    assert found == {
        "block_size": told["Database block size"],
        "wal_block_size": told["WAL block size"],
        "wal_segment_size": told["Bytes per WAL segment"],
        "data_checksums": "off" if told["Data page checksum version"] == "0" else "on",
    }
    content = path.read_bytes()
    # Damaged, too short, of a format that nobody knows yet.
    assert control.parse(content[:40] + bytes([content[40] ^ 1]) + content[41:]) is None
    assert control.parse(content[:200]) is None and control.parse(b"") is None
    assert control.parse(content[:8] + struct.pack("=I", 2100) + content[12:]) is None
    (tmp_path / "global").mkdir()
    (tmp_path / "global" / "pg_control").write_bytes(bytes(8192))
    with pytest.raises(ZtuneError, match="not known, or is damaged"):
        control.read(tmp_path)


@pytest.mark.parametrize(
    ("version", "more"), [(960, 48), (1002, 80), (1201, 80), (1300, 80), (1700, 80), (1800, 84)]
)
def test_pg_control_of_each_version(version: int, more: int) -> None:
    begin = struct.pack("=QI", 7, version).ljust(240, b"\0") + struct.pack("=d", 1234567.0)
    body = begin + struct.pack("=8I4xI", 16384, 131072, 8192, 1 << 26, 64, 32, 1996, 2048, 1)
    body = body.ljust(240 + more, b"\1")
    found = control.parse((body + struct.pack("=I", control._crc32c(body))).ljust(8192, b"\0"))
    assert found == {
        "block_size": "16384",
        "wal_block_size": "8192",
        "wal_segment_size": str(1 << 26),
        "data_checksums": "on",
    }
    assert control._crc32c(b"123456789") == 0xE3069283


# --- MariaDB and MySQL


def test_option_files(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "z.cnf").write_text("[mariadb-10.11]\ninnodb_log_file_size=1G\n[client]\nport=1\n")
    main = tmp_path / "my.cnf"
    main.write_text(
        f"[client]\npassword={SECRET}\ninnodb_page_size=4k\n[mysqld]\n"
        "innodb-buffer-pool-size = 2G # most of it\nskip-innodb_doublewrite\ninnodb_file_per_table=1\n"
        f"; no\nwsrep_sst_auth=user:{SECRET}\ninnodb_flush_method=O_DIRECT\n"
        f"!includedir {tmp_path / 'conf.d'}\n"
    )
    assert mariadb.parse_options(main) == {
        "innodb_buffer_pool_size": str(2 << 30),
        "innodb_doublewrite": "OFF",
        "innodb_file_per_table": "ON",
        "innodb_flush_method": "O_DIRECT",
        "innodb_log_file_size": str(1 << 30),
    }


@pytest.fixture
def mariadb_server() -> Iterator[int]:
    server, setup = which("mariadbd"), which("mariadb-install-db")
    if not server or not setup or not which("mariadb"):
        pytest.skip("no MariaDB here: mariadbd, mariadb-install-db or mariadb is missing")
    base = Path(tempfile.mkdtemp(prefix="maria-", dir="/var/tmp"))
    user = pwd.getpwuid(os.geteuid()).pw_name
    words = [f"--user={user}", f"--datadir={base / 'data'}"]
    subprocess.run(
        [setup, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", *words],
        check=True,
        capture_output=True,
    )
    process = subprocess.Popen(
        [
            *(server, "--no-defaults", *words, f"--socket={base / 'sock'}", "--skip-networking"),
            *("--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--innodb-doublewrite=0"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not (base / "sock").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(base)


def test_a_running_mariadb(mariadb_server: int) -> None:
    (database,), limits = databases([mariadb_server])
    assert not limits and database.kind == "mariadb" and database.where.endswith("/sock")
    assert database.version is not None and "MariaDB" in database.version
    assert database.settings["innodb_buffer_pool_size"] == str(16 << 20)
    assert database.settings["innodb_doublewrite"] == "OFF"
    assert database.settings["innodb_page_size"] == "16384" and not database.unknown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the server's account")
def test_root_asks_mariadb_as_the_account_that_it_runs_as() -> None:
    server, setup = which("mariadbd"), which("mariadb-install-db")
    if not server or not setup or not which("mariadb"):
        pytest.skip("no MariaDB here: mariadbd, mariadb-install-db or mariadb is missing")
    base = Path(tempfile.mkdtemp(prefix="maria-", dir="/var/tmp"))
    base.chmod(0o755)
    shutil.chown(base, "nobody")
    # Its one account is known by the socket: nobody's.
    words = ["--no-defaults", f"--datadir={base / 'data'}"]
    subprocess.run(
        [setup, *words, "--auth-root-socket-user=nobody", "--skip-test-db"],
        check=True,
        capture_output=True,
        user="nobody",
        cwd="/usr",
    )
    process = subprocess.Popen(
        [server, *words, f"--socket={base / 'sock'}", f"--pid-file={base / 'pid'}", "--skip-networking"],
        stderr=subprocess.DEVNULL,
        user="nobody",
        cwd="/",
    )
    try:
        deadline = time.monotonic() + 60
        while not (base / "sock").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        (database,), limits = databases([process.pid])
        assert not limits and database.asked_as == "nobody" and not database.unknown
        assert database.settings["innodb_page_size"] == "16384"
        (database,), _limits = databases([process.pid], user="daemon")
        assert database.asked_as is None
        assert "asked as daemon: " in database.unknown["innodb_flush_method"]
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(base)


def test_mariadb_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "mysql").mkdir()
    (tmp_path / "ibdata1").write_bytes(b"")
    (tmp_path / "mariadb_upgrade_info").write_text("10.11.6-MariaDB")
    found = one(tmp_path, "mariadb")
    assert found.version == "10.11.6-MariaDB"
    assert "no server process was given" in found.unknown["innodb_undo_directory"]


# --- configuration files


def test_orientdb(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "orientdb-core-3.2.4.jar").touch()
    path = tmp_path / "config" / "orientdb-server-config.xml"
    path.write_text(
        '<orient-server><users><user name="root" password="' + SECRET + '" resources="*"/></users>'
        '<properties><entry name="storage.diskCache.bufferSize" value="512"/>'
        '<entry name="storage.useWAL" value="false"/><entry name="db.password" value="' + SECRET + '"/>'
        "</properties></orient-server>"
    )
    found = one(tmp_path, "orientdb")
    assert found.version == "3.2.4"
    assert found.settings == {"storage.diskCache.bufferSize": str(512 << 20), "storage.useWAL": "false"}
    assert "the default holds" in found.unknown["storage.wal.path"]
    path.write_text("<orient-server>")
    assert "is no XML" in one(tmp_path, "orientdb").unknown["storage.useWAL"]


def test_opendj(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.ldif").write_text(
        "dn: cn=config\nds-cfg-proxied: x\n\n"
        "dn: ds-cfg-backend-id=userRoot,cn=Backends,cn=config\nobjectClass: ds-cfg-je-backend\n"
        "ds-cfg-backend-id: userRoot\nds-cfg-db-directory: db\nds-cfg-db-log-file-max: 100 mb\n"
        f"ds-cfg-db-txn-no-sync: false\nuserPassword: {SECRET}\n\n"
        "dn: ds-cfg-backend-id=schema,cn=Backends,cn=config\nds-cfg-backend-id: schema\n"
    )
    found = one(tmp_path, "opendj")
    assert found.settings == {
        "userRoot.ds-cfg-db-directory": "db",
        "userRoot.ds-cfg-db-log-file-max": str(100 << 20),
        "userRoot.ds-cfg-db-txn-no-sync": "false",
    }
    assert set(found.unknown) == {"userRoot.ds-cfg-db-txn-write-no-sync"}


def test_389_directory_server(tmp_path: Path) -> None:
    (tmp_path / "dse.ldif").write_text(
        f"dn: cn=config\nnsslapd-rootpw: {SECRET}\nnsslapd-versionstring: 389-Directory/2.3.1\n\n"
        "dn: cn=config,cn=ldbm database,cn=plugins,cn=config\nnsslapd-directory: /var/db\n"
        f"nsslapd-backend-implement: bdb\nnsslapd-extra: {SECRET}\n\n"
        "dn: cn=bdb,cn=config,cn=ldbm database,cn=plugins,cn=config\nnsslapd-db-page-size: 8192\n"
        "nsslapd-dbcachesize: 1610612736\n\n"
        "dn: cn=userRoot,cn=ldbm database,cn=plugins,cn=config\nobjectClass: top\n"
        "objectClass: nsBackendInstance\nnsslapd-cachememsize: 536870912\n\n"
    )
    found = one(tmp_path, "389ds")
    assert found.version == "389-Directory/2.3.1"
    assert found.settings == {
        "nsslapd-directory": "/var/db",
        "nsslapd-backend-implement": "bdb",
        "nsslapd-db-page-size": "8192",
        "nsslapd-dbcachesize": "1610612736",
        "userRoot.nsslapd-cachememsize": "536870912",
    }
    assert set(found.unknown) == {"nsslapd-db-logdirectory"}


def test_mongodb(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    from ztune.databases.mongodb import settings as mongodb
    from ztune.onhost.look.reading import Instance

    path = tmp_path / "mongod.conf"
    path.write_text(
        "storage:\n  dbPath: /srv/mongo\n  journal:\n    commitIntervalMs: 50\n  wiredTiger:\n"
        "    engineConfig:\n      cacheSizeGB: 0.5\n"
        f"security:\n  ldap:\n    bind: {{queryPassword: {SECRET}}}\nreplication: {{oplogSizeMB: 2}}\n"
    )
    words = ("mongod", "-f", str(path), "--directoryperdb", "--dbpath=/mnt")
    process = Process(1, "mongod", words, Path("/"), None)
    assert list(mongodb.find([process], [])) == [Instance(path, process)]
    found = mongodb.read(Instance(path, process))
    assert found.settings == {
        "storage.dbPath": "/mnt",
        "storage.directoryPerDB": "true",
        "storage.journal.commitIntervalMs": "50",
        "storage.wiredTiger.engineConfig.cacheSizeGB": str(1 << 29),
        "replication.oplogSizeMB": str(2 << 20),
    }
    assert SECRET not in json.dumps(asdict(found))
    path.write_text("storage: [")
    assert "is no YAML" in mongodb.read(Instance(path)).unknown["storage.engine"]
    found = mongodb.read(Instance(tmp_path))
    assert found.settings == {"storage.dbPath": str(tmp_path)}


def test_sqlite_is_only_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as made:
        made.execute("PRAGMA page_size = 8192")
        made.execute("PRAGMA auto_vacuum = INCREMENTAL")
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE t (x)")
    made.close()
    (tmp_path / "text.db").write_text("no database")
    (tmp_path / "below").mkdir()
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    found = one(tmp_path, "sqlite")
    assert found.where == str(path) and found.version == sqlite3.sqlite_version
    assert found.settings == {"page_size": "8192", "journal_mode": "wal", "auto_vacuum": "incremental"}
    assert "each program that opens" in found.unknown["synchronous"]
    # What lies above is somebody else's.
    assert databases(roots=[tmp_path / "below"]) == ((), ())
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before


def test_rocksdb_takes_the_newest_options(tmp_path: Path) -> None:
    (tmp_path / "CURRENT").write_text("MANIFEST-000005\n")
    (tmp_path / "OPTIONS-000003").write_text("[DBOptions]\n  use_fsync=true\n")
    (tmp_path / "OPTIONS-000012").write_text(
        "[Version]\n  rocksdb_version=8.9.1\n[DBOptions]\n  use_direct_reads=true\n  wal_dir=/log\n"
        '[CFOptions "default"]\n  compression=kSnappyCompression\n'
        '[TableOptions/BlockBasedTable "default"]\n  block_size=4096\n[CFOptions "x"]\n  compression=kZSTD\n'
    )
    found = one(tmp_path, "rocksdb")
    assert found.version == "8.9.1"
    assert found.settings == {
        "use_direct_reads": "true",
        "wal_dir": "/log",
        "compression": "kSnappyCompression",
        "block_size": "4096",
    }


def test_nothing_there(tmp_path: Path) -> None:
    assert databases([2**22 - 1], [tmp_path / "gone"]) == ((), ())
