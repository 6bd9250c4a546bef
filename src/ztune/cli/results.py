"""``ztune results``: stored runs as one file for others, merged with theirs, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ztune import files, output
from ztune.cli._options import argument, json_option, option, takes
from ztune.cli._waiting import waiting
from ztune.errors import InputError
from ztune.report import results_html
from ztune.results import export as exporting
from ztune.results import merge as merging
from ztune.results.row import ResultRow
from ztune.runs.named import resolve
from ztune.store.db import Store
from ztune.units import counted

_PATH = click.Path(path_type=Path, dir_okay=False)
_out = option("--out", type=_PATH, metavar="FILE", required=True, help="Where to write it.")


@click.group("results")
def command() -> None:
    """Hand results on: as one file, merged with those of others, as a page to sort and filter.

    \b
      ztune results export --out mine.parquet
      ztune results merge mine.parquet theirs.parquet --out all.parquet
      ztune results page all.parquet --out results.html

    Nothing private is in them: no names of hosts, users, files or pools, no commands, no texts of errors.
    docs/results-format.md says what is.
    """


@command.command("export")
@takes
def export(
    runs: tuple[str, ...] = argument(metavar="[RUN]...", nargs=-1),
    out: Path = _out,
    as_json: bool = json_option,
) -> None:
    """Write RUNs (default: all that are stored) as one results file, a row for each trial that ended.

    It is Parquet, which DuckDB, Polars, pandas and R read.

    \b
      ztune results export --out mine.parquet
      ztune results export 7f3k2a last --out two.parquet
    """
    from ztune.results import file as results_file  # here, as it takes Arrow

    files.check(out)
    with Store.open() as store, waiting("reading the runs"):
        found = [resolve(one, "run", store=store) for one in runs] if runs else store.runs()
        rows = exporting.rows(store, list({run.id: run for run in found}.values()))
        if not rows:
            raise InputError(
                "there is nothing to export: no trial has ended yet; `ztune runs` lists the runs"
            )
        results_file.write(out, rows)
    _say(out, rows, as_json)


@command.command("merge")
@takes
def merge(
    given: tuple[Path, ...] = argument(metavar="FILE...", nargs=-1, required=True, type=_PATH),
    out: Path = _out,
    as_json: bool = json_option,
) -> None:
    """Write the rows of several results files as one. Each row keeps where it comes from.

    A row that is in several files counts once. Nothing is written if rows of one run contradict each other.

    \b
      ztune results merge mine.parquet theirs.parquet --out all.parquet
    """
    from ztune.results import file as results_file  # see ``export``

    files.check(out)
    with waiting("reading the files"):
        merged = merging.merge({str(path): results_file.read(path) for path in given})
        results_file.write(out, merged.rows)
    _say(out, merged.rows, as_json, merged.twice)


@command.command("page")
@takes
def page(
    given: Path = argument(metavar="FILE", type=_PATH),
    out: Path = _out,
    published: bool = option(
        "--published/--no-published",
        default=True,
        help="Whether figures that others published are on it, marked as theirs. Default: yes.",
    ),
) -> None:
    """Write a results file as one HTML page, to sort and to filter by database, disk, ARC and version.

    The page loads nothing from the network and can be mailed or put on any server as it is.

    \b
      ztune results page all.parquet --out results.html
      ztune results page mine.parquet --out mine.html --no-published
    """
    from ztune.results import file as results_file  # see ``export``

    files.check(out)
    with waiting("making the page"):
        rows = merging.merge({str(given): results_file.read(given)}).rows
        text = results_html.render(rows, results_html.publications() if published else {})
        files.write(out, text)
    output.echo(str(out))


def _say(out: Path, rows: Sequence[ResultRow], as_json: bool, twice: int = 0) -> None:
    """Say what was written."""
    runs, stores = {(row.origin, row.run) for row in rows}, {row.origin for row in rows}
    said = {
        "file": str(out),
        "rows": len(rows),
        "failed": sum(row.status == "failed" for row in rows),
        "runs": len(runs),
        "stores": len(stores),
        "twice": twice,
    }
    if as_json:
        output.print_json(said)
        return
    text = f"{out}: {counted(len(rows), 'trial')} of {counted(len(runs), 'run')}"
    text += f" from {counted(len(stores), 'store')}"
    output.echo(text + (f"; {twice} were in it twice" if twice else ""))
