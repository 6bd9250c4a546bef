"""``ztune new database``: what it writes is a third party's package, and does what its page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from ztune.cli.main import ztune
from ztune.databases import database, skeleton
from ztune.errors import InputError

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "adding-a-database.md"


class Made:
    """The skeleton, and what installing it would leave beside it."""

    def __init__(self, parent: Path) -> None:
        said = CliRunner().invoke(ztune, ["new", "database", "tinydb", "--into", str(parent)])
        assert said.exit_code == 0, said.output
        self.folder = parent / "ztune-tinydb"
        project = tomllib.loads((self.folder / "pyproject.toml").read_text())
        [(group, points)] = project["project"]["entry-points"].items()
        info = self.folder / "ztune_tinydb-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ztune-tinydb\nVersion: 0.1\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        self.said = said.output

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        home = str(self.folder / "home")
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=250,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "ZTUNE_HOME": home, "COLUMNS": "200"},
        )

    def ztune(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-c", "from ztune.cli.main import main; main()", *words)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_its_own_tests_pass_and_ztune_lists_it(made: Made) -> None:
    done = made.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b6 passed", done.stdout) and not re.search("skipped|warning", done.stdout)
    listed = made.ztune("list", "workloads", "tinydb", "--json")
    assert listed.returncode == 0, listed.stderr
    [entry] = json.loads(listed.stdout)
    assert (entry["name"], entry["source"], entry["version"]) == ("tinydb", "ztune-tinydb", "Tinydb 1")
    assert entry["roles"] == "data" and entry["trouble"] == ""


def test_results_are_not_put_into_the_package(made: Made) -> None:
    """`ztune tune tinydb` alone writes to ztune-tinydb, the package's folder."""
    assert "  ztune tune tinydb --out tinydb-results" in made.said.splitlines()
    assert "\nztune tune tinydb --out tinydb-results\n" in PAGE.read_text()


def test_it_is_written_as_ztune_itself_is(made: Made) -> None:
    options = ["--isolated", "--line-length", "110"]
    rules = ["--select", "E,F,W,I,UP,B,C4,SIM,RUF,PTH,D1", "--ignore", "D105,D107,D103"]
    for words in (["check", *rules], ["format", "--check"]):
        done = made.run("-m", "ruff", *words, *options, "ztune_tinydb", "tests")
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_what_is_written() -> None:
    """docs/adding-a-database.md walks through the files as they are: `make docs` puts them there."""
    page = PAGE.read_text(encoding="utf-8")
    assert skeleton.render(page) == page
    shown = re.findall(r"```(?:python|toml)\n# (\S+)\n", page)
    assert len(shown) == len(set(shown)) >= 4
    for path in skeleton.files("tinydb"):
        assert path in page, path
    with pytest.raises(InputError, match=r"has no file no\.py"):
        skeleton.render("```python\n# no.py\n```")


def test_the_page_says_what_a_declaration_may_have() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, field in database.Facts.model_fields.items():
        if name != "jobs":  # nothing new comes there
            assert f"`{name}`" in page or f"`[{name}]`" in page or f"`[[{name}]]`" in page, name
            assert field.description or name in ("files", "observed", "durability", "settings")


@pytest.mark.parametrize("name", ["", "Tiny", "tiny-db", "1db", "../up", "class", "tiny db"])
def test_a_name_that_cannot_be_used(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be a database's name"):
        skeleton.write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be made: File exists"):
        skeleton.write("tinydb", tmp_path)
    for taken in ("postgresql", "rocksdb"):
        with pytest.raises(InputError, match="already"):
            skeleton.write(taken, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ztune-tinydb"]
