from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztune.databases.database import every
from ztune.databases.rules import RoleRule
from ztune.errors import InputError
from ztune.trace.roles import Present, RoleRules, databases_of, known_as, known_layouts

KNOWN = {
    # PostgreSQL
    "/srv/pg/base/16384/16385": "data",
    "/srv/pg/base/16384/16385.1": "data",
    "/srv/pg/base/16384/16385_fsm": "data",
    "/srv/pg/base/16384/t3_16390": "temp",
    "/srv/pg/base/16384/pg_internal.init": None,
    "/srv/pg/base/pgsql_tmp/pgsql_tmp123.0": "temp",
    "/srv/pg/base/pgsql_tmp/pgsql_tmp123.0.fileset/o1of2.p0.0": "temp",
    "/srv/pg/global/1262": "data",
    "/srv/pg/global/pg_control": "data",
    "/srv/pg/pg_xact/0000": "data",
    "/srv/pg/pg_multixact/offsets/0000": "data",
    "/srv/pg/pg_wal/000000010000000000000001": "wal",
    "/srv/pg/pg_wal/xlogtemp.123": "wal",
    "/srv/pg/pg_wal/archive_status/000000010000000000000001.ready": None,
    "/var/lib/postgresql/15/main/pg_wal/00000001000000000000000A": "wal",
    "/mnt/wal/pg_xlog/000000010000000000000001": "wal",
    # … whose log is a link to a folder of another name
    "/tank/wal/pg/00000001000000000000000A": "wal",
    "/tank/wal/pg/xlogtemp.12927": "wal",
    "/tank/wal/pg/00000002.history": "wal",
    "/tank/wal/pg/000000010000000000000048.00000028.backup": "wal",  # that a base backup was taken: no backup
    "/tank/wal/pg/archive_status/00000001000000000000000A.done": None,
    "/mnt/server/archivedir/00000001000000000000000A": "archive",
    "/mnt/server/archivedir/00000001000000000000000A.partial": "archive",
    "/mnt/server/archivedir/000000010000000000000048.00000028.backup": "archive",
    "/srv/archived/pg/pg_wal/00000001000000000000000A": "wal",
    "/ts/PG_15_202209061/16384/16400": "data",
    "/ts/PG_15_202209061/pgsql_tmp/pgsql_tmp1.0": "temp",
    "/srv/pg/postmaster.pid": None,
    "/srv/pg/log/postgresql-2026-01-01.log": None,
    "/srv/pg/pg_stat_tmp/global.stat": "temp",
    # MySQL and MariaDB
    "/var/lib/mysql/ibdata1": "data",
    "/var/lib/mysql/shop/orders.ibd": "data",
    "/var/lib/mysql/undo001": "data",
    "/var/lib/mysql/undo_001": "data",
    "/var/lib/mysql/ib_logfile0": "wal",
    "/var/lib/mysql/#innodb_redo/#ib_redo12": "wal",
    "/var/lib/mysql/#innodb_redo/#ib_redo13_tmp": "wal",
    "/var/lib/mysql/#ib_16384_0.dblwr": "wal",
    "/var/lib/mysql/aria_log.00000001": "wal",
    "/var/lib/mysql/aria_log_control": "wal",
    "/var/lib/mysql/ddl_recovery.log": "data",  # entries of 1K, written over: no log by what is done to it
    "/var/lib/mysql/binlog.000001": "wal",
    "/var/lib/mysql/db1-bin.000042": "wal",
    "/var/lib/mysql/ibtmp1": "temp",
    "/var/lib/mysql/#innodb_temp/temp_1.ibt": "temp",
    "/var/lib/mysql/shop/t.MYD": "data",
    "/var/lib/mysql/shop/t.MYI": "index",
    "/var/lib/mysql/host.err": None,
    "/var/lib/mysql/mysql.sock": None,
    # RocksDB
    "/data/rocks/000123.sst": "data",
    "/data/rocks/000124.log": "wal",
    "/data/rocks/MANIFEST-000005": "data",
    "/data/rocks/LOG": None,
    # SQLite
    "/home/u/app.db": "data",
    "/home/u/app.sqlite3-wal": "wal",
    "/home/u/app.db-journal": "wal",
    "/home/u/app.db-shm": None,
    # MongoDB
    "/var/lib/mongodb/collection-7-123.wt": "data",
    "/var/lib/mongodb/index-8-123.wt": "index",
    "/var/lib/mongodb/WiredTiger.wt": "data",
    "/var/lib/mongodb/WiredTigerHS.wt": "data",
    "/var/lib/mongodb/journal/WiredTigerLog.0000000001": "wal",
    "/var/lib/mongodb/diagnostic.data/metrics.2026": None,
    "/var/log/mongodb/mongod.log": None,
    # OrientDB
    "/orient/databases/g/person.pcl": "data",
    "/orient/databases/g/person.cpm": "data",
    "/orient/databases/g/names.sbt": "index",
    "/orient/databases/g/g.0.wal": "wal",
    # Directory servers, LMDB
    "/var/lib/dirsrv/slapd-x/db/userRoot/id2entry.db": "data",
    "/var/lib/dirsrv/slapd-x/db/userRoot/cn.db": "index",
    "/var/lib/dirsrv/slapd-x/db/log.0000000012": "wal",
    "/var/lib/dirsrv/slapd-x/db/__db.001": None,
    "/opt/opendj/db/userRoot/00000000.jdb": "data",
    "/var/lib/ldap/data.mdb": "data",
    "/srv/sales.duckdb": "data",
    "/srv/sales.duckdb.wal": "wal",
    "/srv/sales.duckdb.tmp/duckdb_temp_storage_DEFAULT-0.tmp": "temp",
    "/var/lib/ldap/lock.mdb": None,
    # etcd, LevelDB, Firebird, H2
    "/var/lib/etcd/member/snap/db": "data",
    "/var/lib/etcd/member/snap/000000000007a178.snap.db": "data",
    "/var/lib/etcd/member/wal/000000000000000f-00000000000b38c7.wal": "wal",
    "/var/lib/etcd/member/wal/0.tmp": "wal",
    "/srv/level/000123.ldb": "data",
    "/srv/docs/letter.ldb": None,
    "/srv/fb/shop.fdb": "data",
    "/srv/fb/shop.fdb.delta": "data",
    "/srv/fb/shop.fbk": "backup",
    "/tmp/firebird/fb_lock_00fe0000000000008ee00c0000000000": None,
    "/home/u/app.lock.db": None,
    # Lucene
    "/idx/_0.cfs": "index",
    "/idx/_1a_Lucene90_0.dvd": "index",
    "/idx/segments_5": "index",
    # dumps, input
    "/backup/db.dump": "backup",
    "/backup/db.tar.gz": "archive",
    "/import/people.ldif": "source",
    # two layouts name it: what goes by folders is stronger than what goes by endings
    "/srv/pg/pg_wal/a.db": "wal",
    "/var/lib/dirsrv/slapd-x/db/userRoot/a-journal": "wal",
    "/var/lib/dirsrv/slapd-x/changelogdb/a.db": "data",
    "/opt/opendj/changelogDb/1.dj/je.lck": None,
    "/opt/opendj/changelogdb/je.info.0": None,
    "/var/lib/mongodb/diagnostic.data/a.db": None,
    "/var/lib/mongodb/journal/000001.log": "wal",
    "/home/u/app.mv.db": "data",
    "/home/u/app.trace.db": None,
    "/home/u/derby/log/log7.dat": "wal",
    "/etc/app.db": None,
    "/srv/dumps/app.db.gz": "archive",
    # nothing of a database
    "/proc/self/maps": None,
    "/dev/shm/PostgreSQL.123": None,
    "/dev/shm/pg/PG_15_202209061/16384/16414": "data",  # a database in memory has its folder there
    "/dev/disk/by-id/x.db": None,
    "/dev/snd/x.db": None,
    "/usr/lib/libc.so.6": None,
    "/var/log/app.log": None,
    "/home/u/venv/lib/python3.11/site-packages/x/data.db": None,
    "/home/u/app/__pycache__/main.cpython-311.pyc": None,
    "/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py": None,
    "/home/u/notes.txt": None,
    "/srv/pg/base/16384/16385 (deleted)": "data",
}


@pytest.mark.parametrize(("path", "role"), KNOWN.items())
def test_well_known_files(path: str, role: str | None) -> None:
    assert RoleRules.parse().role(path) == role


HSQLDB = {
    "/srv/hs/shop.data": "data", "/srv/hs/shop.log": "wal", "/srv/hs/shop.backup": "wal",
    "/srv/hs/shop.script": "data", "/srv/hs/shop.properties": None, "/srv/hs/shop.lobs": "data",
}  # fmt: skip


def test_names_that_many_programs_use_count_only_beside_files_of_the_database_s_own() -> None:
    rules = RoleRules.parse().among(HSQLDB)
    assert {path: rules.role(path) for path in HSQLDB} == HSQLDB
    assert rules.role("/srv/hs/other.log") is None and rules.role("/srv/other/shop.log") is None
    alone = RoleRules.parse().among(["/srv/app/app.log", "/srv/app/app.properties", "/srv/app/x.data"])
    assert not any(alone.knows(f"/srv/app/{name}") for name in ("app.log", "x.data"))
    assert RoleRules.parse().role("/srv/app/app.log") is None
    assert RoleRules.parse(["*.log=backup"]).among(HSQLDB).role("/srv/hs/shop.log") == "backup"
    lmdb = RoleRules.parse().among(["/srv/a.mdb", "/srv/a.mdb-lock", "/srv/b.mdb"])
    assert lmdb.role("/srv/a.mdb") == "data" and lmdb.role("/srv/b.mdb") is None


@pytest.mark.parametrize(
    ("path", "beside", "expected"),
    [
        # A name that several have is one's where its own files are, and else nobody's.
        ("/r/000004.log", ["/r/000005.sst"], "rocksdb"),
        ("/fast/000004.log", ["/r/000005.sst"], "rocksdb"),  # wal_dir
        ("/l/000004.log", ["/l/000005.ldb"], "leveldb"),
        ("/l/MANIFEST-000001", ["/l/000005.ldb", "/r/000005.sst"], "leveldb"),
        ("/x/000004.log", [], "[0-9][0-9][0-9][0-9][0-9][0-9].log"),
        ("/o/g.0.wal", ["/o/person.pcl"], "orientdb"),
        ("/x/g.0.wal", ["/x/g.main"], "*.wal"),
        ("/e/member/wal/a.wal", [], "etcd"),
    ],
)
def test_whose_a_name_is_the_files_beside_it_say(path: str, beside: list[str], expected: str) -> None:
    found = known_as(path, Present([path, *beside]))
    assert found is not None and found[0] == expected and found[1] in ("wal", "data")
    names = set(databases_of([path], Present([path, *beside])))
    assert names == ({expected} if expected in {one.name for one in known_layouts()} else set())


def test_a_users_rule_overrides_the_built_in_and_earlier_ones() -> None:
    rules = RoleRules.parse(["/srv/pg/base/**=index", "**/16385*=backup", "/srv/pg/pg_wal/**=-"])
    assert rules.role("/srv/pg/base/5/1") == "index"
    assert rules.role("/srv/pg/base/5/16385.1") == "backup"
    assert rules.role("/srv/pg/pg_wal/000000010000000000000001") is None
    assert rules.role("/srv/other/pg_wal/000000010000000000000001") == "wal"


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("/a/*", ["/a/b"], ["/a/b/c", "/x/a/b", "/a"]),
        ("/a/**", ["/a/b", "/a/b/c"], ["/ab/c", "/a"]),
        ("/a/**/z", ["/a/z", "/a/b/z", "/a/b/c/z"], ["/a/bz"]),
        ("*.db", ["/x/y.db", "y.db"], ["/x/y.dbx"]),
        ("d/*.db", ["/x/d/y.db"], ["/xd/y.db"]),
        ("/a?c", ["/abc"], ["/a/c", "/abbc"]),
        ("/[ab]x", ["/ax"], ["/cx"]),
        ("/[!ab]x", ["/cx"], ["/ax", "//x"]),
        ("/a.b+c(d)", ["/a.b+c(d)"], ["/axb+c(d)"]),
        (r"/a\*b", ["/a*b"], ["/axb"]),
        ("/x=y/*", ["/x=y/z"], []),
        ("/new\nline*", ["/new\nline2"], []),
    ],
)
def test_globs(glob: str, yes: list[str], no: list[str]) -> None:
    rules = RoleRules.parse([f"{glob}=wal"], builtin=False)
    assert [path for path in yes if rules.role(path) != "wal"] == []
    assert [path for path in no if rules.role(path) is not None] == []


@pytest.mark.parametrize("text", ["", "wal", "=wal", "/a/**", "/a=log", "/a=", "/[a=wal"])
def test_wrong_rules_are_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        RoleRules.parse([text])
    assert repr(text) in str(caught.value)


def test_folders_the_deepest_decides_and_their_names_are_no_globs() -> None:
    rules = RoleRules.below({"/pg/[x]/wal": "wal", "/pg/[x]": "data"})
    assert rules.role("/pg/[x]/base/1") == "data"
    assert rules.role("/pg/[x]/wal/1") == "wal"
    assert rules.role("/pg/x/base/1") is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_a_rule_or_refused_and_any_path_has_an_answer(rule: str, path: str) -> None:
    try:
        rules = RoleRules.parse([rule])
    except InputError:
        rules = RoleRules.parse()
    rules.role(path)


@given(st.text(alphabet="a[]*?\\!^-/&|~", max_size=12))
def test_any_glob_is_compiled_or_refused(glob: str) -> None:
    with contextlib.suppress(InputError):
        RoleRules.parse([f"{glob}=wal"]).role("/a/b")


@given(st.text(alphabet="a[]*?\\!^-/", max_size=12), st.text(alphabet="a*?\\/[]!", max_size=8))
def test_what_is_looked_for_first_is_in_each_path_that_a_glob_matches(glob: str, path: str) -> None:
    with contextlib.suppress(InputError):
        rule = RoleRule.parse(f"{glob}=wal")
        assert rule.matches(path) == (rule.pattern.fullmatch(path) is not None)
        assert RoleRule.parse("/srv/*/pg_wal/**=wal").literal == "/pg_wal/"


def test_what_is_stronger_is_a_rule() -> None:
    names = [layout.name for layout in known_layouts()]
    strength = {files.name: files.strength for one in every() for files in one.facts.files}
    theirs = [strength[name] for name in names if name in strength]
    assert theirs == sorted(theirs) and set(theirs) == {"endings", "folders"}
    assert names[0] == "dumps and archives" and names[-1] == "not a database's files"


def test_every_known_layout_names_its_source() -> None:
    layouts = known_layouts()
    assert len({layout.name for layout in layouts}) == len(layouts) >= 10
    for layout in layouts:
        assert layout.source
        assert layout.rules
        assert not re.search(r"\s{2}", layout.source)
