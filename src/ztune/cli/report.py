"""``ztune report``: one HTML file that holds everything."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from ztune import files, output
from ztune.cli._options import argument, file_option, have_option, option, takes
from ztune.report import html, source
from ztune.runs.named import run_id


@click.command()
@takes
def command(
    run: str | None = argument(required=False),
    out: Path | None = file_option(
        "--out", "Where to write it. Default: ztune-RUN.html in the current directory."
    ),
    have: tuple[str, ...] = have_option,
    open_: bool = option("--open/--no-open", default=False, help="Show it in the browser. Default: no."),
) -> None:
    """Write the report of RUN (default: the last finished run) as one HTML file.

    The file loads nothing from the network and can be mailed or archived as it is: verdict, commands,
    ranking, trade-offs, the effect of each setting, the workload, hazards, and how to repeat it. For a
    measured run: ranking with intervals, every block, what was written and why, predicted against measured.

    \b
    Examples:
      ztune report                           writes ztune-RUN.html here
      ztune report 7f3k2a --out oltp.html
    """
    found = source.evidence(run and run_id(run), have=have)
    source.check_run_has(found, have)
    path = out or Path(f"ztune-{found.run.id}.html")
    text = html.of(found, [word for one in have for word in ("--have", one)])
    files.write(path, text)
    output.echo(str(path))
    if open_:
        webbrowser.open(path.absolute().as_uri())
