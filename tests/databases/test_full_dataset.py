"""A dataset that fills up under a real server: one sentence that says so, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ztune.databases import registry
from ztune.databases.workload import JobWorkload
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host.workdir import WorkDir

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system of few megabytes"),
]


@pytest.fixture
def places(parent: Path) -> Iterator[dict[str, Path]]:
    """A directory for each role; ``fill`` makes one of them a file system of its own."""
    found = {role: parent / role for role in ("data", "wal", "index", "backup", "source", "archive")}
    for path in found.values():
        path.mkdir(mode=0o755)
    yield found
    for path in found.values():
        if path.is_mount():
            subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize(
    "name, params, role, size, said",
    [
        ("sqlite", {"size": "24M"}, "data", "12M", r"disk is full"),
        # a RocksDB built with assertions may abort over its own earlier ENOSPC instead of naming it
        ("rocksdb", {"size": "48M"}, "data", "20M", r"RocksDB client .*No space left|is full.*RocksDB"),
        ("postgres-oltp", {"scale": 2, "rate": 0}, "wal", "40M", r"pg_wal.*No space left on device"),
        ("postgres-oltp", {"scale": 4}, "data", "50M", r"could not extend file .*Check free disk space"),
        ("postgres-backup", {"scale": 3}, "backup", "20M", r"pg_basebackup .*No space left on device"),
        ("mariadb-oltp", {"size": "64M"}, "data", "40M", r"The table 'sbtest1' is full"),
        ("fio", {"size": "48M"}, "data", "20M", r"fio .*No space left on device"),
        ("mongo-restore", {"documents": 60_000}, "data", "6M", r"^role data is larger than the disk: 6M"),
        # Found by the same watch over the disks as the one above.
        pytest.param(
            "ldap-import", {"entries": 3000}, "data", "12M", r"^role data is larger than the disk: 12M",
            marks=pytest.mark.long,
        ),
        ("http", {"size": "64M"}, "source", "20M", r"^role source is larger than .*No space left on device"),
        pytest.param(
            "orientdb-graph", {"triples": 20_000}, "wal", "1M", r"OrientDB .*No space left on device",
            marks=[pytest.mark.long, pytest.mark.timeout(900)],
        ),
    ],
)  # fmt: skip
def test_a_full_dataset_is_said(
    name: str, params: dict[str, Any], role: str, size: str, said: str, parent: Path, places: dict[str, Path]
) -> None:
    workload = registry.get(name)(params)
    assert isinstance(workload, JobWorkload)
    try:
        workload.check()
    except MissingError as error:
        pytest.skip(str(error))
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "ztune-full", places[role]], check=True
    )
    given = {one: places[one] for one in workload.job.roles()}
    if name == "sqlite":
        given["wal"] = given["data"]  # its log lies beside its database
    with pytest.raises(ZtuneError, match=said) as caught:
        try:
            workload.prepare(WorkDir.create("full", parent=parent), given)
            workload.load()
            workload.start()
            workload.verify(workload.run())
        finally:
            workload.cleanup()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000
    assert not list(parent.glob("ztune-*"))
