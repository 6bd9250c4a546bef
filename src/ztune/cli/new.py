"""``ztune new``: write the beginning of something of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ztune import output
from ztune.cli._options import argument, option, takes
from ztune.databases import skeleton


@click.group("new")
def command() -> None:
    """Begin something of your own.

    \b
    Examples:
      ztune new database tinydb
    """


@command.command("database", short_help="Begin a package that teaches ztune another database.")
@takes
def database(
    name: str = argument(),
    into: Path = option(
        "--into",
        default=".",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="The folder that the package's own is made in.",
    ),
) -> int:
    """Write a package ztune-NAME that teaches ztune the database NAME.

    What is written works at once, on a tiny database of its own: its files' roles, a workload, what `ztune
    observe` reads, a crash test, and tests of all that. Put your database in its place, part by part;
    docs/adding-a-database.md says what each part is for.

    \b
    Examples:
      ztune new database tinydb
      ztune new database tinydb --into ~/src
    """
    written = skeleton.write(name, into)
    for path in written:
        output.echo(str(path))
    folder = into / f"ztune-{name}"
    output.echo("\nInstall it where ztune is, and try it:")
    # Without --out the results would be in ztune-NAME, which is the package.
    own = shlex.quote(str(folder))
    output.echo(f"  pip install -e {own}\n  pytest {own}\n  ztune tune {name} --out {name}-results")
    return 0
