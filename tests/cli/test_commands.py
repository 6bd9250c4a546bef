"""Every command teaches: help, an example, a section in docs/commands.md that is the same text."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ztune.cli.docs import all_commands, render
from ztune.cli.main import COMMANDS, ztune

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
FOUND = {full: (command, context) for full, command, context in all_commands()}


def test_every_command_of_the_table_exists() -> None:
    for name, line in COMMANDS.items():
        assert f"ztune {name}" in FOUND
        assert line.endswith(".") and len(line) <= 66, f"{name}: its line fits on 80 columns"


def test_the_help_of_all_imports_no_command() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from ztune.cli.main import COMMANDS, ztune;"
        "shown = CliRunner().invoke(ztune, ['--help']).output;"
        "assert all(line in shown for line in COMMANDS.values()), shown;"
        "heavy = {'numpy', 'pyarrow', 'pydantic', 'psutil', *(f'ztune.cli.{name}' for name in COMMANDS)};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("full", FOUND)
def test_help_teaches_by_example(full: str) -> None:
    command, _ = FOUND[full]
    text = command.help or ""
    first = text.strip().splitlines()[0] if text.strip() else ""
    assert first.endswith("."), f"{full}: the help begins with one sentence"
    examples = [line for line in text.splitlines() if line.strip().startswith(("ztune ", "sudo ztune "))]
    assert any(full in line for line in examples), f"{full}: its help has no example"


@pytest.mark.parametrize("full", FOUND)
def test_every_option_says_what_it_does(full: str) -> None:
    command, context = FOUND[full]
    for param in command.get_params(context):
        if isinstance(param, click.Option):
            assert param.help, f"{full}: {param.opts[0]} has no help"


@pytest.mark.parametrize("full", FOUND)
def test_what_is_declared_reaches_the_function(full: str) -> None:
    command, _ = FOUND[full]
    if isinstance(command, click.Group) or command.callback is None:
        return
    function: Callable[..., object] = command.callback
    accepted = set(vars(function).get("takes", ()))
    while (inner := getattr(function, "__wrapped__", None)) is not None:  # a group of options takes some
        function = inner
        accepted |= set(vars(function).get("takes", ()))
    accepted |= set(inspect.signature(function).parameters)
    for param in command.params:
        if param.expose_value:
            assert param.name in accepted, f"{full}: its function takes no {param.name!r}"


@pytest.mark.parametrize("full", FOUND)
def test_help_runs(full: str) -> None:
    done = CliRunner().invoke(ztune, [*full.split()[1:], "--help"])
    assert done.exit_code == 0 and "Usage: " in done.output


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


@pytest.mark.parametrize("full", FOUND)
def test_every_command_has_a_section(full: str) -> None:
    assert f"# {full}\n" in PAGE.read_text(encoding="utf-8")


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ztune.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ztune")
