"""The condition language, and each rule of hazards.toml firing and not firing."""

from __future__ import annotations

from typing import Any

import evidence as ev
import pytest

from ztune.advice.facts import DATASET_FACTS, LAYOUT_FACTS, dataset_facts, layout_facts
from ztune.advice.hazards import hazard_rules, hazards, reason
from ztune.advice.rules import RuleError, check, holds, load, say
from ztune.analysis.results import LayoutResult, collect
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.manifest import Manifest

FACTS: dict[str, Any] = {"size": 8, "page": 8, "name": "x", "roles": ["data"], "nothing": None}


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ({"fact": "size", "eq": 8}, True),
        ({"fact": "size", "ne": "@page"}, False),
        ({"fact": "size", "lt": "@page", "times": 2}, True),
        ({"fact": "size", "ge": 9}, False),
        ({"fact": "name", "in": ["x", "y"]}, True),
        ({"fact": "roles", "has": "wal"}, False),
        ({"fact": "nothing", "eq": 1}, None),
        ({"not": {"fact": "nothing", "eq": 1}}, None),
        ({"fact": "nothing", "known": False}, True),
        ({"all": [{"fact": "size", "eq": 8}, {"fact": "nothing", "eq": 1}]}, None),
        ({"all": [{"fact": "size", "eq": 9}, {"fact": "nothing", "eq": 1}]}, False),
        ({"any": [{"fact": "size", "eq": 8}, {"fact": "nothing", "eq": 1}]}, True),
        ({"any": [{"fact": "size", "eq": 9}, {"fact": "nothing", "eq": 1}]}, None),
    ],
)
def test_conditions(condition: dict[str, Any], answer: bool | None) -> None:
    check(condition, tuple(FACTS), "here")
    assert holds(condition, FACTS) is answer


@pytest.mark.parametrize(
    "condition",
    [
        {"fact": "size"},
        {"fact": "size", "eq": 1, "lt": 2},
        {"fact": "unheard", "eq": 1},
        {"fact": "size", "eq": "@unheard"},
        {"fact": "size", "eq": 1, "else": 2},
        {"all": []},
        {"all": [{"fact": "size", "eq": 1}], "any": []},
        "size > 1",
    ],
)
def test_malformed_conditions_are_refused(condition: object) -> None:
    with pytest.raises(RuleError, match="here"):
        check(condition, tuple(FACTS), "here")


def test_sentences_fill_in_sizes_lists_and_unknowns() -> None:
    facts = {"a": 8192, "b": 1536.0, "c": ["x", "y"], "d": None, "e": 1.23456}
    assert say("{a:size} {b:amount} {c} {d} {e}", facts) == "8K 1.50 KiB x, y ? 1.23"


def test_names_in_commands_are_quoted() -> None:
    facts = {"dataset": "tank/my data", "fit": 8192}
    said = say("`zfs set recordsize={fit:size} {dataset}`; {dataset} has `{fit:size}`, `x`.", facts)
    assert said == "`zfs set recordsize=8K 'tank/my data'`; tank/my data has `8K`, `x`."
    assert say("`zfs inherit sync {dataset}`", {"dataset": "tank/pg"}) == "`zfs inherit sync tank/pg`"


def test_the_facts_are_those_that_rules_may_ask_for() -> None:
    candidate = only(ev.base_layout())
    assert set(layout_facts(candidate)) == set(LAYOUT_FACTS)
    assert set(dataset_facts(candidate, candidate.layout.datasets[0])) == set(DATASET_FACTS)


def test_rule_files_load_and_every_rule_names_its_source() -> None:
    for name in ("hazards", "reasons"):
        rules = load(name, DATASET_FACTS)
        assert all(rule.sentence.endswith(".") and rule.source for rule in rules)


# Each rule: a layout and manifest for which it fires, and one, as near as possible, for which it does not.

POSTGRES = ev.manifest()


def layout(
    data: dict[str, Any] | None = None,
    wal: dict[str, Any] | None = None,
    vdevs: list[dict[str, Any]] | None = None,
    ashift: int = 12,
    **more: Any,
) -> dict[str, Any]:
    raw = ev.base_layout(**more)
    raw["dataset"][0].update(data or {})
    raw["dataset"][1].update(wal or {})
    raw["pool"][0]["ashift"] = ashift
    if vdevs is not None:
        raw["pool"][0]["vdev"] = vdevs
    return raw


def vdev(class_: str, kind: str = "stripe", disks: int = 1) -> dict[str, Any]:
    return {"class": class_, "kind": kind, "disks": disks, "profile": "nvme"}


def only(raw: dict[str, Any], **measure: Any) -> LayoutResult:
    made = parse_layout(raw)
    result = {"space": {"allocated": 1}, "physical": {}, "model": {"modelled_s": 1.0}, **measure}
    return collect([ev.trial(made, 1, result, baseline=True)]).layouts[0]


DATA, WAL_POOL = (
    [vdev("data")],
    {"name": "fast", "ashift": 12, "vdev": [{"class": "data", "profile": "nvme"}]},
)


def kind(**changes: str) -> dict[str, Any]:
    """The base layout with factors changed, ``__`` for the dots."""
    base = parse_layout(ev.base_layout())
    return with_settings(base, {k.replace("__", "."): v for k, v in changes.items()}).to_json()


TWO_POOLS: dict[str, Any] = {
    "pool": [ev.base_layout()["pool"][0], WAL_POOL],
    "dataset": [{"name": "tank/data", "roles": ["data"]}, {"name": "fast/wal", "roles": ["wal"]}],
}
CASES: dict[str, tuple[LayoutResult, LayoutResult]] = {
    "sync-disabled": (only(layout({"sync": "disabled"})), only(layout({"sync": "always"}))),
    "in-place-no-checksums": (only(kind(pool__tank__filesystem="ext4")), only(layout())),
    "in-place-torn-pages": (
        only(kind(pool__tank__filesystem="ext4", database__full_page_writes="off")),
        only(layout(database={"full_page_writes": "off"})),
    ),
    "volume-two-caches": (only(kind(data__volume="8G")), only(kind(pool__tank__filesystem="ext4"))),
    "encryption-key": (only(layout({"encryption": "on"})), only(layout({"encryption": "off"}))),
    "checksum-off": (only(layout({"checksum": "off"})), only(layout({"checksum": "sha256"}))),
    "flush-off": (
        only(layout(tunables={"zfs_nocacheflush": 1})),
        only(layout(tunables={"zfs_nocacheflush": 0})),
    ),
    "full-page-writes-off-torn": (
        only(layout({"recordsize": "4K"}, database={"full_page_writes": "off"})),
        only(layout({"recordsize": "8K"}, database={"full_page_writes": "off"})),
    ),
    "full-page-writes-keep": (
        only(layout({"recordsize": "4K"})),
        only(layout({"recordsize": "4K"}, database={"full_page_writes": "off"})),
    ),
    "full-page-writes-may-go": (only(layout({"recordsize": "8K"})), only(layout({"recordsize": "4K"}))),
    "full-page-writes-off": (
        only(layout({"recordsize": "8K"}, database={"full_page_writes": "off"})),
        only(layout({"recordsize": "4K"}, database={"full_page_writes": "off"})),
    ),
    "doublewrite-off": (
        only(layout({"recordsize": "16K"}, database={"innodb_doublewrite": "0"})),
        only(layout({"recordsize": "16K"}, database={"innodb_doublewrite": "1"})),
    ),
    "recordsize-below-page": (only(layout({"recordsize": "4K"})), only(layout({"recordsize": "8K"}))),
    "recordsize-at-sector": (
        only(layout({"recordsize": "4K"})),
        only(layout({"recordsize": "4K", "compression": "off"}, {"compression": "off"})),
    ),
    "recordsize-few-sectors": (only(layout({"recordsize": "8K"})), only(layout({"recordsize": "16K"}))),
    "raidz-padding": (
        only(layout({"recordsize": "8K"}, vdevs=[vdev("data", "raidz1", 5)])),
        only(layout({"recordsize": "128K"}, vdevs=[vdev("data", "raidz1", 5)])),
    ),
    "logbias-throughput": (only(layout({"logbias": "throughput"})), only(layout({"logbias": "latency"}))),
    "recordsize-new-files": (only(layout({"recordsize": "64K"})), only(layout({"recordsize": "128K"}))),
    "special-takes-all": (
        only(layout({"special_small_blocks": "128K"}, vdevs=[*DATA, vdev("special", "mirror", 2)])),
        only(layout({"special_small_blocks": "64K"}, vdevs=[*DATA, vdev("special", "mirror", 2)])),
    ),
    "special-alone": (
        only(layout(vdevs=[*DATA, vdev("special")])),
        only(layout(vdevs=[*DATA, vdev("special", "mirror", 2)])),
    ),
    "primarycache-partial-writes": (
        only(layout({"primarycache": "metadata"})),
        only(layout({"primarycache": "metadata", "recordsize": "8K"})),
    ),
    "primarycache-no-data": (
        only(layout({"primarycache": "metadata", "recordsize": "8K"})),
        only(layout({"primarycache": "all", "recordsize": "8K"})),
    ),
    "wal-recycling": (
        only(layout()),
        only(layout(database={"wal_recycle": "off", "wal_init_zero": "off"})),
    ),
    "wal-compression": (only(layout()), only(layout(wal={"compression": "off"}))),
    "slow-compression": (only(layout({"compression": "zstd-9"})), only(layout({"compression": "zstd-3"}))),
    "large-record-wear": (
        only(layout({"recordsize": "128K"}), write_amplification=12.0),
        only(layout({"recordsize": "128K"}), write_amplification=2.0),
    ),
    "copies-no-redundancy": (only(layout({"copies": "2"})), only(layout({"copies": "1"}))),
    "slog-power-loss": (only(layout(vdevs=[*DATA, vdev("log", "mirror", 2)])), only(layout())),
    "slog-unmirrored": (
        only(layout(vdevs=[*DATA, vdev("log")])),
        only(layout(vdevs=[*DATA, vdev("log", "mirror", 2)])),
    ),
    "pool-no-redundancy": (only(layout()), only(layout(vdevs=[vdev("data", "mirror", 2)]))),
    "l2arc-header-memory": (
        only(layout({"recordsize": "8K"}, vdevs=[*DATA, vdev("cache")]), l2arc={"size_end": 1 << 30}),
        only(
            layout({"recordsize": "8K"}, vdevs=[*DATA, vdev("cache")], arc="4G"), l2arc={"size_end": 1 << 30}
        ),
    ),
    "atime-on": (only(layout({"atime": "on"})), only(layout())),
    "txg-timeout-long": (
        only(layout(tunables={"zfs_txg_timeout": 30})),
        only(layout(tunables={"zfs_txg_timeout": 5})),
    ),
    "ashift-small": (only(layout(ashift=9)), only(layout(ashift=12))),
    "recordsize-huge": (only(layout({"recordsize": "4M"})), only(layout({"recordsize": "1M"}))),
    "redundant-metadata-less": (
        only(layout({"redundant_metadata": "none"})),
        only(layout({"redundant_metadata": "most"})),
    ),
    "two-pools-snapshots": (only(layout(**TWO_POOLS)), only(layout())),
    "two-datasets-snapshots": (
        only(layout()),
        only(
            layout(
                **{
                    **TWO_POOLS,
                    "dataset": [
                        {"name": "tank/all", "roles": ["data"]},
                        {"name": "tank/t", "roles": ["temp"]},
                    ],
                }
            )
        ),
    ),
}


def test_each_rule_has_a_case() -> None:
    assert set(CASES) == {rule.id for rule in hazard_rules()}


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires(rule: str) -> None:
    fired = {h.id: h for h in hazards(CASES[rule][0], "postgres-oltp", POSTGRES)}
    assert rule in fired
    assert "?" not in fired[rule].sentence  # every fact that the sentence names was known
    assert "{" not in fired[rule].sentence


@pytest.mark.parametrize("rule", CASES)
def test_rule_does_not_fire(rule: str) -> None:
    assert rule not in {h.id for h in hazards(CASES[rule][1], "postgres-oltp", POSTGRES)}


def test_an_index_of_its_own_holds_pages_too() -> None:
    def fired(index: dict[str, Any], full_page_writes: str = "off", **pool: str) -> set[str]:
        raw = layout({"roles": ["data"], "recordsize": "8K"}, database={"full_page_writes": full_page_writes})
        raw["pool"].append({**WAL_POOL, **pool})
        raw["dataset"].append({"name": "fast/index", "roles": ["index"], **index})
        return {h.id for h in hazards(only(raw), "postgres-oltp", POSTGRES)}

    small, whole = {"recordsize": "4K"}, {"recordsize": "8K"}
    assert "full-page-writes-off" in fired(whole) and "full-page-writes-may-go" in fired(whole, "on")
    assert "full-page-writes-off-torn" in fired(small) and "full-page-writes-off" not in fired(small)
    kept = fired(small, "on")
    assert "full-page-writes-keep" in kept and "full-page-writes-may-go" not in kept
    for elsewhere in (fired({}, filesystem="ext4"), fired({"volume": "1G"})):
        assert "in-place-torn-pages" in elsewhere and "full-page-writes-off" not in elsewhere


def test_rules_on_the_page_need_a_known_page() -> None:
    small = only(layout({"recordsize": "4K"}))
    assert "recordsize-below-page" not in {h.id for h in hazards(small)}


def test_dangers_come_first() -> None:
    order = [h.severity for h in hazards(only(layout({"sync": "disabled"})), "postgres-oltp", POSTGRES)]
    assert order[0] == "danger"
    assert order == sorted(order, key=["danger", "warning", "note"].index)


def test_the_database_is_known_by_the_workload_or_by_its_files() -> None:
    files = [{"id": 0, "path": "/x/pg_wal/0001", "role": "wal"}]
    unnamed = Manifest.model_validate({**POSTGRES.model_dump(), "workload": None, "files": files})
    assert layout_facts(only(layout()), None, unnamed)["database"] == "postgresql"
    assert layout_facts(only(layout()), "mariadb-oltp", None)["database"] == "mariadb"
    assert layout_facts(only(layout()), None, None)["database"] is None


def test_modelled_time_is_not_said_to_leave_compression_out() -> None:
    # It has it in: places/calibration.py, charge.
    said = next(h for h in hazards(only(layout({"compression": "zstd-9"}))) if h.id == "slow-compression")
    assert "Modelled time counts it as if all processors" in said.sentence


def test_settings_that_a_run_may_have_tried_are_not_said_to_be_untried() -> None:
    said = next(h for h in hazards(only(layout()), "postgres-oltp") if h.id == "wal-recycling")
    assert said.sentence.endswith("unless this run tried them.")


def test_reasons_follow_the_role_and_the_page() -> None:
    wal = only(layout())
    facts = dataset_facts(wal, wal.layout.datasets[1], "postgres-oltp", POSTGRES)
    assert reason("recordsize", facts)[0].startswith("A log is written in sequence")
    data = only(layout({"recordsize": "8K"}))
    facts = dataset_facts(data, data.layout.datasets[0], "postgres-oltp", POSTGRES)
    assert reason("recordsize", facts)[0].startswith("One record is one database page")
    assert reason("unheard", facts) == ("", "")


def test_a_log_beside_data_has_no_say_in_why_their_records_are_as_large() -> None:
    result = only(layout({"recordsize": "64K"}))
    facts = dataset_facts(result, result.layout.datasets[0], "postgres-oltp", POSTGRES)
    assert reason("recordsize", {**facts, "roles": ["data", "wal"]})[0].startswith("One record holds several")
    assert reason("recordsize", {**facts, "roles": ["wal", "temp"]})[0].startswith("A log is rewritten")


def test_every_default_that_a_role_shows_has_a_reason() -> None:
    plain = only(layout())
    facts = dataset_facts(plain, plain.layout.datasets[0], "postgres-oltp", POSTGRES)
    for name in (
        "recordsize",
        "compression",
        "checksum",
        "logbias",
        "sync",
        "primarycache",
        "redundant_metadata",
    ):
        assert reason(name, facts)[0]
