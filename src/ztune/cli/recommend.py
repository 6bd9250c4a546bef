"""``ztune recommend``: what to set for each role, and why."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from ztune import files, output
from ztune.advice import weights as weights_file
from ztune.advice.commands import script as write_script
from ztune.advice.joint_model import JointRecommendation
from ztune.advice.together import recommend_together
from ztune.advice.weights import JobWeight
from ztune.cli._options import argument, file_option, have_option, option, takes
from ztune.cli._values import metrics, share
from ztune.errors import InputError
from ztune.onhost.properties import PROPERTIES
from ztune.report import brief, markdown, measured, source, terminal, together
from ztune.runs.named import run_id
from ztune.study import Objective

_ALL = "all"
# What `--why` takes for a setting has a dot, or is one of these; anything else behind it is a RUN.
_SETTINGS = {"slog", "l2arc", "special", "arc", *PROPERTIES}


@click.command()
@takes
def command(
    runs: tuple[str, ...] = argument(nargs=-1, metavar="[RUN]..."),
    why: str | None = option(
        "--why",
        is_flag=False,
        flag_value=_ALL,
        metavar="[SETTING]",
        help="Print all there is to say: ranking, reasons, costs, hazards, what was not tested; or why one "
        "setting is what it is, such as data.recordsize, or recordsize in each role.",
    ),
    as_markdown: bool = option("--markdown", help="Print it as Markdown, for an issue or a wiki."),
    as_json: bool = option("--json", help="Print the recommendation as JSON."),
    objective: str | None = option(
        "--objective",
        metavar="METRIC,…",
        help="What to minimise, most important first: time, space, written, read, sync_p99, cpu.",
    ),
    within: str | None = option(
        "--within", metavar="SHARE", help="How near the best counts as equal, such as 5% or 0.05."
    ),
    have: tuple[str, ...] = have_option,
    script: Path | None = file_option(
        "--script",
        "Also write an executable shell script of the commands; it changes nothing unless run with --yes.",
    ),
    everything: bool = option("--all", help="As --why, with all layouts of the ranking."),
    weights: Path | None = file_option(
        "--weights", "The runs of a database's jobs and how much each counts, as TOML, instead of RUN."
    ),
) -> None:
    """Recommend one of the layouts that RUN (default: the last finished run) has screened.

    One screen: what to set for each role, what that changes, how sure it is, the most important warning, and
    the commands. --why has the rest.

    Durability comes first: layouts that may lose more at a power cut than the objective allows are set apart.
    Your hardware comes next: what takes a log device, more memory or other disks than the base layout has is
    listed as what you could buy. Then the objective decides: by default the least modelled time; within 5 %
    of it the least space; then the fewest bytes written.

    With several RUNs, one for each job of a database, it is one layout for all of them: a table of what to
    set for each role, and what that costs each job.

    \b
    Examples:
      ztune recommend                                  the last run, by its study's objective
      ztune recommend 7f3k2a --why                     the evidence for each setting, and the ranking
      ztune recommend 7f3k2a --why data.recordsize     why that, and what was tried instead
      ztune recommend 7f3k2a --have slog=nvme          with a log device that you have
      ztune recommend 7f3k2a --objective space,time    smallest first
      ztune recommend --script layout.sh && sh layout.sh tank/pg     print the commands, change nothing
      ztune recommend 7f3k2a 9c1d4e                    one layout for two jobs
    """
    if why not in (None, _ALL) and "." not in why and why not in _SETTINGS:
        runs, why = (why, *runs), _ALL
    _one_form(why is not None, everything, as_markdown, as_json)
    if everything and why is None:
        why = _ALL
    flags = _flags(objective, within, have)
    if weights is not None or len(runs) > 1:
        for flag, given in (
            ("--all", everything),
            ("--script", script),
            ("--why SETTING", why not in (None, _ALL)),
        ):
            if given:
                raise InputError(f"{flag} goes with one run; what is said of several ends with the commands")
        joint = _together(runs, weights, objective, within, have)
        if as_json:
            output.print_json(joint.model_dump(mode="json"))
        elif as_markdown:
            output.echo(markdown.together(joint, _words(runs, weights, flags)))
        elif why is not None:
            together.show(joint)
        else:
            print_brief(together.brief(joint, _words(runs, weights, flags)))
        return
    run = runs[0] if runs else None
    found, which = source.best(run and run_id(run), objective or within, have)
    if which:
        output.note(which)
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
    elif as_markdown:
        output.echo(markdown.of(recommendation, flags))
    elif why == _ALL:
        terminal.show(recommendation, top=None if everything else terminal.TOP, found=found)
    elif why is not None:
        output.Console(highlight=False).print(terminal.explained(recommendation, why))
    else:
        print_brief(brief.of(recommendation, flags), used=2 * bool(which) + 2 * (script is not None))
    if script is not None:
        output.echo(
            f"\ncommands written to {script}; `sh {shlex.quote(str(script))} POOL` prints them", err=as_json
        )


def print_brief(shown: brief.Brief, used: int = 0) -> None:
    """Print one screen; ``used``: lines of the terminal's 24 that other output takes."""
    console = output.Console(highlight=False)
    for line in brief.lines(shown, min(console.width, brief.WIDEST), brief.ROOM - used):
        console.print(line, soft_wrap=True)


def _one_form(why: bool, everything: bool, as_markdown: bool, as_json: bool) -> None:
    told = "--why" if why else "--all"
    forms = ((told, why or everything), ("--markdown", as_markdown), ("--json", as_json))
    given = [flag for flag, on in forms if on]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are two forms of one answer; ask for one")


def _flags(objective: str | None, within: str | None, have: Sequence[str]) -> list[str]:
    """Return the flags that another command takes for the same recommendation."""
    given: list[tuple[Literal["--objective", "--within", "--have"], str | None]] = [
        ("--objective", objective),
        ("--within", within),
        *(("--have", word) for word in have),
    ]
    return [word for flag, value in given if value is not None for word in (flag, value)]


def _words(runs: Sequence[str], file: Path | None, flags: Sequence[str]) -> list[str]:
    return [*(["--weights", str(file)] if file is not None else runs), *flags]


def _together(
    runs: tuple[str, ...],
    file: Path | None,
    objective: str | None,
    within: str | None,
    have: Sequence[str],
) -> JointRecommendation:
    if file is not None and runs:
        raise InputError(f"{file} names the runs; leave out {' '.join(runs)}")
    weighed = [JobWeight(run, 1.0, False) for run in runs] if file is None else weights_file.read(file)
    jobs = []
    for one in weighed:
        try:
            found = source.evidence(run_id(one.run), have=have)
        except InputError as error:
            raise (error if file is None else InputError(f"{file}: {error}")) from None
        jobs.append(found.weighed(one, changed_objective(found.run.objective, objective, within)))
    return recommend_together(jobs)


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
