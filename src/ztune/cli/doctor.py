"""``ztune doctor``: what this machine can do, what is missing, and the command that brings it."""

from __future__ import annotations

import click

from ztune import output
from ztune.cli._options import option, takes
from ztune.doctor.checks import Checked, State, examine, fit
from ztune.errors import MissingError

_STYLE = {State.OK: "green", State.LIMITED: "yellow", State.MISSING: "red"}


@click.command()
@click.pass_context
@takes
def command(
    context: click.Context,
    as_json: bool = option("--json", help="Print the findings as JSON."),
) -> None:
    """Say what this machine can do, what is missing, and the command that brings it.

    It only looks, and changes nothing. Exit code 0 when `ztune tune` can work here, 3 when something that
    it needs is missing.

    \b
    Examples:
      ztune doctor
      ztune doctor --json | jq '.checks[] | select(.state != "ok")'
    """
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


def _row(finding: Checked) -> tuple[str | output.Text, ...]:
    # What nobody needs is no alarm.
    alarm = finding.state is State.OK or finding.needed or finding.state is State.LIMITED
    state = output.Text(finding.state, _STYLE[finding.state] if alarm else "dim")
    return f"{finding.check} *" if finding.needed else finding.check, state, finding.means, finding.fix
