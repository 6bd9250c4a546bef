"""``ztune tune``: the whole loop on a database of our own."""

from __future__ import annotations

from pathlib import Path

import click

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
@click.option("--jobs", type=click.IntRange(1, 1024), help="Layouts at a time; default: one per core.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")
@click.option(
    "--recorder", type=click.Choice(["auto", "ebpf", "strace"]), default="auto", show_default=True,
    help="How to record; auto takes eBPF where it is allowed.",
)  # fmt: skip
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
    as_json: bool,
) -> int:
    """Run WORKLOAD on a database of our own, record it, screen layouts, and recommend one per role.

    The database lives in a directory of its own, listens on a unix socket only, and is removed at the end,
    also on Ctrl-C. Nothing of it is on ZFS: the layouts are screened by replaying what was recorded through
    OpenZFS in user space. Times are modelled from the disks' profile, not measured.

    \b
    Examples:
      ztune tune postgres-oltp
      ztune tune postgres-oltp --profile nvme --arc 1G -p scale=400
      ztune tune postgres-oltp -p script=mix21 -p clients=32 --out my-run

    Exit code 1 if some layouts failed; the recommendation is then made from the others.
    """
    # Loaded here: `ztune --help` must not wait for Arrow.
    import json

    from ztune.cli._tune import Plan, tune
    from ztune.report import terminal

    plan = Plan(
        workload=workload,
        params=dict(_pair(text) for text in params),
        out=out or Path(f"ztune-{workload}"),
        study=study,
        profile=profile,
        arc=arc,
        budget=budget,
        jobs=jobs or 0,
        seed=seed,
        recorder=recorder,
    )
    outcome = tune(plan)
    if as_json:
        click.echo(json.dumps(outcome.recommendation.model_dump(mode="json"), indent=1, ensure_ascii=False))
    else:
        terminal.show(outcome.recommendation)
        click.echo(f"\nReport    {plan.out / 'report.html'}")
        click.echo(f"Commands  {plan.out / 'apply.sh'}   (prints what it would do; --yes does it)")
        click.echo(
            f"Results   {plan.out / 'run.json'}   (`ztune show {outcome.run_id}` for one trial in full)"
        )
    return 1 if outcome.failed else 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f'-p is "{text}"; write NAME=VALUE, for example -p scale=50')
    return name.strip(), value.strip()
