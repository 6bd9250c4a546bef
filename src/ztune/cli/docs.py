"""Writes ``docs/commands.md`` from the commands themselves: ``python -m ztune.cli.docs docs/commands.md``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from ztune.cli.main import ztune

_HEAD = """\
# Commands

<!-- Made by `make docs` from the commands' own help; a test fails when it is not current. -->

Every command has `--help`. Where a command prints a table, `--json` prints the same as JSON, alone on
standard output.

Exit codes: 0 done; 1 the work ran but part of it failed; 2 bad input; 3 this machine lacks something that
`ztune doctor` names; 130 interrupted.
"""


def commands(
    group: click.Group, context: click.Context, path: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command below ``group`` with its full name, parents before children."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        full = f"{path} {name}"
        inner = click.Context(command, info_name=name, parent=context)
        yield full, command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, full)


def all_commands() -> list[tuple[str, click.Command, click.Context]]:
    """Return every command of ``ztune``, sub-commands included."""
    return list(commands(ztune, click.Context(ztune, info_name="ztune"), "ztune"))


def section(full: str, command: click.Command, context: click.Context) -> str:
    """Return one command's section: its usage, help text and options."""
    # Its own text, not `get_help`: that one wraps to the width of a terminal.
    text = _clean(command.help or "")
    parts = [
        f"{'#' * (1 + full.count(' '))} {full}",
        "```\n" + context.get_usage().removeprefix("Usage: ") + "\n```",
        text,
    ]
    rows = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and "--help" not in param.opts:
            meaning = " ".join(record[1].split()).replace("|", "\\|")
            rows.append(f"| `{record[0]}` | {meaning} |")
    if rows:
        parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    return "\n\n".join(part for part in parts if part)


def _clean(help_text: str) -> str:
    """Turn click's help text into Markdown: paragraphs stay, blocks that click must not wrap become code."""
    out = []
    for paragraph in re.split(r"\n\s*\n", help_text.replace("\f", "")):
        lines = paragraph.strip("\n").splitlines()
        if lines and lines[0].strip() == "\b":
            body = [line for line in lines[1:] if line.strip()]
            # A line that ends with a colon introduces the block; what isn't a command line is prose.
            if body and body[0].rstrip().endswith(":"):
                out.append(body.pop(0).strip())
            code = any(line.lstrip().startswith(("ztune ", "sudo ", "$ ")) for line in body)
            indent = min((len(line) - len(line.lstrip()) for line in body), default=0)
            body = [line[indent:].rstrip() for line in body]
            if body:
                out.append("\n".join(["```", *body, "```"] if code else body))
        else:
            out.append("\n".join(line.strip() for line in lines))
    return "\n\n".join(part for part in out if part)


def render() -> str:
    """Return the whole page."""
    return "\n\n".join([_HEAD.rstrip(), *(section(*entry) for entry in all_commands())]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
