"""``ztune tune``: the whole loop on a database of our own."""

from __future__ import annotations

from pathlib import Path

import click

from ztune import output
from ztune.cli._options import (
    Trials,
    Where,
    arc_option,
    jobs_option,
    params_option,
    profile_option,
    seed_option,
    trials_options,
    where_options,
)
from ztune.cli._tune import TunePlan, tune
from ztune.errors import InputError
from ztune.report import measured, terminal


@click.command("tune")
@click.argument("workload")
@params_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where report.html, apply.sh and run.json go. Default: ztune-WORKLOAD here.",
)
@click.option(
    "--study",
    metavar="FILE|NAME",
    help="The layouts to try: a TOML file or a ready study. Default: the workload's own.",
)
@profile_option
@arc_option
@click.option(
    "--budget",
    type=click.IntRange(1),
    help="Layouts to try; default 32. The pairs that prove the recommendation come on top.",
)
@jobs_option
@seed_option
@click.option(
    "--recorder", type=click.Choice(["auto", "ebpf", "strace"]), default="auto", show_default=True,
    help="How to record; auto takes eBPF where it is allowed.",
)  # fmt: skip
@click.option(
    "--on", metavar="lab|mount|local|ssh://HOST",
    help="Then measure the best layouts and the baseline there, with the real database on real ZFS.",
)  # fmt: skip
@where_options
@trials_options("--on", "--on")
@click.option("--json", "as_json", is_flag=True, help="Print the recommendation as JSON.")
def command(
    workload: str,
    params: dict[str, str],
    out: Path | None,
    study: str | None,
    profile: str | None,
    arc: str | None,
    budget: int | None,
    jobs: int | None,
    seed: int | None,
    recorder: str,
    on: str | None,
    where: Where,
    trials: Trials,
    as_json: bool,
) -> int:
    """Run WORKLOAD on a database of our own, record it, screen layouts, and recommend one per role.

    The database lives in a directory of its own, listens on a unix socket only, and is removed at the end,
    also on Ctrl-C. Nothing of it is on ZFS: the layouts are screened by replaying what was recorded through
    OpenZFS in user space. Times are modelled from the disks' profile, not measured. With --on, the best few
    and the baseline are then measured on real ZFS, and what was measured decides.

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
    plan = TunePlan(
        workload=workload,
        params=params,
        out=out or Path(f"ztune-{workload}"),
        study=study,
        profile=profile,
        arc=arc,
        budget=budget,
        jobs=jobs or 0,
        seed=seed,
        recorder=recorder,
        place=None if on is None else where.place(on),
        top=trials.top,
        options=trials.options(),
    )
    outcome = tune(plan)
    if as_json:
        shown = outcome.recommendation.model_dump(mode="json")
        if outcome.measured is not None:
            found = outcome.measured
            shown["measured"] = measured.to_json(found.run, found.trials, found.screened)
        output.print_json(shown)
    else:
        terminal.show(outcome.recommendation, found=outcome.decides)
        output.echo(f"\nReport    {plan.out / 'report.html'}")
        if outcome.decides.run.measured:
            output.echo(f"Predicted {plan.out / 'screened.html'}   (every layout, replayed)")
        elif outcome.measured is not None:
            output.echo(f"Measured  {plan.out / 'measured.html'}   (no trial has a result)")
        output.echo(f"Commands  {plan.out / 'apply.sh'}   (prints what it would do; --yes does it)")
        output.echo(
            f"Results   {plan.out / 'run.json'}   (`ztune show {outcome.run_id}` for one trial in full)"
        )
    return 1 if outcome.failed else 0
