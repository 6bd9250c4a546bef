"""``ztune store``: where runs are kept, and copies between such places."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ztune import output, paths
from ztune.cli._options import argument, json_option, takes
from ztune.errors import InputError
from ztune.store.db import Store
from ztune.store.postgresql import SCHEMES
from ztune.units import counted

_HERE = "default"


@click.group("store")
def command() -> None:
    """Keep the runs of a team in one PostgreSQL, and copy runs between stores.

    \b
      ZTUNE_STORE=postgresql://ztune@db/ztune ztune runs
      ztune store copy default postgresql://ztune@db/ztune

    Without ZTUNE_STORE runs are kept in SQLite, in the state directory. Series and recordings stay in the
    state directory of the machine that made them. docs/results.md says more.
    """


@command.command("copy")
@takes
def copy(
    source: str = argument(metavar="FROM"),
    target: str = argument(metavar="TO"),
    runs: tuple[str, ...] = argument(metavar="[RUN]...", nargs=-1),
    as_json: bool = json_option,
) -> None:
    """Copy RUNs (default: all) with their trials from one store to another.

    A store is postgresql://[USER@]HOST/DATABASE, the path of an SQLite file, or "default": what ZTUNE_STORE
    says, else the file in the state directory. Runs keep their ids and who made them; those that are there
    already are left as they are, so that a second copy copies what is new. Runs that go on are not copied.

    \b
      ztune store copy default postgresql://ztune@db/ztune
      ztune store copy postgresql://ztune@db/ztune mine.db 7f3k2a
    """
    if _named(source) == _named(target):
        raise InputError(f"FROM and TO are both {source}; name two stores")
    if not _named(source).startswith(SCHEMES) and not Path(_named(source)).is_file():
        raise InputError(f"there is no store {source}; it is a file, postgresql://… or default")
    rows: list[dict[str, str]] = []
    with Store.open(_named(source)) as here, Store.open(_named(target)) as there:
        found = [here.run(one) for one in runs] if runs else here.runs()
        for run in found:
            if not runs and here.is_live(run):
                what = "goes on"
            else:
                what = "copied" if there.take(here, run) else "there already"
            rows.append({"id": run.id, "name": run.name, "made_by": run.made_by, "what": what})
    if as_json:
        output.print_json(rows)
        return
    copied = sum(row["what"] == "copied" for row in rows)
    output.echo(
        f"{counted(copied, 'run')} copied to {there.path}, of {counted(len(rows), 'run')} in {here.path}"
    )
    for row in rows:
        if row["what"] == "goes on":
            output.echo(f"  run {row['id']} goes on; copy it when it is done")


def _named(text: str) -> str:
    """Return the store that is meant, as ``Store.open`` takes it."""
    return (os.environ.get("ZTUNE_STORE") or str(paths.database())) if text == _HERE else text
