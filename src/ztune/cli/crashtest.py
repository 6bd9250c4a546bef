"""``ztune crashtest``: a real database on a mounted layout, its power cut again and again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from ztune import output
from ztune.cli._options import arc_option, params_option, profile_option
from ztune.cli._values import FiniteRange
from ztune.crash.database import database_of
from ztune.crash.prepare import prepare
from ztune.crash.result import Cut
from ztune.runs.asked import layout_of


class _Progress:
    """One line that changes on a terminal, and a line for each cut."""

    def __init__(self, count: int) -> None:
        self._live = sys.stderr.isatty()
        self._open = False
        self._count = count
        self._done = 0

    def say(self, text: str) -> None:
        if self._live:
            output.rewrite(f"[{min(self._done + 1, self._count)}/{self._count}] {text} …")
            self._open = True

    def report(self, cut: Cut) -> None:
        self._done = cut.number
        self.end()
        output.echo(f"[{cut.number}/{self._count}] {cut.sentence()}", err=True)

    def end(self) -> None:
        if self._open:
            output.rewrite()
            self._open = False


@click.command("crashtest")
@click.argument("workload")
@click.option(
    "--layout",
    metavar="STUDY[:NAME]",
    help="A study or a ready study, and one of its layouts; default: the workload's own, and its baseline.",
)
@profile_option
@arc_option
@click.option("--cuts", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many.")
@params_option
@click.option(
    "--disks",
    type=click.Choice(["instant", "profile"]),
    default="instant",
    show_default=True,
    help="As fast as this machine, or as slow as the layout's disks. What a cut loses is the same model.",
)
@click.option(
    "--clients", type=click.IntRange(1, 64), default=4, show_default=True, help="Clients at the same time."
)
@click.option(
    "--window",
    type=FiniteRange(0.05, 600),
    default=2.0,
    show_default=True,
    help="Seconds: the longest that they work before a cut.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Decides the moments."
)
@click.option(
    "--keep", is_flag=True, help="Stop at the first failed check, and leave disks and ledger for looking at."
)
@click.option(
    "--dir",
    "parent",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where disks and mounts are put; default $TMPDIR or /var/tmp.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every cut, and the figures.")
def command(
    workload: str,
    layout: str | None,
    profile: str | None,
    arc: str | None,
    cuts: int,
    params: dict[str, str],
    disks: Literal["instant", "profile"],
    clients: int,
    window: float,
    seed: int,
    keep: bool,
    parent: Path | None,
    as_json: bool,
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

    progress = _Progress(cuts)
    test = prepare(
        workload, study, chosen, params, cuts=cuts, disks=disks, clients=clients, window_s=window,
        seed=seed, keep=keep, parent=parent, report=progress.report, say=progress.say,
    )  # fmt: skip
    try:
        result = test.run()
    finally:
        progress.end()
    if as_json:
        output.print_json(result.to_json())
    else:
        output.echo("\n".join(result.lines()))
    return 1 if result.broken else 0
