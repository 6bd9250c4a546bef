from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.study import load_study
from ztune.study.docs import MODELS, fill
from ztune.study.schema import study_schema
from ztune.study.tables import fields_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "study-format.md").read_text()


def test_tables_are_current() -> None:
    assert fill(PAGE) == PAGE, "run: python -m ztune.study.docs docs/study-format.md"


def test_schema_file_is_current() -> None:
    stored = json.loads((ROOT / "docs" / "study.schema.json").read_text())
    assert stored == study_schema(), "run: python -m ztune.study.schema > docs/study.schema.json"


@pytest.mark.parametrize("name", MODELS)
def test_every_key_is_documented(name: str) -> None:
    for field_name, field in fields_of(MODELS[name]).items():
        assert f"`{field.alias or field_name}`" in PAGE
        assert field.description, f"{name}.{field_name} has no description"


def test_every_property_tunable_and_mark_is_there() -> None:
    for name in (*PROPERTIES, *TUNABLES):
        assert f"`{name}`" in PAGE
    assert set(re.findall(r"<!-- table: (\w+) -->", PAGE)) == {*MODELS, "properties", "tunables", "metrics"}


def test_example_of_the_page_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path / "home"))
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 2
    (tmp_path / "study.toml").write_text(examples[0])
    assert load_study(tmp_path / "study.toml").name == "my-postgres"
    (tmp_path / "my-disk.toml").write_text(examples[1])
    (tmp_path / "other.toml").write_text(
        examples[0].replace('profile = "hdd-7200"', 'profile = "./my-disk.toml"')
    )
    assert "my-disk" in load_study(tmp_path / "other.toml").profiles


def test_schema_names_every_key_of_a_study_file() -> None:
    definitions = study_schema()["$defs"]
    for name, model in MODELS.items():
        if name == "study":
            continue
        keys = set(definitions[model.__name__]["properties"])
        expected = {f.alias or n for n, f in fields_of(model).items()}
        if name == "dataset":
            expected = expected - {"properties"} | set(PROPERTIES)
        assert keys == expected
