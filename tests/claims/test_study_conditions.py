"""Where a claim holds, as a table, and what counts say where its time can't be told."""

from dataclasses import replace
from pathlib import Path

from ztune.claims import found as findings
from ztune.claims.conclusion import Upshot
from ztune.claims.found import BESIDE_TIME, FoundCondition, FoundCounts, FoundVerdict
from ztune.claims.study_sheets import beside_sheet, condition_sheet

FOUND = Path(__file__).parents[2] / "docs" / "studies-found.json"


def one(
    state: Upshot, disks: str = "hdd-7200", arc: int = 64, openzfs: str = "2.3.2", place: str = "replay"
) -> FoundCondition:
    return FoundCondition(place, disks, arc << 20, openzfs, state)


def verdicts(**claims: tuple[FoundCondition, ...]) -> list[FoundVerdict]:
    return [
        FoundVerdict(name, "", "yes", "a verdict", "", "", "", (), conditions)
        for name, conditions in claims.items()
    ]


def test_a_column_for_each_kind_of_disks_and_the_arc_where_it_matters() -> None:
    sheet = condition_sheet(
        verdicts(
            a=(
                one("fails", "nvme"), one("open", arc=1024), one("holds"), one("fails", place="mount"),
                one("holds", "nvme", openzfs="2.4.4"), one("open", arc=1024, openzfs="2.1.11"),
            ),
            b=(one("holds"), one("holds", arc=1024), one("holds", openzfs="2.4.4")),
            c=(one("open", "hdd-10k", place="mount"),),
            untested=(),
        ),
        "2.3.2",
    )  # fmt: skip
    assert sheet.head == (
        "claim", "verdict", "hdd-7200", "nvme", "measured", "OpenZFS other than 2.3.2",
    )  # fmt: skip
    assert sheet.rows == (
        ("a", "a verdict", "yes with 64M; ? with 1G", "no", "hdd-7200: no", "2.4.4, nvme: yes"),
        ("b", "a verdict", "yes", "–", "–", "2.4.4: the same"),
        ("c", "a verdict", "–", "–", "hdd-10k: ?", "–"),
    )


def test_without_a_replay_there_are_no_columns_of_replays() -> None:
    sheet = condition_sheet(verdicts(a=(one("fails", place="mount"),)), "")
    assert (sheet.head, sheet.rows) == (
        ("claim", "verdict", "measured"), (("a", "a verdict", "hdd-7200: no"),)
    )  # fmt: skip
    assert not condition_sheet(verdicts(a=()), "").rows


def test_counts_stand_where_a_time_is_too_small_to_tell() -> None:
    first, second = verdicts(a=(one("open"),), b=(one("holds"),))
    counts = FoundCounts("hdd-7200", 64 << 20, "128K", {"busy_s": 0.98, "written": 0.91, "read": None})
    sheet = beside_sheet([replace(first, counts=(counts,)), second])
    assert sheet.head[:4] == ("claim", "over", "disks, ARC", "busiest disk")
    assert sheet.rows == (("a", "128K", "hdd-7200, 64M", "×0.98", "×0.91", "–", "–", "–", "–"),)


def test_what_the_docs_show_of_counts_is_of_such_claims_alone() -> None:
    every = [verdict for each in findings.load(FOUND).studies for verdict in each.verdicts]
    counted = [verdict for verdict in every if verdict.counts]
    assert counted and {verdict.verdict for verdict in counted} == {"too small to tell"}
    assert all(set(one.ratios) == set(BESIDE_TIME) for verdict in counted for one in verdict.counts)
