"""Which published claims follow from their own figures."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from claims_made import every, made

from ztune.claims import claim
from ztune.claims.support import Supported, supported

ROOT = Path(__file__).parents[2]
IDS = [
    entry["id"]
    for path in sorted((ROOT / "studies/claims").glob("*.toml"))
    for entry in tomllib.loads(path.read_text())["claim"]
]
NO = {
    "graph-zfs-compression-fastest": "load/zfs-on has 3.2% more than load/zfs-zle",
    "import-compression-free-small-records": "19.2% more than compression-off/512",
    "import-separate-wal-pool": "0.6% less than compression-off/16K, where runs lie 2.5% apart",
    "import-separate-wal-pool-default": "0.5% more than compression-off/128K",
    "import-slow-slog": "wal-pool-slog/128K has 12.3% less than wal-pool-by-wal/128K",
    "lucene-8k": "lucene/8K has 0.3% less than lucene/default",
}
YES = {
    *("archive-large-records", "backup-uncompressed-512k", "graph-zfs-compression-not-gzip"),
    *("graph-zfs-compression-space", "import-checksums-free", "import-compression-free"),
    *("import-logbias-throughput", "import-recordsize-32k", "import-recordsize-best", "import-small-records"),
    *("import-snappy-no-space", "import-snappy-no-time", "import-usb-swapped"),
    *("import-wal-pool-data-recordsize", "import-wal-pool-wal-recordsize", "ldap-l2arc-nothing"),
    *("ldap-primarycache-metadata", "ldap-primarycache-none", "ldap-primarycache-none-large"),
    *("lucene-compression-free", "lucene-compression-space", "restore-1m-slow", "restore-32k-best"),
    "restore-4k-slow",
}


@pytest.mark.parametrize("name", IDS)
def test_a_claim_is_held_against_its_own_figures(name: str) -> None:
    one = every()[name]
    found, figures = supported(one), [side.figure for side in one.layouts]
    if None in figures or not figures:
        assert found.word is Supported.NOT_ENOUGH and name not in {*NO, *YES}
    elif name in NO:
        assert found.word is Supported.NO and NO[name] in found.why
    else:
        assert found.word is Supported.YES and name in YES


@pytest.mark.parametrize(
    ("relation", "figures", "more", "word"),
    [
        ("less", [90, 100], {}, "yes"),
        ("less", [90, 100, 91], {}, "no"),  # against each other one
        ("less", [99, 100], {}, "no"),  # single runs differ by 2 %
        ("less", [110, 100], {}, "no"),
        ("less", [89, 100], {"at_least": 0.12}, "yes"),  # near enough to what was promised
        ("less", [95, 100], {"at_least": 0.12}, "no"),
        ("more", [150, 100], {"at_least": 0.5}, "yes"),
        ("more", [130, 100], {"at_least": 0.5}, "no"),
        ("equal", [101, 100, 99.5], {"within": 0.02}, "yes"),
        ("equal", [104, 100], {"within": 0.02}, "no"),
        ("equal", [104, 100], {"within": 0.05}, "yes"),
        ("best", [100, 101, 130], {}, "yes"),
        ("best", [100, 97, 130], {}, "no"),
        ("best", [100, 101, 99.5], {}, "no"),  # all the same
    ],
)
def test_relations(relation: claim.Relation, figures: list[float], more: dict[str, float], word: str) -> None:
    assert supported(made(relation, figures, more)).word == word


def test_the_best_of_a_rate_is_the_highest() -> None:
    assert supported(made("best", [100, 80, 90], {"metric": "per_second"})).word is Supported.YES
    assert supported(made("best", [80, 100, 90], {"metric": "per_second"})).word is Supported.NO
