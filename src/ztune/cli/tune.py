"""``ztune tune``: the whole loop on a database of our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from ztune import output
from ztune.cli._options import Trials, Where, group, option, takes
from ztune.cli._tune import Trying, Tuned, TuneOptions, tune
from ztune.cli.recommend import print_brief
from ztune.errors import InputError
from ztune.report import brief, measured


@click.command("tune")
@takes
def command(
    asked: TuneOptions = group(),
    on: str | None = option(
        "--on",
        metavar="lab|mount|local|ssh://HOST",
        help="Then measure layouts and the baseline there, with the real database on real ZFS.",
    ),
    where: Where = group(),
    trials: Trials = group("--on"),
    as_json: bool = option("--json", help="Print the recommendation as JSON."),
) -> int:
    """Run WORKLOAD on a database that ztune makes, record it, screen layouts, and recommend one per role.

    The database lives in a directory of its own, listens on a unix socket only, and is removed at the end,
    also on Ctrl-C. Nothing of it is on ZFS: the layouts are screened by replaying what was recorded through
    OpenZFS in user space. Times are modelled from the disks' profile, not measured. With --on, up to
    --top of the layouts and the baseline are then measured on real ZFS, one after the other as what was
    measured says, and what was measured decides.

    \b
    Examples:
      ztune tune postgres-oltp
      ztune tune postgres-oltp --profile nvme --arc 1G -p scale=400
      ztune tune postgres-oltp -p script=mix21 -p clients=32 --out my-run
      ztune tune postgres-oltp --on lab                screen, then measure in a virtual machine
      ztune tune postgres-oltp --on mount              screen, then measure on OpenZFS in user space
      ztune tune postgres-oltp --on local --pool tank/ztune

    Exit code 1 if some layouts failed; the recommendation is then made from the others.
    """
    if on is None and where.given:
        raise InputError(
            "--pool, --parent, --disk, --files, --disks, --page-cache, "
            "--openzfs and --dilation say where to measure; add --on"
        )
    options = trials.options()
    trying = None if on is None else Trying(where.place(on), trials.top, options)
    outcome = tune(asked, trying)
    if as_json:
        printed = outcome.recommendation.model_dump(mode="json")
        if outcome.measured is not None:
            found = outcome.measured
            printed["measured"] = measured.to_json(found.run, found.trials, found.screened)
        output.print_json(printed)
    else:
        shown = brief.of(outcome.recommendation)
        print_brief(replace(shown, commands=(*shown.commands, *_files(outcome, asked.folder))))
    return 1 if outcome.failed else 0


def _files(outcome: Tuned, folder: Path) -> list[tuple[str, str]]:
    """Return which files there are, as parts of the first screen."""
    script = "" if outcome.recommendation.no_answer else "apply.sh (new datasets), "
    names = f"report.html, {script}run.json"
    if outcome.decides.run.measured:
        names += ", screened.html (what the replays said)"
    elif outcome.measured is not None:
        names += ", measured.html (no trial has a result)"
    return [("Files", f"{folder}/: {names}")]
