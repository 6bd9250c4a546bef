"""Import, backup, export, archive and full-text index on the real OrientDB, at their smallest; skipped where
it isn't installed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ztune.databases import registry
from ztune.databases.orientdb.onhost import export as orientdb_export
from ztune.databases.orientdb.onhost import files as orientdb_files
from ztune.databases.workload import JobWorkload, running
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import WorkloadResult

# Java starts three or four times in each of them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRIPLES = "".join(
    f"<urn:s{n % 40}> <urn:p{n % 3}> <urn:s{n % 7}> .\n"
    f'<urn:s{n % 40}> <urn:label> "entry {n} describes something" .\n'
    for n in range(60)
)


@pytest.fixture(scope="module")
def own(open_parent: Path) -> Path:
    path = open_parent / "files.nt"
    path.write_text(TRIPLES, encoding="utf-8")
    return path


def workload(name: str, own: Path, **values: object) -> JobWorkload:
    kind = registry.get(name)
    made = kind({"file": str(own), "triples": 0, "disk_cache": "16M", **values})
    assert isinstance(made, JobWorkload)
    try:
        made.check()
    except MissingError as error:
        pytest.skip(str(error))
    return made


Done = tuple[WorkloadResult, dict[str, int], dict[str, set[str]]]
"""The result of a job, the bytes of each role and the names of its files."""


@contextmanager
def ground(made: JobWorkload, parent: Path) -> Iterator[JobWorkload]:
    """The job, ready to be done; nothing is left of it."""
    with running(made, parent=parent) as started:
        yield started
    assert list(parent.iterdir()) == []


def proved(started: JobWorkload) -> Done:
    """Do the job, and prove it."""
    assert started.pids()
    result = started.verify(started.run())
    paths = started.role_paths()
    assert set(started.page_sizes()) <= set(paths)
    sizes = {role: places.size_of(path) for role, path in paths.items()}
    names = {role: {path.name for path in top.rglob("*")} for role, top in paths.items()}
    assert all(check.ok for check in result.checks)
    assert result.details["input"]["lines"] == 120 and result.details["input"]["terms"] == 100
    return result, sizes, names


def done(made: JobWorkload, parent: Path, kept: Path | None = None) -> Done:
    """Do the whole job; ``kept`` is where the export that it read goes."""
    with ground(made, parent) as started:
        found = proved(started)
        if kept is not None:
            shutil.copy(started.role_paths()["source"] / orientdb_files.EXPORT, kept)
    return found


@pytest.fixture(scope="module")
def imported(own: Path, open_parent: Path) -> tuple[Done, Path]:
    """A whole import, and the export that it read, which OrientDB itself has written."""
    parent, kept = open_parent / "imported", open_parent / "mine.gz"
    parent.mkdir(mode=0o755)
    return done(workload("orientdb-import", own), parent, kept), kept


@pytest.fixture
def exported(imported: tuple[Done, Path]) -> Path:
    return imported[1]


def test_import(imported: tuple[Done, Path]) -> None:
    result, sizes, names = imported[0]
    assert set(sizes) == {"source", "data", "wal"} and result.operations == 220
    assert names["source"] == {"export.json.gz"} and sizes["source"] == result.details["export_bytes"]
    assert {check.name for check in result.checks} >= {"vertices", "edges", "sum over all edges as triples"}


# 1.7.4 imports by the program of ours that 1.6.4 has, and makes a backup below.
@pytest.mark.parametrize("version", [pytest.param("1.7.4", marks=pytest.mark.long), "1.6.4"])
def test_import_as_the_studies_did(own: Path, parent: Path, version: str) -> None:
    made = workload("orientdb-import", own, version=version)
    made.job.database["storage.compressionMethod"] = "nothing"
    assert made.check().startswith(f"OrientDB {version}, Java ")
    result, sizes, names = done(made, parent)
    assert set(sizes) == {"source", "data", "wal"} and result.operations == 220
    assert names["source"] == {"export.json.gz"}
    assert {"vertices", "edges", "sum over all edges as triples"} <= {check.name for check in result.checks}
    assert any(name.endswith(".wal") for name in names["wal"])
    assert not any(name.endswith(".wal") for name in names["data"])
    assert result.details["settings"]["storage.compressionMethod"] == "nothing"


def export(records: list[dict[str, object]]) -> dict[str, object]:
    """Return an export as OrientDB 3.2 writes it, of one class and two classless records."""
    clusters = [{"name": "internal", "id": 0}, {"name": "default", "id": 3}, {"name": "thing", "id": 20}]
    schema = {"version": 4, "classes": [
        {"name": "Thing", "default-cluster-id": 20, "cluster-ids": [20], "cluster-selection": "round-robin"},
    ]}  # fmt: skip
    own = [{"@type": "d", "@rid": "#0:1", "@version": 1, "schemaVersion": 4}]
    return {
        "info": {"name": "mine", "default-cluster-id": 3, "exporter-version": 12, "engine-version": "3.2.25",
                 "schemaRecordId": "#0:1", "indexMgrRecordId": "#0:2"},
        "clusters": clusters, "schema": schema, "records": [*own, *records], "indexes": [],
        "manualIndexes": [], "brokenRids": [],
    }  # fmt: skip


THINGS: list[dict[str, object]] = [
    {
        "@type": "d",
        "@rid": f"#20:{n}",
        "@version": 1,
        "@class": "Thing",
        "text": f'"{n}\\" {{[',
        "in": {"a": [n]},
    }
    for n in range(50)
]


# Packed is what `test_import` reads, too: an export that OrientDB wrote.
@pytest.mark.parametrize("packed", [pytest.param(True, marks=pytest.mark.long), False])
def test_import_of_ones_own_export(exported: Path, own: Path, parent: Path, packed: bool) -> None:
    path = exported if packed else parent / "mine.json"
    if not packed:
        # Of users whose passwords we don't know.
        text = gzip.decompress(exported.read_bytes())
        path.write_bytes(re.sub(rb'"password": ?"[^"]*"', b'"password":"{SHA-256}00"', text))
        assert path.read_bytes() != text
    made = workload("orientdb-import", own, file="", export=str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert made.resolved()["export_pin"] == f"{path.stat().st_size}:{digest}"
    with running(made, parent=parent) as started:
        result = started.verify(started.run())
        source = started.role_paths()["source"]
        assert [file.name for file in source.iterdir()] == [f"export.json{'.gz' if packed else ''}"]
        counts = {check.name.removeprefix("records of "): check.got for check in result.checks}
        assert counts["Resource"] == 100 and counts["Statement"] == 120 and counts["other classes"] == 0
        assert sum(map(int, counts.values())) == result.operations == result.details["input"]["records"]
        assert result.details["input"]["sha256"] == digest
        # One record less is found.
        job = started.job
        job.own = replace(job.own, classes={**job.own.classes, "Resource": 101})
        with pytest.raises(ZtuneError, match="records of Resource should be 101 but is 100"):
            started.verify(result)


def test_another_export_than_the_pinned_one(exported: Path, own: Path, parent: Path) -> None:
    made = workload("orientdb-import", own, file="", export=str(exported), export_pin="1:abc")
    told = pytest.raises(InputError, match=r"is another file \(.*\) than the one that was pinned \(1:abc\)")
    with told, running(made, parent=parent):
        pass


def test_what_is_counted_in_an_export(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    more: dict[str, object] = {
        "@type": "d",
        "@rid": "#3:0",
        "v": "x" * (3 << 20) + '"\\',
        "e": {"@class": "Inner"},
    }
    path.write_text(json.dumps(export([*THINGS, more])), encoding="utf-8")
    found = orientdb_export.facts(path)
    assert (found.records, found.classes) == (51, {"": 1, "Thing": 50})
    for text in ("[]", '{"records": [{]}', '{"records": [{"a": "b', '{"a": 1}', '{"records": [{}]', ""):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="is no export of OrientDB"):
            orientdb_export.facts(path)
    path.write_bytes(gzip.compress(b'{"records": []}')[:-9])
    with pytest.raises(InputError, match="is no export of OrientDB"):
        orientdb_export.facts(path)
    with pytest.raises(InputError, match="name an export with -p export=PATH"):
        orientdb_export.pin(tmp_path / "none")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"export": "a", "file": "b"}, "leave one out"),
        ({"version": "1.7.4", "page_size": "16K"}, "smaller pages"),
        ({"version": "2.2"}, "version"),
        ({"compression": "gzip"}, "3.2 does not compress"),
    ],
)
def test_imports_that_make_no_sense(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        registry.get("orientdb-import")(values)


def test_settings_are_the_versions() -> None:
    for version, name, said in (
        ("3.2", "storage.compressionMethod", "not compressed"),
        ("1.7.4", "storage.diskCache.pageSize", "smaller pages"),
        ("1.7.4", "storage.useDoubleWriteLog", "has no setting"),
    ):
        params = registry.get("orientdb-import")({"version": version})
        assert isinstance(params, JobWorkload)
        with pytest.raises(InputError, match=said):
            orientdb_files.OrientdbImport(params.resolved(), {name: "32"}).check()


@pytest.mark.parametrize("name", ["orientdb-backup", "orientdb-archive", "orientdb-lucene"])
def test_jobs_on_a_filled_graph_take_the_versions_that_can_do_them(name: str) -> None:
    made = registry.get(name)({"version": "1.7.4"})
    assert isinstance(made, JobWorkload) and made.job.release.number == "1.7.4"
    fetched = [one.name for one in made.to_fetch()]
    assert fetched == ["orientdb-1.7.4", *(["orientdb-lucene-1.7"] if name == "orientdb-lucene" else [])]
    for values, said in (
        ({"version": "1.6.4"}, "version"),
        ({"version": "1.7.4", "page_size": "8K"}, "pages"),
    ):
        with pytest.raises(InputError, match=said):
            registry.get(name)(values)


@pytest.mark.parametrize("name", ["orientdb-import", "orientdb-graph"])
def test_own_compression_is_a_parameter_of_the_versions_that_have_it(name: str) -> None:
    key = "storage.compressionMethod"
    assert registry.settings_of(name, {"version": "1.7.4", "compression": "gzip"})[key] == "gzip"
    for params in ({}, {"version": "1.6.4"}, {"compression": "nothing"}):
        assert key not in registry.settings_of(name, params)
    made = registry.get(name)({"version": "1.6.4", "compression": "gzip"})
    assert isinstance(made, JobWorkload)
    made.job.database[key] = "nothing"
    assert made.job.settings()[key] == "nothing"  # the layout's goes first


# An export that OrientDB wrote is what `test_import` reads, too.
@pytest.mark.parametrize("version", ["3.2", "1.7.4"])
@pytest.mark.parametrize("method", ["backup", pytest.param("export", marks=pytest.mark.long)])
def test_backup_can_be_restored(own: Path, parent: Path, method: str, version: str) -> None:
    """And one that is damaged is found."""
    with ground(workload("orientdb-backup", own, method=method, version=version), parent) as started:
        result, sizes, names = proved(started)
        assert set(sizes) == {"data", "backup"} and sizes["backup"] == result.details["backup_bytes"] > 0
        assert names["backup"] == {"database.zip" if method == "backup" else "export.json.gz"}
        if method == "backup":
            # Not compressed: the files' own bytes are in it.
            assert sizes["backup"] > 0.2 * result.details["database_bytes"]
            path = started.role_paths()["backup"] / "database.zip"
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            with pytest.raises(ZtuneError, match=r"OrientDB failed in 'restore'|the job was not done"):
                started.verify(result)
            started.cleanup()


# What moves a file is ours, and asks no OrientDB; the older one's backup is made above.
@pytest.mark.parametrize("version", ["3.2", pytest.param("1.7.4", marks=pytest.mark.long)])
def test_archive(own: Path, parent: Path, version: str) -> None:
    result, sizes, names = done(workload("orientdb-archive", own, version=version), parent)
    assert names["backup"] == {"input.json"} and names["archive"] == {"database.zip"}
    assert sizes["archive"] == result.details["archived_bytes"] > 0
    kernel = result.details["kernel"]
    assert kernel["wchar"] >= sizes["archive"] and kernel["rchar"] >= sizes["archive"]


@pytest.mark.parametrize("version", ["3.2", pytest.param("1.7.4", marks=pytest.mark.long)])
def test_lucene(own: Path, parent: Path, version: str) -> None:
    result, sizes, names = done(workload("orientdb-lucene", own, version=version), parent)
    assert result.operations == 100 and sizes["index"] == result.details["index_bytes"] > 0
    assert any(name.startswith("segments") for name in names["index"])
    words = [check.name for check in result.checks if check.name.endswith("' is found")]
    assert words == ["'describes' is found"]
