"""Facts that are computed, against figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from observations import GIB, LOG, MIRROR, dataset, disk, group, histogram, observation, vdev, wal_group

from ztune.advice.fact import Subject, shown
from ztune.advice.observed_datasets import slop
from ztune.advice.observed_facts import SCOPES, subjects
from ztune.observe.model import Observation


def of(made: Observation, label: str) -> dict[str, Any]:
    return next(s.facts for s in subjects(made) if s.label == label)


def test_each_subject_has_the_facts_of_its_scope_and_no_others() -> None:
    seen = subjects(observation())
    assert [s.label for s in seen] == [
        "role data (tank/data)", "role wal (tank/wal)", "dataset tank/data", "dataset tank/wal", "pool tank",
        "database postgresql", "this host",
    ]  # fmt: skip
    for subject in [*seen, *subjects(histogram("wal", {8192: 1}))]:
        assert set(subject.facts) == set(SCOPES[subject.scope])


@pytest.mark.parametrize(
    ("size", "kept"),
    [(1000 * GIB, 1000 * GIB // 32), (100 << 40, 128 * GIB), (2 * GIB, 128 << 20), (200 << 20, 100 << 20)],
)
def test_space_that_zfs_keeps(size: int, kept: int) -> None:
    assert slop(size) == kept


def test_misses_beyond_reads_count_every_record_that_a_read_spans() -> None:
    assert of(observation(arc={"demand_data_misses": 5000}), "this host")["misses_beyond_reads"] == 2000
    large = {"reads__calls": 1000, "reads__sizes": {65536: 1000}}
    made = observation(arc={"demand_data_misses": 5000}, data_group=large)
    assert of(made, "this host")["misses_beyond_reads"] == 5000 - 1000 * 4
    # Reads of files elsewhere never ask the ARC.
    made = observation(arc={"demand_data_misses": 50}, groups=[group("data", None, filesystem="ext4")])
    assert of(made, "this host")["misses_beyond_reads"] is None
    assert of(observation(), "this host")["misses_beyond_reads"] == 0


def test_times_of_syncs_and_of_the_log_device() -> None:
    made = observation(
        wal_group_={"syncs__calls": 980, "syncs__latency_total": 2_990_000_000},
        vdevs=[MIRROR, LOG],
        disks=[disk("sda"), disk("sdb"), disk("nvme0n1", writes=1000, write_seconds=0.5, flush_seconds=0.25)],
    )
    pool = of(made, "pool tank")
    # 20 syncs of 0.5 ms on data beside 980 of 2.99 s together on the log.
    assert pool["pool_syncs"] == 1000
    assert pool["sync_mean"] == pytest.approx(0.003)
    assert pool["sync_wait"] == pytest.approx(3.0 / 60)
    assert (pool["log_writes"], pool["log_wait"], pool["data_wait"]) == (1000, 0.00075, 0.001)


def test_a_pool_without_sizes_takes_those_of_its_vdevs() -> None:
    made = observation().model_dump()
    made["zfs"]["pools"][0]["properties"] = {}
    made["zfs"]["pools"][0]["vdevs"] = [
        {**vdev("mirror-0", ["sda"]), "size": 100 * GIB, "allocated": 75 * GIB},
        {**vdev("mirror-1", ["sdb"]), "size": 100 * GIB, "allocated": 75 * GIB},
        {**LOG, "size": 10 * GIB, "allocated": 0},
    ]
    pool = of(Observation.model_validate(made), "pool tank")
    assert (pool["pool_used"], pool["pool_free"]) == (0.75, 50 * GIB)


def test_a_role_s_dataset_is_that_of_its_files() -> None:
    role = group("data", None, filesystem="zfs")
    file = {"kind": "file", "name": "/tank/data/base/1", "role": "data", "dataset": "tank/data"}
    one = observation(groups=[role, file])
    assert of(one, "role data (tank/data)")["recordsize"] == 16384
    other = {**file, "name": "/tank/wal/x", "dataset": "tank/wal"}
    assert of(observation(groups=[role, file, other]), "role data")["recordsize"] is None


def test_a_role_in_two_datasets_is_counted_by_its_files() -> None:
    files = [
        group("/tank/data/1", "tank/data", kind="file", role="data"),
        group("/tank/wal/1", "tank/wal", kind="file", role="data", reads__calls=7),
    ]
    made = observation(groups=[group("data", None, filesystem="zfs"), *files])
    assert of(made, "dataset tank/data")["dataset_reads"] == 3000
    assert of(made, "dataset tank/wal")["dataset_reads"] == 7


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"filesystem": "zfs"}, True),
        ({"filesystem": "ext4"}, False),
        ({"filesystem": None}, True),  # its dataset says so
        ({"filesystem": None, "dataset": "tank/vol"}, False),  # what is on a volume is another file system
        ({"filesystem": None, "dataset": "tank/unheard"}, None),
    ],
)
def test_whether_files_are_on_zfs(changes: dict[str, Any], answer: bool | None) -> None:
    volume = dataset("tank/vol", ["x"], "volume", recordsize=None, volblocksize=16384)
    made = observation(
        groups=[group("data", changes.get("dataset", "tank/data")) | changes],
        datasets=[dataset("tank/data", ["data"]), volume],
    )
    assert next(s.facts for s in subjects(made) if s.scope == "role")["on_zfs"] is answer


@pytest.mark.parametrize(
    ("text", "algorithm", "level"),
    [
        ("on", "lz4", None),
        ("zstd", "zstd", 3),
        ("gzip-9", "gzip", 9),
        ("zstd-fast-10", "zstd-fast", 10),
        ("off", "off", None),
    ],
)
def test_compression_is_told_apart(text: str, algorithm: str, level: int | None) -> None:
    facts = of(observation(data={"compression": text}), "dataset tank/data")
    assert (facts["algorithm"], facts["level"]) == (algorithm, level)


@pytest.mark.parametrize("role", ["data", "index"])
def test_the_smallest_record_of_the_data_counts_for_torn_pages(role: str) -> None:
    files = [{"role": role, "count": 2, "bytes": 1, "allocated": 1, "record_sizes": {4096: 1, 131072: 1}}]
    assert of(observation(files=files), "database postgresql")["data_record"] == 4096
    assert of(observation(), "database postgresql")["data_record"] == 16384


def test_zero_calls_in_a_file_of_another_tool_are_no_count() -> None:
    assert of(histogram("wal", {8192: 1}), "role wal")["role_reads"] is None
    assert of(observation(groups=[wal_group("tank/wal")]), "role wal (tank/wal)")["role_reads"] == 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (131072, "size", "128K"),
        (1536, "bytes", "1.50 KiB"),
        (1 << 20, "bytes/s", "1.00 MiB/s"),
        (18257, "count", "18,257"),
        (12.34, "per s", "12.3/s"),
        (1234.5, "per s", "1,234/s"),
        (0.915, "share", "91.5%"),
        (64, "percent", "64%"),
        (0.0021, "s", "2.10 ms"),
        (1.9411, "ratio", "1.94"),
        (False, "flag", "no"),
        (["data", "wal"], "text", "data, wal"),
    ],
)
def test_values_as_people_read_them(value: Any, unit: Any, text: str) -> None:
    assert shown(value, unit) == text


def test_labels_name_the_subject() -> None:
    assert Subject("pool", {"pool": "tank"}, {}).label == "pool tank"
    assert Subject("role", {"role": "wal"}, {}).label == "role wal"
