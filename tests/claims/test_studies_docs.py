from __future__ import annotations

import re
from pathlib import Path

from ztune.claims import found, publication, studies
from ztune.claims.studies_docs import fill, markdown, tables
from ztune.claims.study_sheets import StudySheet

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"
FOUND = PAGE.with_name("studies-found.json")


def test_tables_are_current() -> None:
    text = PAGE.read_text()
    assert fill(PAGE) == text, "run: python -m ztune.claims.studies_docs docs/studies.md"
    assert set(re.findall(r"<!-- table: (\w+) -->", text)) == set(tables(found.load(FOUND)))


def test_the_file_is_small_and_names_no_machine() -> None:
    text = FOUND.read_text()
    assert len(text) < 1 << 20
    assert not re.search(r"/(?:home|root|work|tmp|var|usr)/", text)


def test_what_was_found_is_of_layouts_that_the_studies_have(home: Path) -> None:
    for one in found.load(FOUND).studies:
        study = studies.find(one.study)
        assert [layout.name for layout in one.layouts] == [layout.name for layout in study.layouts]
        for layout in one.layouts:
            assert bool(layout.trial) == bool(layout.counts) != bool(layout.why)
            assert not layout.trial or re.fullmatch(r"\w+/\d+", layout.trial)


def test_every_study_says_what_it_concluded_and_how_it_is_scaled(home: Path) -> None:
    for name in studies.names():
        source = publication.find(name)
        assert source.conclusion.endswith(".") and source.scale.endswith(".")


def test_a_row_may_be_set_against_one_of_another_table() -> None:
    source = publication.find("orientdb-import")
    bases = {table.name: source.base_of(table) for table in source.table}
    assert bases["checksum-off"] == "compression-off/512"
    assert bases["compression-off"] == "compression-off/128K"
    assert set(bases.values()) <= source.rows().keys()


def test_a_bar_in_a_cell_is_no_column() -> None:
    assert markdown(StudySheet(("a", "b"), (("x|y", "z"),))) == [
        "| a | b |",
        "| --- | --- |",
        "| x\\|y | z |",
    ]
