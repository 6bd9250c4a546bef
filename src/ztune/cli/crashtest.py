"""``ztune crashtest``: a real database on a mounted layout, its power cut again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ztune import output
from ztune.cli._options import arc_option, argument, option, params_option, profile_option, takes
from ztune.cli._values import FiniteRange
from ztune.cli._waiting import StepLine
from ztune.crash.cuts import Cutting
from ztune.crash.database import database_of
from ztune.crash.prepare import prepare
from ztune.crash.result import Cut
from ztune.runs.asked import layout_of


@click.command("crashtest")
@takes
def command(
    workload: str = argument(),
    layout: str | None = option(
        "--layout",
        metavar="STUDY[:NAME]",
        help="A study or a ready study, and one of its layouts; "
        "default: the workload's own, and its baseline.",
    ),
    profile: str | None = profile_option,
    arc: str | None = arc_option,
    cuts: int = option("--cuts", type=click.IntRange(1, 100_000), default=20, help="How many."),
    params: dict[str, str] = params_option,
    disks: Literal["instant", "profile"] = option(
        "--disks",
        default="instant",
        help="As fast as this machine, or as slow as the layout's disks. What a cut loses is the same model.",
    ),
    clients: int = option(
        "--clients", type=click.IntRange(1, 64), default=4, help="Clients at the same time."
    ),
    window: float = option(
        "--window",
        type=FiniteRange(0.05, 600),
        default=2.0,
        help="Seconds: the longest that they work before a cut.",
    ),
    seed: int = option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, help="Decides the moments."),
    keep: bool = option(
        "--keep", help="Stop at the first failed check, and leave disks and ledger for looking at."
    ),
    parent: Path | None = option(
        "--dir", metavar="DIR", help="Where disks and mounts are put; default $TMPDIR or /var/tmp."
    ),
    as_json: bool = option("--json", help="Print JSON: every cut, and the figures."),
) -> int:
    """Cut the power of WORKLOAD's database again and again, and look for each acknowledged commit.

    The layout is mounted by OpenZFS in user space, with modelled disks. Clients commit transactions; at a
    random moment the disks' power is cut and every process of the database killed. Then the layout is mounted
    again, OpenZFS replays its intent log, the database recovers, and everything is checked: each commit that
    a client was told of, each balance, and the database's own check. Then it goes on, on the same files.

    Cuts come under load, during a checkpoint, and during the recovery from the cut before. By turns the disks
    lose their volatile cache, lose all that no flush asked for, or lose nothing (the system alone crashes).

    \b
      ztune crashtest sqlite
      ztune crashtest postgres-oltp --layout "postgres-oltp:8K, log device" --cuts 200
      ztune crashtest postgres-oltp --layout my.toml -p full_page_writes=false --keep
      ztune crashtest sqlite -p journal_mode=persist --disks profile --json
      ztune crashtest valkey -p appendfsync=everysec

    WORKLOAD is postgres-oltp, sqlite, or another whose database brings a crash test. Exit code 1 if more was
    lost, or damaged, than the durability class of the layout allows. docs/durability.md has results, and says
    what such a test can't show.
    """
    database_of(workload)  # a wrong name is said before a layout is looked for
    study, chosen = layout_of(layout or workload, None, profile, arc)

    line, done = StepLine(), 0

    def say(text: str) -> None:
        if line.live:
            line.show(f"[{min(done + 1, cuts)}/{cuts}] {text} …")

    def report(cut: Cut) -> None:
        nonlocal done
        done = cut.number
        line.end()
        output.echo(f"[{cut.number}/{cuts}] {cut.sentence()}", err=True)

    test = prepare(
        workload, study, chosen, params, Cutting(cuts, seed, clients, window, keep, parent),
        disks=disks, report=report, say=say,
    )  # fmt: skip
    try:
        result = test.run()
    finally:
        line.end()
    if as_json:
        output.print_json(result.to_json())
    else:
        output.echo("\n".join(result.lines()))
    return 1 if result.broken else 0
