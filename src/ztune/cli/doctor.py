"""``ztune doctor``: what this machine can do, what is missing, and the command that brings it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ztune import files, output
from ztune.cli._options import file_option, option, takes
from ztune.doctor.checks import Checked, State, examine, fit
from ztune.errors import MissingError
from ztune.places import calibration, engine

_STYLE = {State.OK: "green", State.LIMITED: "yellow", State.MISSING: "red"}


@click.command()
@click.pass_context
@takes
def command(
    context: click.Context,
    processor: Path | None = file_option(
        "--processor",
        "Time this host's processors at compression, checksums and the like, in about four seconds, and "
        "write what they can do to FILE, for `ztune screen --processor` elsewhere.",
    ),
    as_json: bool = option("--json", help="Print the findings as JSON."),
) -> None:
    """Say what this machine can do, what is missing, and the command that brings it.

    It only looks, and changes nothing; with `--processor` it works for some seconds, and writes a file.
    Exit code 0 when `ztune tune` can work here, 3 when something that it needs is missing.

    \b
    Examples:
      ztune doctor
      ztune doctor --json | jq '.checks[] | select(.state != "ok")'
      ztune doctor --processor host.json        how fast are this host's processors?
    """
    if processor is not None:
        _calibrate(processor, as_json)
        return
    findings = examine()
    good = fit(findings)
    if as_json:
        output.print_json({"ok": good, "checks": [finding.to_json() for finding in findings]})
    else:
        output.print_table(
            ("check", "state", "what it means", "what brings it"), map(_row, findings), otherwise=120
        )
        output.echo("* needed by `ztune tune`")
        if good:
            output.echo("`ztune tune postgres-oltp` can work here.")
        else:
            lacking = [f.check for f in findings if f.needed and f.state is State.MISSING]
            output.echo(f"`ztune tune` can't work here yet: it needs {', '.join(lacking)}.", err=True)
    if not good:
        context.exit(MissingError.exit_code)


def _calibrate(path: Path, as_json: bool) -> None:
    """Time this host's processors and write the file; Raises InputError where the host is busy."""
    files.check(path)
    found = calibration.measure(engine.check())
    calibration.write(path, found)
    if as_json:
        output.print_json(found.to_json())
        return
    output.echo(
        f"{found.cores} × {found.processor}, OpenZFS {found.openzfs}; MB/s on one of them, by size of block"
    )
    output.print_table(calibration.heads(found), calibration.rows(found), otherwise=120)
    output.echo(f"Written to {path}; `ztune screen TRACE --processor {shlex.quote(str(path))}` takes it.")


def _row(finding: Checked) -> tuple[str | output.Text, ...]:
    # What nobody needs is no alarm.
    alarm = finding.state is State.OK or finding.needed or finding.state is State.LIMITED
    state = output.Text(finding.state, _STYLE[finding.state] if alarm else "dim")
    return f"{finding.check} *" if finding.needed else finding.check, state, finding.means, finding.fix
