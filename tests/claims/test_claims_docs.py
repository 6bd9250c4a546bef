from __future__ import annotations

import re
from pathlib import Path

import pytest

from ztune.claims import claim
from ztune.claims.conclusion import Word
from ztune.claims.docs import MODELS, fill, tables
from ztune.study.tables import fields_of

PAGE = (Path(__file__).parents[2] / "docs" / "claims-format.md").read_text()


def test_tables_are_current() -> None:
    assert fill(PAGE) == PAGE, "run: python -m ztune.claims.docs docs/claims-format.md"
    assert set(re.findall(r"<!-- table: (\w+) -->", PAGE)) == set(tables())


@pytest.mark.parametrize("name", MODELS)
def test_every_key_is_described(name: str) -> None:
    assert all(field.description for field in fields_of(MODELS[name]).values())


def test_every_word_of_a_conclusion_is_explained() -> None:
    assert all(f"| {word.value}" in PAGE for word in Word)


def test_the_example_loads(home: Path) -> None:
    published, claims = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (home / "studies/published/somebody-2024.toml").write_text(published)
    path = home / "studies/claims/mine.toml"
    path.write_text(claims)
    first, second = claim.load(path)
    assert first.subject.figure == 4350 and second.subject.set == {"slog": "nvme"}
