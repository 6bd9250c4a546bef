"""Which roles need one dataset, by the directories and names of their files."""

from __future__ import annotations

from typing import Any

import pytest

from ztune.databases.database import every
from ztune.trace.manifest import FileName, Manifest, ParquetFile, RecorderInfo, TraceFile
from ztune.trace.one_dataset import together


def manifest(*files: tuple[str, str | None] | tuple[str, str | None, list[str]]) -> Manifest:
    made = []
    for i, (path, role, *more) in enumerate(files):
        names: Any = [FileName(t=t, path=name) for t, name in enumerate([*(more[0] if more else []), path])]
        made.append(TraceFile(id=i, path=path, role=role, names=names))  # type: ignore[arg-type]
    return Manifest(
        ztune="1", created="2026-01-01T00:00:00Z", duration_ns=1, events=0, files=made,
        recorder=RecorderInfo(name="synthetic"),
        parquet={"events.parquet": ParquetFile(rows=0, bytes=0, sha256="0" * 64)},
    )  # fmt: skip


def test_files_of_one_directory_are_one_dataset() -> None:
    found = together(manifest(
        ("/db/appendonlydir/a.1.base.rdb", "data"),
        ("/db/appendonlydir/a.1.incr.aof", "wal"),
        ("/db/appendonlydir/log.txt", None),
    ))  # fmt: skip
    assert [pair.roles for pair in found] == [("data", "wal")]
    assert found[0].why == (
        "a.1.base.rdb (data) and a.1.incr.aof (wal) are in one directory, /db/appendonlydir, which is on one "
        "dataset"
    )


def test_a_directory_below_may_be_a_dataset_of_its_own() -> None:
    assert together(manifest(("/pg/base/5/1", "data"), ("/pg/pg_wal/0001", "wal"), ("/pg/x", "data"))) == []


def test_a_rename_from_one_role_s_directory_to_another_s_needs_one_dataset() -> None:
    files = [
        ("/db/dump.rdb", "data"),
        ("/db/aof/a.2.base.rdb", "wal", ["/db/temp-rewriteaof-bg-17.aof"]),
    ]
    found = together(manifest(*files))  # type: ignore[arg-type]
    assert [pair.roles for pair in found] == [("data", "wal")]
    assert "moved or linked /db/temp-rewriteaof-bg-17.aof, beside /db/dump.rdb (data)" in found[0].why
    # From a directory that no role has, or within the role's own, nothing follows.
    assert together(manifest(files[0], ("/db/aof/a", "wal", ["/tmp/a"]))) == []  # type: ignore[arg-type]
    assert together(manifest(files[0], ("/db/aof/a", "wal", ["/db/aof/b"]))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        # innodb_log_group_home_dir puts the log elsewhere; no setting parts MyISAM's indexes.
        ([("/var/lib/mysql/ib_logfile0", "wal"), ("/var/lib/mysql/ibdata1", "data")], []),
        ([("/var/lib/mysql/t.MYI", "index"), ("/var/lib/mysql/t.MYD", "data")], [("data", "index")]),
        # wal_dir of RocksDB.
        ([("/r/000004.log", "wal"), ("/r/000005.sst", "data")], []),
        # LevelDB has none, though its logs are called as RocksDB's are; nor has SQLite beside a RocksDB.
        ([("/l/000004.log", "wal"), ("/l/000005.ldb", "data")], [("data", "wal")]),
        (
            [("/l/000004.log", "wal"), ("/l/000005.ldb", None), ("/l/MANIFEST-000001", "data")],
            [("data", "wal")],
        ),
        ([("/s/a.db", "data"), ("/s/a.db-wal", "wal")], [("data", "wal")]),
        ([("/s/a.db", "data"), ("/s/a.db-wal", "wal"), ("/r/000005.sst", "data")], [("data", "wal")]),
    ],
)
def test_where_a_setting_parts_them_they_may_be_parted(
    beside: list[tuple[str, str | None]], expected: list[tuple[str, str]]
) -> None:
    assert [pair.roles for pair in together(manifest(*beside))] == expected


def test_each_setting_that_parts_roles_is_named() -> None:
    found = {one.name: dict(one.facts.apart) for one in every() if one.facts.apart}
    assert found["mariadb"]["wal"] == "innodb_log_group_home_dir"
    assert found["rocksdb"] == {"wal": "wal_dir"}
    assert "valkey" not in found and "sqlite" not in found
