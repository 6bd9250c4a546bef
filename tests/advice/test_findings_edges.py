"""Every number in findings.toml: the last value of its fact with which the rule fires, the first without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from finding_cases import CASES, of
from observations import GIB

from ztune.advice.findings import rules
from ztune.advice.observed_facts import subjects
from ztune.advice.rules import holds, numbers

# The other facts are those of the rule's firing case.
EDGES: dict[str, dict[str, tuple[float, float]]] = {
    "recordsize-above-writes": {
        "write_calls": (100, 99),
        "recordsize": (32768, 32767),  # the case's writes ask for 8K
        "sequential": (0.499, 0.5),
        "overwritten": (0.5, 0.499),
    },
    "partial-writes-read": {
        "write_calls": (100, 99),
        "partial": (0.5, 0.499),
        "overwritten": (0.5, 0.499),
        "misses_beyond_reads": (1000, 999),  # of 10,000 writes
    },
    "recordsize-below-writes": {
        "fit_calls": (100, 99),
        "fit_cost": (1.1, 1.09),
        "fit_share": (0.5, 0.499),
        "reads_sequential": (0.5, 0.499),
    },
    "recordsize-from-writes": {
        "fit_calls": (100, 99),
        "fit_share": (0.5, 0.499),
        "read_fit": (16385, 16384),  # the case's writes ask for 64K
        "reads_sequential": (0.5, 0.499),
        "sequential": (0.899, 0.9),
        "overwritten": (0.1, 0.099),
        "fit": (131073, 131072),
        "read_bytes": (4 * 65_536_000 - 1, 4 * 65_536_000),  # of 1,000 writes of 64K
    },
    "recordsize-scanned": {
        "fit_calls": (100, 99),
        "fit": (131071, 131072),
        "fit_share": (0.5, 0.499),
        "reads_sequential": (0.5, 0.499),
        "read_bytes": (4 * 81_920_000, 4 * 81_920_000 - 1),  # of 10,000 writes of 8K
        "sequential": (0.899, 0.9),
        "overwritten": (0.1, 0.099),
    },
    "recordsize-in-sequence": {
        "fit_calls": (100, 99),
        "fit": (131072, 131073),
        "sequential": (0.9, 0.899),
        "overwritten": (0.099, 0.1),
    },
    "recordsize-between": {
        "fit_calls": (100, 99),
        "fit_share": (0.5, 0.499),
        "read_fit": (131072, 131073),  # the case's writes ask for 512K
        "reads_sequential": (0.499, 0.5),
    },
    "recordsize-above-reads": {
        "role_reads": (100, 99),
        "recordsize": (32768, 32767),  # the case's reads ask for 8K
        "reads_sequential": (0.499, 0.5),
        "data_miss_share": (0.1, 0.099),
    },
    "recordsize-from-appends": {
        "fit_calls": (100, 99),
        "fit_share": (0.5, 0.499),
        "sequential": (0.899, 0.9),
        "overwritten": (0.1, 0.099),
        "fit": (131073, 131072),
    },
    "wal-large-writes": {"write_size": (32768, 16384)},
    "txg-timeout-long": {"txg_timeout": (6, 5)},
    "txg-timeout-short": {"txg_timeout": (4, 5)},
    "slog-absent": {"pool_syncs": (10, 9), "sync_mean": (0.002, 0.0019), "sync_wait": (0.1, 0.099)},
    "slog-slower": {"log_writes": (100, 99)},
    "slog-unused": {"pool_syncs": (5001, 5000), "log_writes": (50, 51)},  # 50 writes, 5020 syncs
    "compression-off": {"lz4_low": (1.1, 1.09)},
    "slow-compression": {"write_rate": (1048576, 1048575), "level": (7, 6)},
    "raidz-small-records": {"parity_expansion": (1.38, 1.37)},  # 1.25 of parity alone
    "no-gain-from-compression": {"record_sectors": (2, 4), "compressratio": (1.09, 1.1)},
    "pool-almost-out": {"pool_free": (1.5 * 31.25 * GIB, 1.6 * 31.25 * GIB)},
    "pool-full": {"pool_used": (0.9, 0.899)},
    "free-space-fragmented": {"fragmentation": (64, 63)},
    "primarycache-misses": {"data_misses_per_s": (100, 99)},
    "primarycache-partial-writes": {
        "write_calls": (100, 99),
        "partial": (0.1, 0.099),
        "overwritten": (0.1, 0.099),
    },
    "double-caching": {"database_cache": (16 * GIB, 15 * GIB), "arc_size": (16 * GIB, 15 * GIB)},  # of 64
    "arc-metadata-misses": {
        "metadata_miss_share": (0.05, 0.049),
        "metadata_misses_per_s": (50, 49),
        "arc_full": (0.9, 0.899),
    },
    "direct-unaligned": {"direct_writes": (100, 99), "partial": (0.1, 0.099)},
    "other-filesystem": {"elsewhere_writes": (100, 99)},
    "direct-bypasses-arc": {"partial": (0.099, 0.1)},
    "direct-unflushed": {"partial": (0.999, 1.0)},
}
# Facts that go with the changed one.
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("partial-writes-read", "write_calls"): {"misses_beyond_reads": 1000},
    ("slow-compression", "level"): {"algorithm": "zstd"},
    ("recordsize-below-writes", "reads_sequential"): {"read_fit": 8192, "role_reads": 99_999},
    ("recordsize-from-writes", "read_fit"): {"reads_sequential": 0.1, "role_reads": 99_999},
    ("recordsize-from-writes", "reads_sequential"): {"read_fit": 8192, "role_reads": 99_999},
    ("recordsize-from-writes", "read_bytes"): {
        "reads_sequential": 0.5,
        "read_fit": 65536,
        "write_bytes": 65_536_000,
    },
    ("recordsize-scanned", "sequential"): {"overwritten": 0.0},
    ("recordsize-scanned", "overwritten"): {"sequential": 1.0},
    ("recordsize-above-reads", "role_reads"): {"write_calls": 50},
    **{
        (f"recordsize-from-{kind}", fact): {"sequential": 1.0, "overwritten": 0.0}
        for kind in ("writes", "appends")
        for fact in ("sequential", "overwritten", "fit")
    },
}


def compared(condition: Mapping[str, Any]) -> Iterator[str]:
    """The facts that a condition compares with a chosen number."""
    for inner in (*condition.get("all", ()), *condition.get("any", ())):
        yield from compared(inner)
    if "fact" in condition and numbers(condition):
        yield condition["fact"]


def test_each_number_has_its_edge() -> None:
    chosen = {rule.id: set(compared(rule.when)) for rule in rules() if numbers(rule.when)}
    # Switches of the kernel, on or off.
    chosen = {name: facts - {"dio_enabled"} for name, facts in chosen.items() if facts - {"dio_enabled"}}
    assert {name: set(edges) for name, edges in EDGES.items()} == chosen


@pytest.mark.parametrize(("name", "fact"), [(name, fact) for name, edges in EDGES.items() for fact in edges])
def test_the_edge_is_where_the_rule_says(name: str, fact: str) -> None:
    rule = next(r for r in rules() if r.id == name)
    seen = [s for s in subjects(of(CASES[name][0])) if s.scope == rule.scope]
    facts = next(s.facts for s in seen if holds(rule.when, s.facts) is True)
    facts = {**facts, **WITH.get((name, fact), {})}
    inside, outside = EDGES[name][fact]
    assert holds(rule.when, {**facts, fact: inside}) is True
    assert holds(rule.when, {**facts, fact: outside}) is False
