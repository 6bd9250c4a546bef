"""``ztune apply``: put the recommended layout in place, after showing what that means. Or take it back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click

from ztune import files, output, paths
from ztune.advice import exports, perform, plan_text
from ztune.advice.host import Host, Live, read
from ztune.advice.model import Recommendation
from ztune.advice.perform import check_allowed
from ztune.advice.plan import Plan, applicable, build, parameters, parse_datasets
from ztune.cli._options import argument, file_option, have_option, option, takes
from ztune.cli._waiting import waiting
from ztune.cli.recommend import changed_objective
from ztune.errors import InputError, MissingError
from ztune.onhost.layout import Layout
from ztune.report import source
from ztune.runs.named import run_id
from ztune.study import DurabilityClass
from ztune.study.durability import judge
from ztune.units import counted

_CLASSES = ("nothing-acknowledged", "last-seconds", "corrupt")


@click.command()
@takes
def command(
    run: str | None = argument(required=False),
    datasets: tuple[str, ...] = option(
        "--dataset",
        metavar="ROLE=POOL/DS",
        help="Where a role lives on the live system: data=tank/pg. Once for each dataset; what no role is "
        "named for is not touched.",
    ),
    on: str = option(
        "--on",
        default="",
        metavar="HOST",
        help="local, or ssh://[user@]host[:port]. Default: local.",
    ),
    via: str = option(
        "--via",
        default="",
        metavar="COMMAND",
        help='Words before each zfs command there, such as "sudo -n".',
    ),
    yes: bool = option("--yes", help="Make the changes. Without it they are only shown."),
    accept: str | None = option(
        "--accept-durability",
        type=click.Choice(_CLASSES),
        help="Allow changes after which a power cut may lose more than now: the class you accept.",
    ),
    undo_path: Path | None = file_option("--undo", "Take back what an earlier call did, from its undo file."),
    undo_file: Path | None = file_option(
        "--undo-file", "Where to write the undo file. Default: undo/ in the state directory."
    ),
    export: Literal["sh", "ansible", "ansible-role", "json"] | None = option(
        "--export",
        help="Print a script, an Ansible task file or JSON instead; or write an Ansible role, for many "
        "hosts, to the folder --out. Changes nothing.",
    ),
    out: Path | None = option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the export to FILE instead of stdout; an Ansible role to a folder.",
    ),
    objective: str | None = option(
        "--objective", metavar="METRIC,…", help="Recommend by another objective, as `ztune recommend` does."
    ),
    within: str | None = option(
        "--within", metavar="SHARE", help="How near the best counts as equal, as `ztune recommend` takes it."
    ),
    have: tuple[str, ...] = have_option,
) -> int:
    """Compare the layout that RUN (default: the last finished run) recommends with a live system, and set it.

    Only properties of datasets that exist are ever changed. Pools, disks, the database and the kernel module
    are left to you: the plan says what they would need. What is already written keeps its form until it is
    copied; the plan has the commands.

    \b
    Examples:
      ztune apply --dataset data=tank/pg --dataset wal=tank/pg/wal          show the plan
      ztune apply --dataset data=tank/pg --dataset wal=tank/pg/wal --yes    do it
      ztune apply --undo ~/.local/state/ztune/undo/7f3k2a-….json --yes      take it back
      ztune apply 7f3k2a --on ssh://db1 --via "sudo -n" --dataset data=tank/pg
      ztune apply 7f3k2a --export ansible --dataset data=tank/pg --out tasks.yml
      ztune apply 7f3k2a --export ansible-role --out roles/ztune            for many hosts
    """
    if out is not None and export is None:
        raise InputError("--out goes with --export")
    if out is None and export == "ansible-role":
        raise InputError("an Ansible role is a folder: say which with --out, such as --out roles/ztune")
    if export is not None and yes:
        raise InputError(
            "--export changes nothing, so it does not go with --yes; run what it writes with --yes"
        )
    try:
        words = shlex.split(via)
    except ValueError:
        raise InputError(f'--via is "{via}"; its quotes do not match') from None
    accepted = None if accept is None else DurabilityClass(accept)
    if undo_path is not None:
        if run is not None or datasets or export is not None:
            raise InputError("--undo takes its datasets from FILE; leave out RUN, --dataset and --export")
        return _undo(undo_path, on, words, yes)
    recommendation = _recommendation(run, objective, within, have)
    if export is not None:
        _export(recommendation, export, datasets, Host(on, words), accepted, out)
        return 0
    return _apply(recommendation, datasets, Host(on, words), yes, accepted, undo_file)


def _asked(host: Host, mapping: Mapping[str, str], layout: Layout) -> Live:
    """Return what is there; over ssh each question takes a connection."""
    with waiting(f"asking ZFS on {host.name}"):
        return read(host, mapping.values(), parameters(layout))


def _recommendation(
    run: str | None, objective: str | None, within: str | None, have: tuple[str, ...]
) -> Recommendation:
    found, which = source.best(run and run_id(run), objective or within, have)
    if which:
        output.note(which)
    return found.recommend(changed_objective(found.run.objective, objective, within))


def _apply(
    recommendation: Recommendation,
    datasets: tuple[str, ...],
    host: Host,
    yes: bool,
    accepted: DurabilityClass | None,
    undo_file: Path | None,
) -> int:
    layout = applicable(recommendation)
    mapping = parse_datasets(datasets, layout)
    if not mapping:
        roles = " ".join(f"--dataset {d.key}=POOL/DATASET" for d in layout.datasets)
        raise InputError(
            f"say where each role lives: {roles}; for datasets that do not exist yet, --export sh writes a "
            f"script that creates them"
        )
    plan = build(recommendation, mapping, _asked(host, mapping, layout))
    output.echo(plan_text.render(plan))
    output.echo()
    if not yes:
        output.echo(plan_text.closing(plan))
        return 0
    path = undo_file or _undo_path(plan.run)
    count = perform.perform(plan, host, path, accepted, lambda text: output.echo(text))
    if not plan.settings:
        output.echo(plan_text.closing(plan))
        return 0
    kept = len(plan.settings) - count
    and_kept = f", {kept} of other datasets so that they stay as they are" if kept else ""
    back = f"ztune apply --undo {shlex.quote(str(path))} --yes"
    output.echo(f"Done: {counted(count, 'change')}{and_kept}, each checked. To take them back: {back}")
    return 0


def _undo_path(run: str) -> Path:
    return paths.home() / "undo" / f"{run}-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}.json"


def _undo(path: Path, on: str, via: list[str], yes: bool) -> int:
    file = perform.read_undo(path)
    if on and on != (file.on or "local"):
        raise InputError(f"{path} is for {file.on or 'this host'}, not for {on}")
    host = Host(file.on, via)
    undone = perform.undo(file, host, lambda text: output.echo(text), yes=yes)
    for text in undone.left:
        output.echo(f"left alone: {text}")
    if undone.as_before:
        of = f"{undone.as_before} of {counted(len(file.changes), 'change')}"
        output.echo(f"as before: {of} never made, or taken back already")
    if not yes:
        output.echo(f"Nothing was changed. With --yes: {counted(len(undone.done), 'command')}.")
    elif undone.done:
        output.echo(f"Taken back: {len(undone.done)} of {counted(len(file.changes), 'change')}.")
    else:
        output.echo("Nothing was taken back." if undone.left else "There was nothing to take back.")
    return 1 if undone.left and yes else 0


def _export(
    recommendation: Recommendation,
    kind: str,
    datasets: tuple[str, ...],
    host: Host,
    accepted: DurabilityClass | None,
    out: Path | None,
) -> None:
    layout = applicable(recommendation)
    mapping = parse_datasets(datasets, layout)
    plan: Plan | None = None
    if mapping:
        try:
            plan = build(recommendation, mapping, _asked(host, mapping, layout))
        except MissingError as error:
            output.note(f"not compared with a live system: {error}")
    allowed = DurabilityClass.NOTHING if accepted is None else accepted
    if plan is not None:
        check_allowed(plan, accepted)
    elif (klass := judge(layout).proven).rank > allowed.rank:
        raise InputError(
            f"the layout is of durability class {klass}; if that is what you want, add --accept-durability "
            f"{klass}"
        )
    if kind == "ansible-role":
        _write_role(exports.ansible_role(recommendation, mapping), out)
        return
    text = {
        "sh": lambda: exports.shell(recommendation, mapping, plan),
        "ansible": lambda: exports.ansible(recommendation, mapping, plan),
        "json": lambda: exports.as_json(recommendation, mapping, plan),
    }[kind]()
    if out is None:
        output.echo(text, nl=False)
    else:
        files.write(out, text, executable=kind == "sh")
        output.echo(f"written to {out}", err=True)


def _write_role(role: Mapping[str, str], folder: Path | None) -> None:
    assert folder is not None
    try:
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "tasks" / "main.yml").is_file():
            raise InputError(f"{folder} is there and is no Ansible role; name a folder that is empty or new")
        files.make_folder(folder)
        for name in role:
            (folder / name).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} can't be written: {error.strerror}") from None
    for name, text in role.items():
        files.write(folder / name, text)
    output.echo(f"written to {folder}", err=True)
