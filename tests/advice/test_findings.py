"""Each rule of findings.toml firing and not firing, and what is open where facts are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from observations import (
    GIB,
    LOG,
    MIRROR,
    SPECIAL,
    dataset,
    disk,
    group,
    histogram,
    observation,
    vdev,
    wal_group,
)

from ztune.advice.findings import Evidence, findings, rules, undecided
from ztune.advice.observed_facts import NAMES, SCOPES, subjects
from ztune.advice.rules import certain, holds, missing
from ztune.observe.model import Observation

LZ4 = {"algorithm": "lz4", "blocks": 100, "ratio": 2.0}
MARIADB: dict[str, Any] = {"database": "mariadb"}


def sampled(ratio: float, low: float) -> list[dict[str, Any]]:
    made = [
        {**LZ4, "recordsize": 16384, "stored_ratio": ratio, "low": low, "high": ratio + 0.1},
        {**LZ4, "recordsize": 131072, "stored_ratio": 3.0, "low": 2.9, "high": 3.1},
    ]
    return [{"role": "data", "count": 10, "bytes": GIB, "allocated": GIB, "compressed": made}]


def records(sizes: dict[int, int]) -> list[dict[str, Any]]:
    made = {"count": 10, "bytes": GIB, "allocated": GIB}
    return [
        {"role": "data", **made, "record_sizes": sizes},
        {"role": "wal", **made, "record_sizes": {131072: 10}},
    ]


def elsewhere(filesystem: str = "ext4") -> list[dict[str, Any]]:
    return [group("data", None, filesystem=filesystem), wal_group(None, filesystem=filesystem)]


READ: dict[str, Any] = {
    "reads__calls": 20_000,
    "reads__sizes": {4096: 20_000},
    "reads__bytes": 20_000 * 4096,
    "reads__sequential": 1000,
}


def tables_elsewhere(reads: dict[int, int]) -> list[dict[str, Any]]:
    """RocksDB's on ext4: written once in large pieces, read here and there."""
    return [group("data", None, filesystem="ext4", **{**READ, "reads__sizes": reads}, **LARGE)]


LARGE: dict[str, Any] = {"writes__sizes": {524288: 10_000}, "writes__sequential": 9900}


def syncs(ms: float, calls: int = 5000) -> dict[str, Any]:
    return {"syncs__calls": calls, "syncs__latency_total": int(calls * ms * 1e6)}


def one_dataset(**changes: Any) -> dict[str, Any]:
    return {"datasets": [dataset("tank/data", ["data"], **changes)], "groups": [group("data", "tank/data")]}


def fast_log(**changes: Any) -> dict[str, Any]:
    return {"vdevs": [MIRROR, LOG], "disks": [disk("sda"), disk("sdb"), disk("nvme0n1", **changes)]}


def volume() -> dict[str, Any]:
    made = dataset("tank/vol", ["data"], "volume", recordsize=None, volblocksize=16384)
    return {"datasets": [made], "groups": [group("data", "tank/vol", filesystem="ext4")]}


RAIDZ = vdev("raidz1-0", ["sda", "sdb", "sdc", "sdd", "sde"])
FILES = histogram("data", {65536: 1000}), histogram("wal", {65536: 1000})
DIRECT = {"writes__direct": 10_000, "writes__aligned": 10_000}
SMALL = {"data": {"recordsize": 4096}}

# Rule → arguments of an observation in which it fires, and of one, as near as possible, in which it does not.
CASES: dict[str, tuple[dict[str, Any] | Observation, dict[str, Any] | Observation]] = {
    "recordsize-above-writes": (
        {"data": {"recordsize": 131072}},
        {"data": {"recordsize": 131072}, "data_group": {"writes__sequential": 9000}},
    ),
    "partial-writes-read": ({"arc": {"demand_data_misses": 4000}}, {"arc": {"demand_data_misses": 3999}}),
    "recordsize-below-writes": (
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, "wal": {"recordsize": 16384}},
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, "wal": {"recordsize": 32768}},
    ),
    "recordsize-from-writes": (FILES[0], FILES[1]),
    "recordsize-between": (
        {"groups": tables_elsewhere({4096: 20_000}), "zfs": None},
        {"groups": tables_elsewhere({262144: 20_000}), "zfs": None},
    ),
    "recordsize-above-reads": (
        {"data": {"recordsize": 131072}, "data_group": READ, "arc": {"demand_data_misses": 20_000}},
        {"data": {"recordsize": 16384}, "data_group": READ, "arc": {"demand_data_misses": 20_000}},
    ),
    "recordsize-from-appends": (FILES[1], FILES[0]),
    "wal-large-writes": (
        {"wal_group_": {"writes__sizes": {65536: 10_000}}},
        {"wal_group_": {"writes__sizes": {65536: 10_000}}, **fast_log(write_seconds=0.1)},
    ),
    "recordsize-old-files": ({"files": records({16384: 4, 131072: 6})}, {"files": records({16384: 10})}),
    "data-and-wal-together": (
        {"datasets": [dataset("tank/data", ["data", "wal"])], "groups": [group("data", "tank/data")]},
        {"datasets": [dataset("tank/data", ["data", "temp"])], "groups": [group("data", "tank/data")]},
    ),
    "sync-disabled": ({"wal": {"sync": "disabled"}}, {"wal": {"sync": "always"}}),
    "sync-always": ({"wal": {"sync": "always"}}, {"wal": {"sync": "disabled"}}),
    "checksum-off": ({"data": {"checksum": "off"}}, {"data": {"checksum": "sha256"}}),
    "cache-flush-off": (
        {"tunables": {"zfs_nocacheflush": "1"}},
        {"tunables": {"zfs_nocacheflush": "0", "zil_nocacheflush": "0"}},
    ),
    "txg-timeout-long": ({"tunables": {"zfs_txg_timeout": "6"}}, {"tunables": {"zfs_txg_timeout": "5"}}),
    "txg-timeout-short": ({"tunables": {"zfs_txg_timeout": "1"}}, {"tunables": {"zfs_txg_timeout": "5"}}),
    "fsync-off": ({"settings": {"fsync": "off"}}, {"settings": {"fsync": "on"}}),
    "synchronous-commit-off": (
        {"settings": {"synchronous_commit": "off"}},
        {"settings": {"synchronous_commit": "local"}},
    ),
    "log-flush-weak": (
        {**MARIADB, "settings": {"innodb_flush_log_at_trx_commit": "2"}},
        {**MARIADB, "settings": {"innodb_flush_log_at_trx_commit": "1"}},
    ),
    "full-page-writes-off-torn": (
        {**SMALL, "settings": {"full_page_writes": "off"}},
        {"data": {"recordsize": 8192}, "settings": {"full_page_writes": "off"}},
    ),
    "full-page-writes-off-in-place": (
        {"groups": elsewhere(), "settings": {"full_page_writes": "off"}},
        {"groups": elsewhere(), "settings": {"full_page_writes": "on"}},
    ),
    "full-page-writes-may-go": ({"data": {"recordsize": 8192}}, SMALL),
    "full-page-writes-off-kept": (
        {"data": {"recordsize": 8192}, "settings": {"full_page_writes": "off"}},
        {**SMALL, "settings": {"full_page_writes": "off"}},
    ),
    "doublewrite-off-torn": (
        {**MARIADB, "settings": {"innodb_doublewrite": "DETECT_ONLY"}, "files": records({16384: 1, 8192: 1})},
        {**MARIADB, "settings": {"innodb_doublewrite": "DETECT_ONLY"}, "files": records({16384: 2})},
    ),
    "doublewrite-off-in-place": (
        {**MARIADB, "groups": elsewhere("xfs"), "settings": {"innodb_doublewrite": "OFF"}},
        {**MARIADB, "groups": elsewhere("xfs"), "settings": {"innodb_doublewrite": "fast"}},
    ),
    "doublewrite-may-go": (
        {**MARIADB, "data": {"recordsize": 16384}},
        {**MARIADB, "data": {"recordsize": 8192}},
    ),
    "doublewrite-off-kept": (
        {**MARIADB, "settings": {"innodb_doublewrite": "0"}},
        {**MARIADB, "settings": {"innodb_doublewrite": "0"}, "data": {"recordsize": 8192}},
    ),
    "wal-recycling": (
        {"settings": {"wal_init_zero": "on"}},
        {
            "settings": {"wal_init_zero": "on"},
            "groups": [group("data", "tank/data"), wal_group(None, filesystem="xfs")],
        },
    ),
    "logbias-throughput": (
        {"data": {"logbias": "throughput"}},
        {"data": {"logbias": "throughput"}, "data_group": {"reads__calls": 0}},
    ),
    "slog-absent": ({"wal_group_": syncs(8)}, {"wal_group_": syncs(1)}),
    "slog-slower": (fast_log(write_seconds=0.5, flush_seconds=1.5), fast_log(write_seconds=0.5)),
    "slog-unused": (fast_log(writes=50, write_seconds=0.01), fast_log(writes=51, write_seconds=0.01)),
    "slog-idle": (
        {**fast_log(writes=0), "data_group": syncs(0, 0), "wal_group_": syncs(0, 0)},
        {**fast_log(writes=0), "data_group": syncs(1, 1), "wal_group_": syncs(0, 0)},
    ),
    "compression-off": (
        {"data": {"compression": "off"}, "files": sampled(1.4, 1.3)},
        {"data": {"compression": "off"}, "files": sampled(1.2, 1.05)},
    ),
    "slow-compression": ({"data": {"compression": "gzip-9"}}, {"data": {"compression": "zstd-3"}}),
    "raidz-small-records": ({"vdevs": [RAIDZ]}, {"vdevs": [RAIDZ], "data": {"recordsize": 131072}}),
    "no-gain-from-compression": (
        {"data": {"recordsize": 8192, "compressratio": "1.04"}},
        {"data": {"recordsize": 8192, "compressratio": "1.60"}},
    ),
    "special-takes-all": (
        {"vdevs": [MIRROR, SPECIAL], "data": {"special_small_blocks": 16384}},
        {"vdevs": [MIRROR, SPECIAL], "data": {"special_small_blocks": 8192}},
    ),
    "special-alone": (
        {"vdevs": [MIRROR, SPECIAL | {"kind": "disk", "disks": ["sdc"]}]},
        {"vdevs": [MIRROR, SPECIAL]},
    ),
    "pool-almost-out": ({"pool": {"allocated": 955 * GIB}}, {"pool": {"allocated": 950 * GIB}}),
    "pool-full": ({"pool": {"allocated": 900 * GIB}}, {"pool": {"allocated": 890 * GIB}}),
    "free-space-fragmented": ({"pool": {"fragmentation": "64%"}}, {"pool": {"fragmentation": "63%"}}),
    "ashift-small": (
        {"vdevs": [vdev("mirror-0", ["sda", "sdb"], ashift=9)]},
        {"vdevs": [vdev("mirror-0", ["sda", "sdb"], ashift=12)]},
    ),
    "primarycache-misses": (
        {"data": {"primarycache": "metadata"}, "arc": {"demand_data_misses": 6000}},
        {"data": {"primarycache": "metadata"}, "arc": {"demand_data_misses": 5999}},
    ),
    "primarycache-partial-writes": (
        {"data": {"primarycache": "metadata"}},
        {"data": {"primarycache": "metadata"}, "data_group": {"writes__aligned": 9500}},
    ),
    "double-caching": (
        {"settings": {"shared_buffers": str(20 * GIB)}, "gauges": {"size": 16 * GIB}},
        {"settings": {"shared_buffers": str(8 * GIB)}, "gauges": {"size": 16 * GIB}},
    ),
    "caches-above-memory": (
        {"settings": {"shared_buffers": str(40 * GIB)}, "gauges": {"size": 30 * GIB}},
        {"settings": {"shared_buffers": str(30 * GIB)}, "gauges": {"size": 30 * GIB}},
    ),
    "arc-metadata-misses": (
        {"arc": {"demand_metadata_misses": 9000}, "gauges": {"size": 16 * GIB}},
        {"arc": {"demand_metadata_misses": 9000}, "gauges": {"size": 8 * GIB}},
    ),
    "arc-dnodes": ({"gauges": {"dnode_size": 2 * GIB}}, {"gauges": {"dnode_size": GIB}}),
    "direct-ignored": (
        {"data_group": {"reads__direct": 100}, "version": "2.2.7"},
        {"data_group": {"reads__direct": 100}, "version": "2.3.0"},
    ),
    "direct-unaligned": (
        {"data_group": {"writes__direct": 10_000}},
        {"data_group": {"writes__direct": 10_000}, "data": {"direct": "disabled"}},
    ),
    "direct-bypasses-arc": (
        {"data_group": DIRECT},
        {"data_group": DIRECT, "tunables": {"zfs_dio_enabled": "0"}},
    ),
    "direct-always": ({"data": {"direct": "always"}}, {"data": {"direct": "standard"}}),
    "direct-ignored-setting": (
        {**MARIADB, "settings": {"innodb_flush_method": "O_DIRECT"}, "version": "2.2.7"},
        {**MARIADB, "settings": {"innodb_flush_method": "O_DIRECT"}, "version": "2.3.2"},
    ),
    "atime-on": ({"data": {"atime": "on"}}, {"data": {"atime": "off"}}),
    "volume": (volume(), one_dataset()),
    "other-filesystem": ({"groups": elsewhere()}, {}),
    "old-advice-logbias": (FILES[0], FILES[1]),
    "old-advice-compression": (FILES[0], histogram("temp", {65536: 1000})),
    "old-advice-checksum": (FILES[0], {}),
    "old-advice-read-ahead": (FILES[0], {}),
}  # fmt: skip


def of(case: dict[str, Any] | Observation) -> Observation:
    return case if isinstance(case, Observation) else observation(**case)


def test_each_rule_has_a_case() -> None:
    assert list(CASES) == [rule.id for rule in rules()]


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires(rule: str) -> None:
    found = [f for f in findings(of(CASES[rule][0])) if f.id == rule]
    assert found
    for finding in found:
        for text in (finding.sentence, finding.do, finding.cost):
            assert "?" not in text and "{" not in text
        assert finding.evidence


@pytest.mark.parametrize("rule", CASES)
def test_rule_does_not_fire(rule: str) -> None:
    # Decided, too: the near miss is a "no", not an open question.
    near = of(CASES[rule][1])
    assert rule not in {f.id for f in findings(near)}
    assert rule not in {u.id for u in undecided(near)}


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.id)
def test_without_facts_no_rule_fires(rule: Any) -> None:
    names = NAMES[rule.scope]
    facts = {name: "x" if name in names else None for name in SCOPES[rule.scope]}
    assert holds(rule.when, facts) is not True


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.id)
def test_each_fact_that_a_rule_needs_leaves_it_open_when_it_is_unknown(rule: Any) -> None:
    seen = [s for s in subjects(of(CASES[rule.id][0])) if s.scope == rule.scope]
    subject = next(s for s in seen if holds(rule.when, s.facts) is True)
    for fact in certain(rule.when) - NAMES[rule.scope]:
        without = {**subject.facts, fact: None}
        assert holds(rule.when, without) is not True
        assert fact in missing(rule.when, without)


def test_a_sound_layout_has_neither_dangers_nor_warnings() -> None:
    assert {f.id for f in findings(observation()) if f.severity != "note"} == set()


def test_the_worst_come_first_and_each_names_its_subject() -> None:
    found = findings(observation(wal={"sync": "disabled"}, data={"atime": "on", "logbias": "throughput"}))
    assert [f.severity for f in found] == sorted(
        (f.severity for f in found), key=["danger", "warning", "note"].index
    )
    assert found[0].id == "sync-disabled"
    assert found[0].about == {"dataset": "tank/wal", "pool": "tank"}
    assert found[0].subject == "dataset tank/wal"
    assert "sync=disabled on tank/wal" in found[0].sentence


def test_evidence_has_the_numbers_with_their_units() -> None:
    (found,) = (
        f for f in findings(of(CASES["recordsize-above-writes"][0])) if f.id == "recordsize-above-writes"
    )
    assert found.about == {"role": "data", "dataset": "tank/data", "pool": "tank"}
    assert "recordsize is 128K" in found.sentence and "16 times" in found.sentence
    assert "`zfs set recordsize=8K tank/data`" in found.do
    evidence = {e.fact: e for e in found.evidence}
    assert evidence["recordsize"] == Evidence(
        fact="recordsize",
        words="recordsize (of a volume: volblocksize)",
        value=131072,
        unit="size",
        text="128K",
    )
    assert evidence["overwritten"].text == "90%"
    assert evidence["write_calls"].text == "10,000"
    assert evidence["write_sizes"].value == "8K × 10000"


def test_findings_and_open_rules_are_json() -> None:
    made = observation(arc={"demand_data_misses": 4000}, seconds=None)
    for part in (*findings(made), *undecided(made)):
        assert json.loads(json.dumps(part.to_json())) == part.to_json()


def test_a_rule_that_lacks_a_fact_is_open_and_says_which() -> None:
    made = observation(data={"logbias": None})
    (found,) = (u for u in undecided(made) if u.id == "logbias-throughput")
    assert found.missing == ["logbias"]
    assert found.subjects == ["dataset tank/data"]
    assert found.sentence == (
        "It is open for dataset tank/data whether logbias=throughput is set where reads follow. "
        "Not known: property logbias."
    )


def test_without_a_time_rates_are_open() -> None:
    made = observation(seconds=None, data={"compression": "gzip"}, wal_group_=syncs(8))
    open_ = {u.id: u.missing for u in undecided(made)}
    assert open_["slow-compression"] == ["write_rate"]
    assert open_["slog-absent"] == ["sync_wait"]


def test_on_a_host_without_zfs_nothing_about_zfs_is_open() -> None:
    made = observation(groups=elsewhere(), zfs=None)
    assert {f.id for f in findings(made)} == {
        "recordsize-from-writes",
        "recordsize-from-appends",
        "other-filesystem",
    }
    assert undecided(made) == []


def test_small_scattered_reads_keep_the_writes_from_asking_for_large_records() -> None:
    ids = {f.id for f in findings(observation(groups=tables_elsewhere({4096: 20_000}), zfs=None))}
    assert "recordsize-between" in ids and "recordsize-from-writes" not in ids
    ids = {f.id for f in findings(observation(groups=tables_elsewhere({524288: 20_000}), zfs=None))}
    assert "recordsize-from-writes" in ids and "recordsize-between" not in ids
    # On ZFS records that suit the reads are not called too small for the writes.
    for changes, told in ((READ, False), ({}, True)):
        made = observation(data={"recordsize": 16384}, data_group={**LARGE, **changes})
        assert ("recordsize-below-writes" in {f.id for f in findings(made)}) is told


def test_a_file_of_another_tool_leaves_what_it_does_not_tell_open() -> None:
    open_ = {u.id: u for u in undecided(FILES[0])}
    assert open_["checksum-off"].sentence == "It is open whether checksums are off: no dataset was seen."
    assert open_["fsync-off"].missing == ["database"]
    assert "on_zfs" in open_["recordsize-above-writes"].missing


def test_two_databases_are_not_given_each_other_s_files() -> None:
    one = observation().model_dump()["databases"][0]
    made = observation(databases=[one, {**one, "where": "/run/other.sock"}])
    assert "full-page-writes-may-go" not in {f.id for f in findings(made)}
    assert "full-page-writes-may-go" in {u.id for u in undecided(made)}
