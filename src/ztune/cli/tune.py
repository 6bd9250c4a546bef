"""``ztune tune``: the whole loop on a database of our own."""

from __future__ import annotations

from pathlib import Path

import click

from ztune import output
from ztune.cli._place import blocks as parse_blocks
from ztune.cli._place import duration, jobs_option, make_place, pairs, place_options, share
from ztune.errors import InputError


@click.command("tune", short_help="The whole loop: run a workload, record, screen, recommend.")
@click.argument("workload")
@click.option(
    "-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
    help="A parameter of the workload; `ztune list workloads` shows them.",
)  # fmt: skip
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
@click.option("--profile", metavar="NAME|FILE", help="Disks to model instead of the study's data disks.")
@click.option(
    "--arc", metavar="SIZE", help="Memory for the ARC, such as 64M or 7.5G, instead of the study's."
)
@click.option(
    "--budget",
    type=click.IntRange(1),
    help="Layouts to try; default 32. The pairs that prove the recommendation come on top.",
)
@jobs_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")
@click.option(
    "--recorder", type=click.Choice(["auto", "ebpf", "strace"]), default="auto", show_default=True,
    help="How to record; auto takes eBPF where it is allowed.",
)  # fmt: skip
@click.option(
    "--on", metavar="lab|mount|local|ssh://HOST",
    help="Then measure the best layouts and the baseline there, with the real database on real ZFS.",
)  # fmt: skip
@place_options
@click.option(
    "--top", type=click.IntRange(1), default=3, show_default=True, help="With --on: how many of the best."
)
@click.option(
    "--blocks", default="3:8", show_default=True, metavar="MIN:MAX",
    help="With --on: the fewest and the most times that each layout runs.",
)  # fmt: skip
@click.option(
    "--resolution", default="2%", show_default=True, metavar="SHARE",
    help="With --on: smaller differences don't matter.",
)  # fmt: skip
@click.option("--time-limit", metavar="TIME", help="With --on: begin no trial after this long, such as 2h.")
@click.option("--json", "as_json", is_flag=True, help="Print the recommendation as JSON.")
def command(
    workload: str,
    params: tuple[str, ...],
    out: Path | None,
    study: str | None,
    profile: str | None,
    arc: str | None,
    budget: int | None,
    jobs: int | None,
    seed: int | None,
    recorder: str,
    on: str | None,
    pool: str | None,
    parents: tuple[str, ...],
    disks: tuple[str, ...],
    files: str | None,
    size: str,
    pace: str | None,
    page_cache: bool,
    openzfs: str | None,
    dilation: float | None,
    top: int,
    blocks: str,
    resolution: str,
    time_limit: str | None,
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
    # Loaded here: `ztune --help` must not wait for Arrow.
    from ztune.cli._tune import Plan, tune
    from ztune.report import measured, terminal
    from ztune.runs.plan import Options

    place = None
    if on is not None:
        place = make_place(on, pool, parents, disks, files, size, openzfs, dilation, pace, page_cache)
    elif pool or parents or disks or files or openzfs or dilation or pace or page_cache:
        raise InputError(
            "--pool, --parent, --disk, --files, --disks, --page-cache, "
            "--openzfs and --dilation say where to measure; add --on"
        )
    plan = Plan(
        workload=workload,
        params=pairs(params),
        out=out or Path(f"ztune-{workload}"),
        study=study,
        profile=profile,
        arc=arc,
        budget=budget,
        jobs=jobs or 0,
        seed=seed,
        recorder=recorder,
        place=place,
        top=top,
        options=Options(
            blocks=parse_blocks(blocks),
            resolution=share(resolution, "--resolution"),
            time_limit_s=duration(time_limit),
        ),
    )
    outcome = tune(plan)
    if as_json:
        shown = outcome.recommendation.model_dump(mode="json")
        if outcome.measured is not None:
            shown["measured"] = measured.to_json(*outcome.measured)
        output.print_json(shown)
    else:
        if outcome.measured is not None:
            output.echo("MODELLED: every layout, replayed; the layout that measuring chose, and why\n")
        terminal.show(outcome.recommendation)
        if outcome.measured is not None:
            output.echo("\nMEASURED: the best few, with the real database on real ZFS\n")
            measured.show(*outcome.measured)
            output.echo(f"\nMeasured  {plan.out / 'measured.html'}")
        output.echo(f"\nReport    {plan.out / 'report.html'}")
        output.echo(f"Commands  {plan.out / 'apply.sh'}   (prints what it would do; --yes does it)")
        output.echo(
            f"Results   {plan.out / 'run.json'}   (`ztune show {outcome.run_id}` for one trial in full)"
        )
    return 1 if outcome.failed else 0
