"""``ztune recommend``: what to set for each role, and why."""

from __future__ import annotations

from pathlib import Path

import click

from ztune import files, output
from ztune.advice.commands import script as write_script
from ztune.analysis.metrics import resolve
from ztune.errors import InputError
from ztune.report import measured, source, terminal
from ztune.runs.named import run_id
from ztune.study import Objective


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the recommendation as JSON.")
@click.option(
    "--objective",
    metavar="METRIC,…",
    help="What to minimise, most important first: time, space, written, read, sync_p99.",
)
@click.option("--within", metavar="SHARE", help="How near the best counts as equal, such as 5% or 0.05.")
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write an executable shell script of the commands; it changes nothing unless run with --yes.",
)
@click.option("--all", "everything", is_flag=True, help="Show all layouts of the ranking.")
def command(
    run: str | None,
    as_json: bool,
    objective: str | None,
    within: str | None,
    script: Path | None,
    everything: bool,
) -> None:
    """Recommend one of the layouts that RUN (default: the last finished run) has screened.

    Durability comes first: layouts that may lose more at a power cut than the objective allows are set apart.
    Then the objective decides: by default the least modelled time; within 5 % of it the least space; then the
    fewest bytes written. Each property says what changes if it goes back to the default.

    \b
    Examples:
      ztune recommend                                  the last run, by its study's objective
      ztune recommend 7f3k2a --objective space,time    smallest first
      ztune recommend --script layout.sh && sh layout.sh tank/pg     print the commands, change nothing
    """
    found, which = source.best(run and run_id(run), objective or within)
    if which:
        output.echo(f"ztune: {which}", err=True)
    recommendation = found.recommend(changed_objective(found.run.objective, objective, within))
    if script is not None:
        files.write(script, write_script(recommendation), executable=True)
    if as_json:
        shown = recommendation.model_dump(mode="json")
        if found.run.measured:
            shown = {**measured.to_json(found.run, found.trials, found.screened), "recommendation": shown}
        output.print_json(shown)
    else:
        terminal.show(recommendation, top=None if everything else terminal.TOP, found=found)
    if script is not None:
        output.echo(f"\ncommands written to {script}; `sh {script} POOL` prints them", err=as_json)


def changed_objective(base: Objective, objective: str | None, within: str | None) -> Objective | None:
    """Return a run's objective with what the user's flags change, None without flags; raises InputError."""
    if objective is None and within is None:
        return None
    raw = base.model_dump(mode="json")
    if objective is not None:
        names = [word for word in objective.split(",") if word.strip()]
        if not names:
            raise InputError("--objective names nothing; write for example --objective time,space,written")
        raw["minimise"] = list(dict.fromkeys(resolve(name) for name in names))
    if within is not None:
        raw["within"] = share(within)
    return Objective.model_validate(raw)


def share(text: str) -> float:
    """Return the share that ``text`` means: "5%" and "0.05" are 0.05. Raises InputError."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(f'--within is "{text}"; it is a share from 0 to below 1, such as 5% or 0.05')
    return value
