"""Import, backup, export, archive and full-text index on the real OrientDB, at their smallest; skipped where
it isn't installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.errors import MissingError, ZtuneError
from ztune.trial.jobs import orientdb_files
from ztune.trial.jobs.base import WorkloadResult
from ztune.workloads import registry
from ztune.workloads.base import JobWorkload, running

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


def done(made: JobWorkload, parent: Path) -> tuple[WorkloadResult, dict[str, int], dict[str, set[str]]]:
    """Do the whole job; return its result, the bytes of each role and the names of its files."""
    with running(made, parent=parent) as started:
        assert started.pids()
        result = started.verify(started.run())
        paths = started.role_paths()
        assert set(started.page_sizes()) <= set(paths)
        sizes = {role: orientdb_files.size_of(path) for role, path in paths.items()}
        names = {role: {path.name for path in top.rglob("*")} for role, top in paths.items()}
    assert list(parent.iterdir()) == []
    assert all(check.ok for check in result.checks)
    assert result.details["input"]["lines"] == 120 and result.details["input"]["terms"] == 100
    return result, sizes, names


def test_import(own: Path, parent: Path) -> None:
    result, sizes, names = done(workload("orientdb-import", own), parent)
    assert set(sizes) == {"source", "data", "wal"} and result.operations == 220
    assert names["source"] == {"export.json.gz"} and sizes["source"] == result.details["export_bytes"]
    assert {check.name for check in result.checks} >= {"vertices", "edges", "sum over all edges as triples"}


@pytest.mark.parametrize("method", ["backup", "export"])
def test_backup_can_be_restored(own: Path, parent: Path, method: str) -> None:
    result, sizes, names = done(workload("orientdb-backup", own, method=method), parent)
    assert set(sizes) == {"data", "backup"} and sizes["backup"] == result.details["backup_bytes"] > 0
    assert names["backup"] == {"database.zip" if method == "backup" else "export.json.gz"}
    if method == "backup":
        # Not compressed: the files' own bytes are in it.
        assert sizes["backup"] > 0.2 * result.details["database_bytes"]


def test_a_backup_that_is_damaged_is_found(own: Path, parent: Path) -> None:
    with running(workload("orientdb-backup", own), parent=parent) as started:
        result = started.run()
        path = started.role_paths()["backup"] / "database.zip"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ZtuneError, match=r"OrientDB failed in 'restore'|the job was not done"):
            started.verify(result)
        started.cleanup()


def test_archive(own: Path, parent: Path) -> None:
    result, sizes, names = done(workload("orientdb-archive", own), parent)
    assert names["backup"] == {"input.json"} and names["archive"] == {"database.zip"}
    assert sizes["archive"] == result.details["archived_bytes"] > 0
    kernel = result.details["kernel"]
    assert kernel["wchar"] >= sizes["archive"] and kernel["rchar"] >= sizes["archive"]


def test_lucene(own: Path, parent: Path) -> None:
    result, sizes, names = done(workload("orientdb-lucene", own), parent)
    assert result.operations == 100 and sizes["index"] == result.details["index_bytes"] > 0
    assert any(name.startswith("segments") for name in names["index"])
    words = [check.name for check in result.checks if check.name.endswith("' is found")]
    assert words == ["'describes' is found"]
