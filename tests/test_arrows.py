"""What is sent to a host runs there with Python alone. The order of rooms is held by ``make lint``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ztune"
SENT = sorted([*(SOURCE / "onhost").rglob("*.py"), *SOURCE.glob("databases/*/onhost/**/*.py")])
OURS = ("ztune.errors", "ztune.units", "ztune.packages", "ztune.shipped", "ztune.onhost")


def imported(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module that ``file`` imports, also inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: write the module's whole name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_there(name: str) -> bool:
    """Say whether a host has the module ``name``."""
    if name.split(".")[0] != "ztune":
        return name.split(".")[0] in sys.stdlib_module_names
    database = name.split(".")[1:4]
    return f"{name}.".startswith(tuple(f"{ours}." for ours in OURS)) or (
        database[0] == "databases" and database[2:] == ["onhost"]
    )


@pytest.mark.parametrize("file", SENT, ids=lambda f: str(f.relative_to(SOURCE)))
def test_what_is_sent_to_a_host_takes_the_standard_library_alone(file: Path) -> None:
    wrong = [f"{file}:{line}: {name}" for line, name in imported(file) if not is_there(name)]
    assert not wrong, "\n".join(wrong)


def test_the_rule_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import os.path\ndef f():\n    import pydantic\n    from ztune.study import layout\n"
        "    from ztune.onhost.jobs import job\n    from ztune.databases.sqlite import workload\n"
    )
    assert [name for _, name in imported(tmp_path / "x.py") if not is_there(name)] == [
        "pydantic", "ztune.study.layout", "ztune.databases.sqlite.workload",
    ]  # fmt: skip
