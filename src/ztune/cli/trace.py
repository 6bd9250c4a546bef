"""``ztune trace``: look at a recorded trace, check it, export it for the engine."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from ztune import output
from ztune.cli._options import argument, option, role_option, takes
from ztune.errors import InputError
from ztune.onhost.words import ROLES
from ztune.trace import reassign, view
from ztune.trace.figures import NO_ROLE
from ztune.trace.propose import as_rules, proposals
from ztune.trace.reader import Trace
from ztune.trace.roles import RoleRules

_LONG = 2_000_000  # events from which showing takes long enough to say so

_trace = argument()
_as_json = option("--json", help="Print JSON instead of tables.")
_role = option("--role", type=click.Choice((*ROLES, NO_ROLE)), help="Only this role.")


@click.group()
def command() -> None:
    """Look at a recorded trace.

    \b
    Examples:
      ztune trace show my.trace                 what was read, written and synced, by role
      ztune trace show my.trace --by file       the busiest files
      ztune trace roles my.trace                which roles do the files have?
      ztune trace check my.trace                is it whole and unchanged?
      ztune trace recover my.trace.partial      what a recording that was cut has
    """


@command.command()
@takes
def show(
    trace: Path = _trace,
    by: str = option("--by", type=click.Choice(("role", "file")), default="role", help="One line for each."),
    role: str | None = _role,
    top: int = option(
        "--top", type=click.IntRange(1, 1_000_000), default=20, help="How many files, with --by file."
    ),
    as_json: bool = _as_json,
) -> None:
    """Show what was read, written and synced.

    By role: calls, bytes, sizes as powers of two (each row's label is the lower bound) with their mean and
    standard deviation by call, how much was sequential, synchronous, overwritten and aligned, the working
    set, sync times, and rates over time. docs/trace-format.md defines each figure.

    \b
    Examples:
      ztune trace show my.trace
      ztune trace show my.trace --role wal
      ztune trace show my.trace --by file --top 50
      ztune trace show my.trace --json | jq '.roles[] | {name, sync_share}'
    """
    opened = Trace.open(trace)
    if role is not None:
        _need_role(opened, role)
    from ztune.trace.summary import summarise  # here, as the other commands take no Polars

    with _patience(opened):
        # With a role chosen, its busiest files may come after many of other roles.
        summary = summarise(opened, files=(None if role else top + 1) if by == "file" else 0)
    if as_json:
        data = summary.to_json(by)
        if role is not None or by == "file":
            key, field = ("roles", "name") if by == "role" else ("files", "role")
            wanted = None if role == NO_ROLE and by == "file" else role
            data[key] = [one for one in data[key] if role is None or one[field] == wanted][
                : top if by == "file" else None
            ]
            if role is not None and by == "role":
                data["rates"]["roles"] = {role: data["rates"]["roles"][role]}
        _print_json(data)
    elif by == "role":
        view.show_roles(output.Console(), summary, role)
    else:
        view.show_files(output.Console(), summary, role, top)


@command.command(short_help="List every file of a trace.")
@takes
def files(
    trace: Path = _trace,
    role: str | None = _role,
    as_json: bool = _as_json,
) -> None:
    """List every file of a trace: role, size before and after, names.

    \b
    Example:
      ztune trace files my.trace --role none    what will be left out of replay
    """
    opened = Trace.open(trace)
    if role is not None:
        _need_role(opened, role)
    if as_json:
        chosen = (file for file in opened.manifest.files if role in (None, file.role or NO_ROLE))
        _print_json([file.model_dump(mode="json") for file in chosen])
    else:
        view.file_list(output.Console(), opened.manifest, role)


@command.command(short_help="Show the files' roles, or change them.")
@takes
def roles(
    trace: Path = _trace,
    given: tuple[str, ...] = role_option,
    proposed: bool = option("--proposed", help="Give files without a role the one that is proposed."),
    everything: bool = option(
        "--all", help="List files too that did next to nothing, or have no role and none is proposed."
    ),
    as_json: bool = _as_json,
) -> None:
    """Show which roles the files of a trace have, and propose some from what the files do.

    Files of one directory whose names differ in numbers alone are one line. A role with a question mark is
    proposed: the files have none in the trace. --role and --proposed change it, without recording again; runs
    of it can't be resumed then. `ztune screen --role` leaves the trace as it is. docs/roles.md says what each
    role means.

    \b
    Examples:
      ztune trace roles my.trace
      ztune trace roles my.trace --proposed
      ztune trace roles my.trace --role '/srv/db/journal/**=wal' --role '*.tmp=-'
    """
    opened = Trace.open(trace)
    with _patience(opened):
        found = proposals(opened)
    rules = as_rules(found) if proposed else []
    if proposed and not rules and not given:
        raise InputError(f"no role is proposed for a file of {trace}; --role gives one")
    rules += RoleRules.parse(given, builtin=False).rules
    if rules:
        reassign.check_changeable(opened)
        note = reassign.sentence(found) if proposed else ""
        opened = reassign.change(opened, reassign.with_roles(opened, rules, note))
        if unknown := reassign.unmeasured(opened.manifest):
            output.warn(unknown)
        with _patience(opened):
            found = proposals(opened)
    if as_json:
        _print_json([{**asdict(one), "rule": one.rule if one.proposed else None} for one in found])
        return
    view.proposals(output.Console(), found, everything)
    if any(one.proposed for one in found):
        own = shlex.quote(str(trace))
        output.echo(f"\n`ztune trace roles {own} --proposed` gives them, --role 'GLOB=ROLE' others.")


@command.command(short_help="Check that a trace is whole and unchanged.")
@takes
def check(trace: Path = _trace, as_json: bool = _as_json) -> None:
    """Check that a trace is whole and unchanged: sizes, checksums, every value.

    \b
    Example:
      ztune trace check my.trace
    """
    opened = Trace.open(trace)
    with _patience(opened):
        for _ in opened.parts():
            pass
        for sample in opened.manifest.samples:
            opened.sample(sample.role, sample.touched, sample.how, sample.recordsize)
    manifest = opened.manifest
    if as_json:
        _print_json(
            {"ok": True, "events": manifest.events, "dropped": manifest.dropped, "sha256": opened.sha}
        )
        return
    dropped = f"; {manifest.dropped:,} were dropped while recording" if manifest.dropped else ""
    output.echo(f"{trace}: {manifest.events:,} events, whole and unchanged{dropped}")


@command.command(short_help="Make a trace of a recording that was cut.")
@takes
def recover(
    partial: Path = argument(type=click.Path(path_type=Path, file_okay=False, exists=True, readable=False)),
    as_json: bool = _as_json,
) -> None:
    """Make a trace of a recording that was cut: by a full disk, a crash of the host, or kill -9.

    PARTIAL is the folder NAME.trace.partial that it left. The trace is marked as not complete, and says when
    its last event was. Recordings with strace leave nothing to recover.

    \b
    Example:
      ztune trace recover my.trace.partial
    """
    from ztune.trace import record  # here, as all that records takes NumPy and Arrow

    console = output.Console(stderr=True)
    quiet = not console.is_terminal
    with contextlib.nullcontext() if quiet else console.status(f"reading {partial}"):
        trace = record.recover(partial)
    manifest = trace.manifest
    if as_json:
        _print_json(
            {"trace": str(trace.path), "events": manifest.events, "duration_ns": manifest.duration_ns}
        )
        return
    output.echo(f"{trace.path}: {manifest.events:,} events in {trace.duration_s:,.1f} s")


@command.command("export-ops", short_help="Write the engine's operations file.")
@takes
def export(
    trace: Path = _trace,
    out: Path = argument(type=click.Path(path_type=Path, dir_okay=False)),
    as_json: bool = _as_json,
) -> None:
    """Write the binary file of operations that the replay engine reads.

    Only files with a role are in it. `ztune screen` does this by itself; the file is for running the engine
    by hand and for tests. docs/trace-format.md describes it.

    \b
    Example:
      ztune trace export-ops my.trace ops.bin
    """
    opened = Trace.open(trace)
    from ztune.trace.ops import export_ops  # here, as it takes NumPy

    with _patience(opened):
        info = export_ops(opened, out)
    if as_json:
        _print_json({**asdict(info), "path": str(info.path)})
        return
    output.echo(
        f"{info.path}: {info.nops:,} operations of {info.threads} threads on {len(info.files):,} files;"
        f" {info.left_out:,} events left out"
    )


def _need_role(trace: Trace, role: str) -> None:
    have = {file.role or NO_ROLE for file in trace.manifest.files}
    if role not in have:
        names = ", ".join(name for name in (*ROLES, NO_ROLE) if name in have)
        raise InputError(f"no file of {trace.path} has the role {role}; it has: {names or 'no files'}")


def _print_json(data: object) -> None:
    output.print_json(data)


def _patience(trace: Trace) -> contextlib.AbstractContextManager[object]:
    """Show that work is going on, on a terminal, if it will take more than a moment."""
    console = output.Console(stderr=True)
    if trace.manifest.events < _LONG or not console.is_terminal:
        return contextlib.nullcontext()
    return console.status(f"reading {trace.manifest.events:,} events")
