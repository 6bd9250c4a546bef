"""The crash tests that a recommendation cites."""

from __future__ import annotations

import re
from pathlib import Path

from ztune.advice import crash_evidence
from ztune.advice.crash_evidence import cited, parse
from ztune.study import DurabilityClass

NOTHING, SECONDS, NOT_KNOWN, CORRUPT = DurabilityClass
ROW = """
[[test]]
name = "{name}"
workload = "{workload}"
database = "{database}"
openzfs = "OpenZFS 2.3.2"
what = "{what}"
promised = "{promised}"
found = "{found}"
cuts = 200
commits = 123456
lost = 0
cuts_with_loss = 150
cuts_with_corruption = 3
most_lost = 4321
oldest_s = 4.87
"""
TESTS = parse(
    ROW.format(
        name="a", workload="postgres-oltp", database="PostgreSQL 15", what="full_page_writes=off",
        promised=NOTHING, found=NOTHING,
    )
    + ROW.format(
        name="b", workload="sqlite", database="SQLite 3", what="wal", promised=NOTHING, found=NOTHING
    )
    + ROW.format(
        name="c", workload="sqlite", database="SQLite 3", what="sync=disabled", promised=SECONDS,
        found=SECONDS,
    )
    + ROW.format(
        name="d", workload="sqlite", database="SQLite 3", what="synchronous=off", promised=CORRUPT,
        found=CORRUPT,
    )
)  # fmt: skip


def test_a_class_cites_the_tests_of_the_workloads_own_database() -> None:
    found = cited([NOTHING], "postgresql", TESTS)
    assert found == {
        "nothing-acknowledged": [
            "Crash tests (docs/durability.md):",
            (
                "PostgreSQL 15 on OpenZFS 2.3.2 with full_page_writes=off lost none of 123,456 acknowledged "
                "commits in 200 modelled power cuts: a loss in at most 1.5% of cuts, with 95 % confidence."
            ),
        ]
    }


def test_without_them_it_cites_others_and_says_so() -> None:
    found = cited([NOTHING], "mariadb", TESTS)["nothing-acknowledged"]
    assert "none of them of this workload's database" in found[0]
    assert [text.split()[0] for text in found[1:]] == ["PostgreSQL", "SQLite"]
    unknown = cited([NOTHING], None, TESTS)["nothing-acknowledged"]
    assert "none of them known to be of this workload's database" in unknown[0] and unknown[1:] == found[1:]


def test_weaker_classes_say_how_much_was_lost() -> None:
    found = cited([CORRUPT, SECONDS, SECONDS], "sqlite", TESTS)
    assert list(found) == ["last-seconds", "corrupt"]
    assert (
        "lost the last 4.9 s, up to 4,321 commits, in 150 of 200 modelled power cuts"
        in found["last-seconds"][1]
    )
    assert "was corrupt after 3 of 200 modelled power cuts" in found["corrupt"][1]


def test_a_class_that_was_never_tried_says_that() -> None:
    assert cited([CORRUPT], "sqlite", TESTS[:3]) == {
        "corrupt": [
            (
                "No crash test of this class is on record: it is judged by its settings alone "
                "(docs/durability.md)."
            )
        ]
    }


def test_the_tests_that_come_with_ztune_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / crash_evidence.PAGE).read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| (PostgreSQL|SQLite) ", line)]
    for test in crash_evidence.on_record():
        head = f"| {test.database} | {test.what}"
        matching = [
            row for row in rows if row.startswith(head + " |") or row.startswith(head + " (control) |")
        ]
        assert len(matching) == 1, f"{test.name} is not in {crash_evidence.PAGE}"
        assert f"| {test.cuts} | {test.commits:,} | {test.lost:,} |" in matching[0]
    assert len(rows) == len(crash_evidence.on_record())
