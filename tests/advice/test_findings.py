"""Each rule of findings.toml firing and not firing, and what is open where facts are missing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from finding_cases import CASES, FILES, LARGE, READ, elsewhere, of, syncs, tables_elsewhere
from observations import (
    dataset,
    group,
    observation,
)

from ztune.advice.findings import Evidence, findings, rules, undecided, unknown_roles
from ztune.advice.observed_facts import NAMES, SCOPES, subjects
from ztune.advice.rules import certain, holds, missing
from ztune.observe import roles_by_use


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


@pytest.mark.parametrize(("kinds", "said"), [(["sqlite"], False), (["sqlite", "mariadb"], True), ([], True)])
def test_a_log_that_has_to_lie_beside_the_data_is_left_there(kinds: list[str], said: bool) -> None:
    seen = of(CASES["data-and-wal-together"][0])
    databases = [replace(seen.databases[0], kind=kind) for kind in kinds]
    found = findings(seen.model_copy(update={"databases": tuple(databases)}))
    assert ("data-and-wal-together" in {f.id for f in found}) is said


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
        "recordsize-in-sequence",
        "other-filesystem",
    }
    assert undecided(made) == []


def test_that_files_are_not_on_zfs_is_said_once_for_all_roles() -> None:
    made = observation(groups=elsewhere(), zfs=None)
    (found,) = (f for f in findings(made) if f.id == "other-filesystem")
    assert {e.fact: e.text for e in found.evidence} == {
        "elsewhere": "data, wal", "elsewhere_filesystems": "ext4", "elsewhere_writes": "20,000",
    }  # fmt: skip


def test_what_a_part_of_the_time_stands_for_is_no_evidence() -> None:
    whole = of(CASES["recordsize-above-writes"][0])
    role = next(g for g in whole.groups if g.kind == "role" and g.writes.calls)
    share = 50 / role.writes.calls
    for counted, fires in ((1.0, True), (share * 2.1, True), (share, False)):
        seen = whole.model_copy(update={"counted_share": counted})
        assert ("recordsize-above-writes" in {f.id for f in findings(seen)}) == fires


def test_small_scattered_reads_keep_the_writes_from_asking_for_large_records() -> None:
    ids = {f.id for f in findings(observation(groups=tables_elsewhere({4096: 20_000}), zfs=None))}
    assert "recordsize-between" in ids and "recordsize-from-writes" not in ids
    ids = {f.id for f in findings(observation(groups=tables_elsewhere({524288: 20_000}), zfs=None))}
    assert "recordsize-from-writes" in ids and "recordsize-between" not in ids
    # On ZFS records that suit the reads are not called too small for the writes.
    for changes, told in ((READ, False), ({}, True)):
        made = observation(data={"recordsize": 16384}, data_group={**LARGE, **changes})
        assert ("recordsize-below-writes" in {f.id for f in findings(made)}) is told


def test_a_log_that_is_written_over_an_old_segment_keeps_its_records() -> None:
    # As PostgreSQL's is seen: pages of 8K, each write from the last page on, over a recycled segment.
    pages = {"writes__sizes": {8192: 10_000}, "writes__sequential": 20, "writes__overwritten": 10_000 * 8192}
    found = findings(observation(wal={"recordsize": 131072}, wal_group_=pages))
    assert not [f for f in found if f.about.get("role") == "wal" and f.topic == "recordsize"]
    data = findings(observation(data={"recordsize": 131072}, data_group=pages))
    assert "recordsize-above-writes" in {f.id for f in data}


@pytest.mark.parametrize("text", ["9" * 5000, "²", "1e999", "nan", "-" * 100, ""])
def test_numbers_that_a_host_makes_up_are_not_known(text: str) -> None:
    names = ("shared_buffers", "block_size", "wal_segment_size")
    made = observation(settings=dict.fromkeys(names, text))
    assert made.zfs is not None
    data = made.zfs.datasets[0]
    for name in ("recordsize", "compressratio", "special_small_blocks"):
        data.properties[name] = data.properties["recordsize"].model_copy(update={"value": text})
    data.properties["compression"] = data.properties["recordsize"].model_copy(
        update={"value": f"zstd-{text}"}
    )
    made.zfs.tunables["zfs_txg_timeout"] = text
    for pool in made.zfs.pools:
        for value in pool.properties.values():
            value.value = text
    assert all(isinstance(found.sentence, str) for found in findings(made))


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


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("setting", ["on", "off"])
def test_files_that_nobody_looked_at_are_not_called_safe(database: str, setting: str) -> None:
    # --no-files: a file that was begun with a smaller record keeps it, whatever the property says by now.
    name = "full_page_writes" if database == "postgresql" else "innodb_doublewrite"
    made = observation(database=database, data={"recordsize": 16384}, settings={name: setting})
    said = {f.id for f in findings(made)} & {
        "full-page-writes-may-go", "full-page-writes-off-kept", "doublewrite-may-go", "doublewrite-off-kept",
    }  # fmt: skip
    assert said == set()
    assert ["files_seen"] in [u.missing for u in undecided(made)]


def busy(name: str, calls: int) -> dict[str, Any]:
    return {"kind": "file", "name": name, "writes": {"calls": calls, "bytes": calls * 8192, "sizes": {}}}


def test_where_no_role_is_known_that_is_said_with_the_busiest_files() -> None:
    files = [busy(f"/srv/db/{n}", n) for n in (1, 4, 2, 3)]
    text = unknown_roles(observation(groups=[group("none", None), *files]))
    assert text.startswith("No file's role is known") and "--role 'GLOB=ROLE'" in text
    assert text.endswith("Most was read and written in /srv/db/4, /srv/db/3, /srv/db/2.")
    # A file of the system is no database's; what sums don't tell is not proposed.
    mine = [busy("/etc/group", 9), busy("/usr/lib/x.so", 9), *files]
    assert unknown_roles(observation(groups=[group("none", None), *mine])) == text


def used(name: str, **parts: dict[str, int]) -> dict[str, Any]:
    whole = {"reads": {"calls": 0}, "writes": {"calls": 0}, **parts}
    for part in ("reads", "writes"):
        whole[part] = {"bytes": 0, "sequential": 0, "overwritten": 0, "synced": 0, "direct": 0, **whole[part]}
    return {"kind": "file", "name": name, **whole}


@pytest.mark.parametrize(
    "files, role",
    [
        ([{"writes": {"calls": 100, "bytes": 1 << 20, "sequential": 3, "overwritten": 1 << 20}}], "data"),
        ([{"writes": {"calls": 100, "bytes": 1 << 20, "sequential": 3}}], "data"),  # here and there
        ([{"writes": {"calls": 9, "bytes": 1 << 10, "sequential": 8}}], None),  # too little
        ([{"writes": {"calls": 99, "bytes": 1 << 17, "sequential": 98}, "syncs": {"calls": 99}}], "wal"),
        ([{"writes": {"calls": 99, "bytes": 1 << 17, "sequential": 98, "synced": 99}}], "wal"),
        # Appended, not read.
        ([{"writes": {"calls": 99, "bytes": 1 << 17, "sequential": 98}}], "wal"),
        # Once, in large pieces: a dump, a sorted run or a file of a sort that is removed again.
        ([{"writes": {"calls": 9, "bytes": 9 << 20, "sequential": 8}}], None),
        # Synced, but used as pages afterwards, or not: sums don't say which.
        ([{"writes": {"calls": 99, "bytes": 1 << 17, "sequential": 85, "overwritten": 1 << 17},
           "syncs": {"calls": 99}}], None),
        ([{"writes": {"calls": 99, "bytes": 1 << 17, "sequential": 98}, "reads": {"calls": 50, "bytes": 50},
           "syncs": {"calls": 99}}], None),
        # Many files that each had one write: new ones, or each written in its midst.
        ([{"writes": {"calls": 1, "bytes": 8192}}] * 20, None),
        ([{"reads": {"calls": 50, "bytes": 1 << 20, "sequential": 49}}], "source"),
        ([{"reads": {"calls": 50, "bytes": 1 << 20, "sequential": 4}}], "data"),
    ],
)  # fmt: skip
def test_a_role_is_proposed_where_sums_tell_it(files: list[dict[str, Any]], role: str | None) -> None:
    made = [used(f"/srv/my db/part{i}", **one) for i, one in enumerate(files)]
    seen = observation(groups=[group("none", None), *made], seconds=10.0)
    found = [(p.glob, p.role) for p in roles_by_use.proposals(seen.groups, seen.seconds)]
    assert found == ([] if role is None else [("/srv/my db/part*", role)])
    text = unknown_roles(seen)
    assert ("By what they did: --role '/srv/my db/part*=" in text) == (role is not None)
    assert ("Most was read and written in" in text) == (role is None)


@pytest.mark.parametrize(
    "groups",
    [
        [group("none", None), group("data", None)],  # one is known: the rules speak of it
        [group("none", None, reads__calls=0, writes__calls=0)],  # nothing was read or written
    ],
)
def test_where_a_role_is_known_or_nothing_was_done_it_is_not_said(groups: list[dict[str, Any]]) -> None:
    assert unknown_roles(observation(groups=groups)) == ""


@pytest.mark.parametrize(
    ("source", "above", "said"),
    [
        ("inherited from tank/pg", "on", ["tank/pg"]),
        ("default", "on", ["tank/pg"]),
        ("local", "on", ["tank/pg", "tank/pg/wal"]),
        ("local", "off", ["tank/pg/wal"]),
        ("-", "on", ["tank/pg", "tank/pg/wal"]),  # not known
    ],
)
def test_atime_is_said_where_it_is_to_be_set(source: str, above: str, said: list[str]) -> None:
    """It was said of each dataset that inherits it, with a command for each."""
    below = dataset("tank/pg/wal", ["wal"], atime="on")
    below["properties"]["atime"]["source"] = source
    seen = observation(datasets=[dataset("tank/pg", ["data"], atime=above), below])
    assert [f.about["dataset"] for f in findings(seen) if f.id == "atime-on"] == said
