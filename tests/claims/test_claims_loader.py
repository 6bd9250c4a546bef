"""Claims and publications are read as they are written; what is wrong with one is one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ztune.claims import claim, publication
from ztune.claims.tables import files
from ztune.errors import InputError

ROOT = Path(__file__).parents[2]
PUBLISHED = """
title = "T"
year = 2024
database = "D"
system = "S"
workload = "postgres-oltp"
study = "postgres-oltp"

[[table]]
name = "rate"
quantity = "transactions per second"
unit = "1/s"
metric = "per_second"
set = { "data.compression" = "off" }
axes = ["data.recordsize"]
figures = { "8K" = 4100, "128K" = 2900 }

[[table]]
name = "pages"
quantity = "time"
unit = "s"
metric = "time"
rows = [
  { name = "full", value = 10, parameters = { full_page_writes = true } },
  { name = "none", value = 8, set = { "slog" = "nvme" }, parameters = { full_page_writes = false } },
]
"""
CLAIMS = """
publication = "mine"

[[claim]]
id = "small"
sentence = "8K is faster."
wording = "quoted"
metric = "per_second"
relation = "more"
at_least = 0.3
rows = ["rate/8K", "rate/128K"]

[[claim]]
id = "log"
sentence = "A log device helps."
wording = "paraphrased"
metric = "time"
relation = "less"
layouts = [{ name = "log device", set = { "slog" = "nvme" } }, { name = "none" }]
"""


def load(home: Path, claims: str = CLAIMS, published: str = PUBLISHED) -> tuple[claim.Claim, ...]:
    (home / "studies/published/mine.toml").write_text(published)
    path = home / "studies/claims/mine.toml"
    path.write_text(claims)
    return claim.load(path)


def test_a_claim_has_its_figures_and_layouts(home: Path) -> None:
    small, log = load(home)
    assert (small.subject.name, small.subject.figure, small.unit) == ("rate/8K", 4100, "1/s")
    settings = small.subject.layout.settings()
    assert (settings["data.recordsize"], settings["data.compression"]) == ("8K", "off")
    assert (small.workload, small.at_least) == ("postgres-oltp", 0.3)
    assert [side.figure for side in log.layouts] == [None, None]
    assert log.subject.layout.settings()["slog"] == "nvme" and log.others[0].set == {}


def test_rows_have_their_own_settings_and_parameters(home: Path) -> None:
    load(home)
    rows = publication.find("mine").rows()
    assert list(rows) == ["rate/8K", "rate/128K", "pages/full", "pages/none"]
    assert rows["pages/none"][1].set == {"slog": "nvme"}
    assert rows["pages/none"][1].parameters == {"full_page_writes": False}


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"rate/8K"', '"rate/9K"', 'claim[0].rows[0]: small names "rate/9K", which has no figure'),
        ('"rate/8K", "rate/128K"', '"rate/8K"', "claim[0]: a claim compares two layouts or more"),
        ('"rate/8K", ', '"rate/128K", ', 'claim[0].rows[1]: "rate/128K" is compared with itself'),
        ('"rate/8K"', '"pages/full"', "small compares figures of another unit: 1/s; s"),
        ('"per_second"', '"speed"', 'claim[0].metric: "speed" is not a metric; they are time, '),
        ('"per_second"', '"time"', "small compares figures of another metric: per_second; time"),
        ('relation = "more"', 'relation = "faster"', "claim[0].relation is 'faster'; input should be 'less'"),
        ("at_least = 0.3", "at_least = -1", "claim[0].at_least: -1 is no share; 0.1 is 10 %"),
        ("at_least = 0.3", "atleast = 0.3", '"atleast" is not a key of claim[0]. Did you mean "at_least"?'),
        ('id = "log"', 'id = "../log"', 'claim[1].id: "../log" is no id: write letters, digits, '),
        ('id = "log"', 'id = "small"', 'claim[1].id: two claims are called "small"'),
        ('"slog" = "nvme"', '"slog" = "nvmee"', 'there is no profile "nvmee"'),
        ('"slog" = "nvme"', '"slot" = "nvme"', '"slot" is not a factor'),
        ('"slog" = "nvme"', '"workload.scale" = 2', '"workload.scale" is a parameter of the workload; those'),
        ('"slog" = "nvme"', '"backup.recordsize" = "1M"', 'role backup has no dataset in layout "base"'),
        ('"slog" = "nvme"', '"data.recordsize" = "9K"', "it is a power of two"),
        ('set = { "slog" = "nvme" }', "parameters = { scales = 1 }", "scale"),
        ('{ "slog" = "nvme" }', "{}", "claim[1].layouts[1]: none and log device are the same layout"),
        ('"8K is faster."', '""', "claim[0].sentence is ''; string should have at least 1 character"),
        ('publication = "mine"', 'publication = "mien"', 'publication: there is no publication "mien"'),
        ('sentence = "8K is faster."\n', "", "claim[0].sentence is missing: the sentence"),
        ("layouts = [{", 'rows = ["pages/full", "pages/none"]\nlayouts = [{', "has either rows"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_claim_is_one_sentence(home: Path, old: str, new: str, sentence: str) -> None:
    assert old in CLAIMS
    with pytest.raises(InputError) as caught:
        load(home, CLAIMS.replace(old, new, 1))
    said = str(caught.value)
    assert sentence in said
    assert re.match(rf"{home}/studies/claims/mine\.toml:\d+: ", said) and "\n" not in said


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("year = 2024", "", "year is missing: when it was published"),
        ("year = 2024", "year = 2024\nscatter = 0.1", "scatter: scatter_why is missing"),
        ("year = 2024", "year = 2024\nscatter = 2", "scatter: 2 is no share"),
        ("year = 2024", 'year = 2024\nurl = "javascript:x"', 'url: "javascript:x" is no address'),
        ('study = "postgres-oltp"', 'study = "nothing"', 'there is no study "nothing"'),
        ('workload = "postgres-oltp"', 'workload = "postgres"', "there is no workload 'postgres'"),
        ('metric = "per_second"', 'metric = "tps"', 'table[0].metric: "tps" is not a metric'),
        ('name = "pages"', 'name = "rate"', 'table[1].name: two are called "rate"'),
        ('name = "none", value', 'name = "full", value', 'table[1].rows[1].name: two rows are called "full"'),
        ('"128K" = 2900', '"129K" = 2900', 'table[0].figures: recordsize is "129K"'),
        ('"128K" = 2900', '"128K" = 0', "table[0].figures: 128K is 0; a figure is above 0"),
        ('axes = ["data.recordsize"]', "", "table[0]: a table has either axes and figures, or rows"),
        ("full_page_writes = true", "full_page_writ = true", "full_page_writ"),
        ('[[table]]\nname = "pages"', '[recommended]\nindex = { record = "8K" }\n[[table]]\nname = "pages"',
         "recommended.index: role index lives on tank/data with data"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_publication_is_one_sentence(
    home: Path, old: str, new: str, sentence: str
) -> None:
    assert old in PUBLISHED
    with pytest.raises(InputError) as caught:
        load(home, published=PUBLISHED.replace(old, new, 1))
    said = str(caught.value)
    assert sentence in said and "mine.toml" in said and "\n" not in said


def test_a_publication_without_a_study_needs_its_layout(home: Path) -> None:
    layout = """
[layout]
[[layout.pool]]
name = "p"
vdev = [{ profile = "nvme" }]
[[layout.dataset]]
name = "p/all"
roles = ["data", "wal"]
"""
    published = PUBLISHED.replace('study = "postgres-oltp"', 'study = "of its own"') + layout
    small, _ = load(home, published=published)
    assert small.subject.layout.profiles() == ("nvme",)


def test_ids_are_unique_among_all_files(home: Path) -> None:
    load(home)
    (home / "studies/claims/again.toml").write_text(CLAIMS)
    with pytest.raises(InputError, match=r'a claim "small" stands in .*again\.toml too'):
        claim.every()


def test_a_claim_is_found_by_its_id(home: Path) -> None:
    load(home)
    assert claim.find("log").sentence == "A log device helps."
    with pytest.raises(InputError, match='no claim "lgo"'):
        claim.find("lgo")


def test_ones_own_file_goes_before_ztunes(home: Path) -> None:
    name = next(iter(files("published")))
    own = home / "studies/published" / f"{name}.toml"
    own.write_text(PUBLISHED)
    assert files("published")[name] == own


@pytest.mark.parametrize("path", sorted((ROOT / "studies/claims").glob("*.toml")), ids=lambda p: p.stem)
def test_the_claims_that_come_with_ztune_load(path: Path) -> None:
    found = claim.load(path)
    assert found and all(one.source.url or one.source.study == "oltp" for one in found)
    assert not [one.id for one in found if one.wording == "quoted" and len(one.sentence) > 250]


def test_what_a_replay_can_tell(home: Path) -> None:
    small, log = load(home)
    assert claim.replay_cannot(small) == "a replay doesn't tell operations/s"
    assert claim.replay_cannot(log) == ""
    for change, why in (
        ('"pool.tank.filesystem" = "xfs"', "knows no other file system"),
        ('"tunable.zfs_vdev_read_gap_limit" = 0', "leaves zfs_vdev_read_gap_limit out"),
        ('"tunable.zfs_vdev_max_active" = 5', "how many I/Os a disk is given at once"),
        ('"data.atime" = "off"', "leaves atime out"),
    ):
        _, changed = load(home, CLAIMS.replace('"slog" = "nvme"', change))
        assert why in claim.replay_cannot(changed), change
    _, smaller = load(home, CLAIMS.replace('"slog" = "nvme"', '"data.compression" = "off"'))
    assert claim.replay_cannot(smaller) == ""
