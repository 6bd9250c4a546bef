"""The five studies as ready studies: exactly the layouts that were published, and what we add by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from ztune.claims import claim, publication
from ztune.cli._tune import TuneOptions, _study_parameters
from ztune.cli.list import command as list_command
from ztune.databases import registry
from ztune.databases.workload import JobWorkload
from ztune.onhost.properties import REPLAYED
from ztune.places.engine_spec import changed_in_vain
from ztune.runs.space import differences, first_round
from ztune.study import Layout, Study, ready
from ztune.study.layout import with_settings

OWN = "database.storage.compressionMethod"

# Study → its publication, the publication's tables (none: all of its workload), what it has beside them.
PUBLISHED: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "orientdb-import": ("orientdb-import", (), set()),
    "orientdb-import-compression": (
        "orientdb-import", ("compression-on-snappy-on", "compression-on-snappy-off"),
        {"defaults of the time"},
    ),
    "orientdb-graph": (
        "orientdb-graph", (), {"64K", "32K", "16K", "data throughput", "its last table"},
    ),
    "orientdb-graph-compression": (
        "orientdb-graph", ("load", "load-data-mb", "load-wal-mb"), {"neither"},
    ),
    "orientdb-backup": ("orientdb-graph", (), set()),
    "orientdb-archive": (
        "orientdb-graph", (), {"defaults of the time", "gzip-9, 1M, throughput", "gzip-9, 16M"},
    ),
    "orientdb-lucene": ("orientdb-graph", (), {"index 8K, compressed, throughput"}),
    "ldap-import": ("ldap-import", (), {"L2ARC fed by prefetch"}),
    "mongo-restore": ("mongo-restore", (), set()),
}  # fmt: skip
ALL = (*PUBLISHED, "oltp", "oltp-filesystems")
# These need the database itself, set anew or on another file system.
FOR_RUN = {"orientdb-import-compression", "orientdb-graph-compression", "oltp-filesystems"}


def layouts(name: str) -> dict[str, Layout]:
    """Return name → layout of a ready study."""
    return {layout.name: layout for layout in first_round(ready.find(name))}


def published(study: Study, source: str, tables: tuple[str, ...]) -> set[str]:
    """Return the hashes of the layouts that ``source`` has figures of, on the base of ``study``."""
    found = publication.find(source)
    wanted = {
        row: figure.set
        for row, (table, figure) in found.rows().items()
        if (table.workload or found.workload) == study.workload and (not tables or table.name in tables)
    }
    assert wanted
    # Unless the tables of OrientDB's own compression are asked for, it is as the recording has it.
    return {
        with_settings(study.layout, {k: v for k, v in set_.items() if tables or k != OWN}).hash
        for set_ in wanted.values()
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_layouts_are_the_published_ones(name: str) -> None:
    source, tables, beside = PUBLISHED[name]
    tried = {layout.hash: text for text, layout in layouts(name).items()}
    wanted = published(ready.find(name), source, tables)
    assert wanted <= set(tried)
    assert {text for key, text in tried.items() if key not in wanted} == beside


@pytest.mark.parametrize("name", ALL)
def test_the_study_can_be_asked(name: str) -> None:
    study = ready.find(name)
    assert study.workload is not None
    registry.make(study.workload, study.parameters)
    assert 50 < len(study.description) <= 130
    tried = first_round(study)
    refused = [
        layout
        for layout in tried
        if layout.database != study.layout.database
        or any(pool.filesystem != "zfs" for pool in layout.used_pools())
        or list(changed_in_vain(study, layout, REPLAYED))
    ]
    assert bool(refused) == (name in FOR_RUN)


@pytest.mark.parametrize("name", ["orientdb-import", "orientdb-graph", "orientdb-backup", "orientdb-archive",
                                  "orientdb-lucene", "ldap-import", "mongo-restore"])  # fmt: skip
def test_a_workload_s_own_study_leaves_it_its_version_and_its_pools(name: str) -> None:
    study = ready.find(name)
    assert study.workload == name and "version" not in study.parameters
    if name.startswith("orientdb-") and name != "orientdb-import":
        assert study.layout.hash == ready.find("orientdb-graph").layout.hash


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("orientdb-")])
def test_its_job_can_be_done_by_the_version_that_was_published(name: str) -> None:
    study, version = ready.find(name), publication.find(PUBLISHED[name][0]).parameters["version"]
    assert study.workload is not None
    made = registry.make(study.workload, {**study.parameters, "version": version})
    assert isinstance(made, JobWorkload) and made.job.release.number == version
    assert study.parameters.get("version", version) == version


def test_import_has_nine_record_sizes_in_each_sweep() -> None:
    sizes = ["128K", "64K", "32K", "16K", "8K", "4K", "2K", "1K", "512"]
    tried = layouts("orientdb-import")
    assert {pool.ashift for layout in tried.values() for pool in layout.pools} == {9}
    for first, role in (
        ("compressed, {}", "data"),
        ("log pool, log {}", "wal"),
        ("log pool with USB log device, log {}", "wal"),
    ):
        assert [tried[first.format(size)].settings()[f"{role}.recordsize"] for size in sizes] == sizes


def test_import_has_the_usb_stick_both_ways() -> None:
    tried = layouts("orientdb-import")
    beside = tried["log pool with USB log device, log 32K"].settings()
    under = tried["USB stick under the log, disk as its log device"].settings()
    assert (beside["pool.logs.data"], beside["pool.logs.slog"]) == ("hdd-10k", "usb-slow")
    assert (under["pool.logs.data"], under["pool.logs.slog"]) == ("usb-slow", "hdd-10k")


def test_each_step_of_the_oltp_ladder_keeps_those_before() -> None:
    tried = layouts("oltp")
    base = tried["defaults of the time"]
    steps = {name: differences(base, layout) for name, layout in tried.items()}
    assert steps["1 records as blocks"] == {"data.recordsize": "8K", "wal.recordsize": "8K"}
    assert steps["2 log in a dataset of its own"] == {"data.recordsize": "8K"}
    third = steps["3 log in a pool of its own"]
    assert third == {"data.recordsize": "8K", "wal.pool": "logs"}
    fourth = {**third, "tunable.zfs_vdev_max_active": "5"}
    assert steps["4 outstanding I/Os"] == fourth
    for name, key, value in (
        ("5 txg interval 1 s", "tunable.zfs_txg_timeout", "1"),
        ("5 txg interval 30 s", "tunable.zfs_txg_timeout", "30"),
        ("6 immediate size 4K", "tunable.zfs_immediate_write_sz", "4K"),
        ("6 immediate size 128K", "tunable.zfs_immediate_write_sz", "128K"),
    ):
        assert steps[name] == {**fourth, key: value}
    disks = {name: sum(v.disks for p in f.used_pools() for v in p.vdevs) for name, f in tried.items()}
    assert disks["3 log in a pool of its own, as many disks"] == disks["2 log in a dataset of its own"] == 4


def test_the_oltp_ladder_tries_what_its_claims_compare() -> None:
    base = ready.find("oltp").layout
    tried = [layout.settings() for layout in layouts("oltp").values()]
    sides = [s for each in claim.every().values() if each.source.study == "oltp" for s in each.layouts]
    assert len(sides) > 10
    for factor, value in {pair for side in sides for pair in side.set.items()}:
        wanted = with_settings(base, {factor: value}).settings().get(factor)
        assert wanted in [settings.get(factor) for settings in tried], f"{factor} = {value}"


def test_other_file_systems_are_tried_buffered_and_direct() -> None:
    found = {
        (layout.pool("tank").filesystem, layout.database["innodb_flush_method"])
        for layout in layouts("oltp-filesystems").values()
    }
    assert found == {(fs, how) for fs in ("zfs", "ext4", "xfs") for how in ("fsync", "O_DIRECT")}


def test_ldap_import_stands_on_the_study_s_disks_and_in_its_proportion() -> None:
    study = ready.find("ldap-import")
    settings = study.layout.settings()
    assert settings["pool.db.data"] == "stripe 6 hdd-7200"
    assert settings["slog"] == "flash-card" and settings["pool.ldif.l2arc"].startswith("flash-card")
    arc = publication.find("ldap-import").other["arc_max_bytes"]
    assert arc / study.layout.arc == 96
    assert round((14 << 30) / 96) >> 20 == int(str(study.parameters["size"]).removesuffix("M"))


@pytest.mark.parametrize("name", ALL)
def test_list_layouts_shows_it(name: str) -> None:
    done = CliRunner().invoke(list_command, ["layouts", name, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert [row["name"] for row in json.loads(done.stdout)] == list(layouts(name))


def test_tune_takes_the_parameters_of_the_workload_s_own_study() -> None:
    def parameters(workload: str, study: str | None = None) -> dict[str, Any]:
        return _study_parameters(
            TuneOptions(workload, {}, None, study, profile=None, arc=None, budget=None, jobs=None, seed=None)
        )

    assert parameters("mongo-restore") == dict(ready.find("mongo-restore").parameters) != {}
    assert parameters("postgres-oltp") == parameters("fio", "oltp") == {}
    assert parameters("postgres-oltp", "oltp")["script"] == "mix21"
