"""``ztune recommend``: what to set for each role, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ztune import files, output
from ztune.advice import weights as weights_file
from ztune.advice.commands import script as write_script
from ztune.advice.together import recommend_together
from ztune.advice.weights import JobWeight
from ztune.cli._options import argument, file_option, option, takes
from ztune.cli._values import metrics, share
from ztune.errors import InputError
from ztune.report import measured, source, terminal, together
from ztune.runs.named import run_id
from ztune.study import Objective


@click.command()
@takes
def command(
    runs: tuple[str, ...] = argument(nargs=-1, metavar="[RUN]..."),
    as_json: bool = option("--json", help="Print the recommendation as JSON."),
    objective: str | None = option(
        "--objective",
        metavar="METRIC,…",
        help="What to minimise, most important first: time, space, written, read, sync_p99; "
        "of a measured run also cpu.",
    ),
    within: str | None = option(
        "--within", metavar="SHARE", help="How near the best counts as equal, such as 5% or 0.05."
    ),
    script: Path | None = file_option(
        "--script",
        "Also write an executable shell script of the commands; it changes nothing unless run with --yes.",
    ),
    everything: bool = option("--all", help="Show all layouts of the ranking."),
    weights: Path | None = file_option(
        "--weights", "The runs of a database's jobs and how much each counts, as TOML, instead of RUN."
    ),
) -> None:
    """Recommend one of the layouts that RUN (default: the last finished run) has screened.

    Durability comes first: layouts that may lose more at a power cut than the objective allows are set apart.
    Then the objective decides: by default the least modelled time; within 5 % of it the least space; then the
    fewest bytes written. Each property says what changes if it goes back to the default.

    With several RUNs, one for each job of a database, it is one layout for all of them: a table of what to
    set for each role, and what that costs each job.

    \b
    Examples:
      ztune recommend                                  the last run, by its study's objective
      ztune recommend 7f3k2a --objective space,time    smallest first
      ztune recommend --script layout.sh && sh layout.sh tank/pg     print the commands, change nothing
      ztune recommend 7f3k2a 9c1d4e                    one layout for two jobs
    """
    if weights is not None or len(runs) > 1:
        if script is not None or everything:
            flag = "--all" if script is None else "--script"
            raise InputError(f"{flag} goes with one run; what is said of several ends with the commands")
        _together(runs, weights, objective, within, as_json)
        return
    run = runs[0] if runs else None
    found, which = source.best(run and run_id(run), objective or within)
    if which:
        output.echo(f"ztune: {which}", err=True)
    goal = changed_objective(found.run.objective, objective, within)
    recommendation = found.recommend(goal)
    if goal is not None and found.run.measured:
        # What stands beside the recommendation goes by the same objective.
        found = replace(found, run=replace(found.run, objective=goal))
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


def _together(
    runs: tuple[str, ...], file: Path | None, objective: str | None, within: str | None, as_json: bool
) -> None:
    if file is not None and runs:
        raise InputError(f"{file} names the runs; leave out {' '.join(runs)}")
    weighed = [JobWeight(run, 1.0, False) for run in runs] if file is None else weights_file.read(file)
    jobs = []
    for one in weighed:
        try:
            found = source.evidence(run_id(one.run))
        except InputError as error:
            raise (error if file is None else InputError(f"{file}: {error}")) from None
        jobs.append(found.weighed(one, changed_objective(found.run.objective, objective, within)))
    joint = recommend_together(jobs)
    if as_json:
        output.print_json(joint.model_dump(mode="json"))
    else:
        together.show(joint)


def changed_objective(base: Objective, objective: str | None, within: str | None) -> Objective | None:
    """Return a run's objective with what the user's flags change, None without flags; raises InputError."""
    if objective is None and within is None:
        return None
    raw = base.model_dump(mode="json")
    if objective is not None:
        raw["minimise"] = metrics(objective)
    if within is not None:
        raw["within"] = share(within, "--within", zero=True)
    return Objective.model_validate(raw)
