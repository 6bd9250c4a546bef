"""What others published is as they published it, and cited for what it shows."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from ztune.advice import findings
from ztune.claims import publication
from ztune.study.layout import with_settings
from ztune.study.tables import set_by_study

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "studies/published").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_publications_load_and_are_marked_as_others(path: Path) -> None:
    found = publication.load(path)
    first = path.read_text().splitlines()[0]
    assert first.startswith(("# Published by somebody else, not measured by us", "# What "))
    # What a publication's layouts differ in stands with its figures; of what was no default then, only this.
    set_ = [set_by_study(dataset) for dataset in found.base().datasets]
    before = found.year < 2023
    assert all(each == ({"compression": "off"} if before else {}) for each in set_)
    assert found.author or found.year == 2006


@pytest.mark.parametrize(("size", "entries"), [("3m", 3_000_000), ("10m", 10_000_000)])
def test_rates_and_times_of_the_ldif_import_agree(size: str, entries: int) -> None:
    rows = publication.find("ldap-import").rows()
    times = {name: row.value for name, (_, row) in rows.items() if name.startswith(f"{size}/")}
    assert len(times) == 5
    for name, seconds in times.items():
        rate = rows[name.replace("/", "-rate/")][1].value
        assert rate * seconds == pytest.approx(entries, rel=0.001)


def test_every_sweep_of_the_import_has_nine_record_sizes() -> None:
    found = publication.find("orientdb-import")
    sweeps = [t for t in found.table if t.metric == "time" and len(t.figures) > 1]
    assert len(sweeps) == 6
    assert all(
        list(t.figures) == ["128K", "64K", "32K", "16K", "8K", "4K", "2K", "1K", "512"] for t in sweeps
    )
    base = found.base()
    smallest = sweeps[0].all_rows()["512"]
    assert with_settings(base, smallest.set).settings()["wal.recordsize"] == "512"
    assert {pool.ashift for pool in base.pools} == {9}


def test_the_writes_of_the_import_were_counted_before_and_after_the_split() -> None:
    counts = {h.name: h.counts for h in publication.find("orientdb-import").histogram}
    after = [counts[name] for name in ("writes-wal", "write-data", "pwrite-data")]
    assert counts["writes-before-split"]["1"] == sum(c["1"] for c in after)


def test_the_usb_stick_as_data_is_not_cited_as_a_slow_log_device() -> None:
    table, row = publication.find("orientdb-import").rows()["usb-and-disk-swapped/once"]
    assert row.value == 322_240 and "which of the two it was is open" in table.note.lower()
    assert (row.set["pool.logs.data"], row.set["pool.logs.slog"]) == ("usb-slow", "hdd-10k")
    rule = next(rule for rule in findings.rules() if rule.id == "slog-slower")
    assert "import" not in rule.sentence + rule.source
    profile = resources.files("ztune.study.profiles") / "usb-slow.toml"
    assert "published" not in profile.read_text()
