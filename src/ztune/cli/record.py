"""``ztune record``: a command's or a running database's file I/O becomes a trace."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ztune import output
from ztune.cli._options import argument, option, takes
from ztune.cli._values import PROCESSES, YEAR_S, FiniteRange, clock_time, duration
from ztune.databases.rules import RoleRule
from ztune.errors import InputError, MissingError
from ztune.onhost.words import ROLES
from ztune.trace import left_out, reassign
from ztune.trace.enough import lacking
from ztune.trace.extent import sentences
from ztune.trace.propose import as_rules, proposals, rest
from ztune.trace.rate import parse_rate
from ztune.trace.reader import Trace
from ztune.trace.recorders import NAMES
from ztune.trace.roles import RoleRules
from ztune.trace.windows import Schedule
from ztune.units import counted, parse_size

if TYPE_CHECKING:
    from ztune.trace.record import Recording


@click.command(context_settings={"ignore_unknown_options": False})
@takes
def command(
    command_line: tuple[str, ...] = argument(nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
    pids: tuple[int, ...] = option(
        "--pid",
        type=click.IntRange(1, PROCESSES),
        help="Record this process and all its descendants. Repeatable.",
    ),
    seconds: float | None = option(
        "--seconds",
        type=FiniteRange(0, YEAR_S, min_open=True),
        help="How long to record. Default with --pid: until Ctrl-C or the processes end. "
        "A command is sent SIGTERM then.",
    ),
    out: Path | None = option(
        "--out",
        help="The trace's folder. Default: NAME-DATE-TIME.trace, with --pid NAME-PID-DATE-TIME.trace.",
    ),
    recorder: str = option(
        "--recorder",
        type=click.Choice(NAMES),
        default="auto",
        help="eBPF costs little and needs root; strace works for one's own processes, and slows them a lot.",
    ),
    roles: tuple[str, ...] = option(
        "--role",
        metavar="GLOB=ROLE",
        help="Which role files play, beside the well-known layouts. Repeatable."
        f" Roles: {', '.join(ROLES)}, or - for none.",
    ),
    paths: tuple[Path, ...] = option(
        "--path", help="Keep only files below this folder. Repeatable. Default: all regular files."
    ),
    samples: bool = option(
        "--samples",
        help="Keep real blocks of the files in the trace, for exact compression. It then holds content!",
    ),
    sample: str | None = option(
        "--sample",
        metavar="1/N",
        help="Record of the large files one address region in N, and all of logs, small files and syncs; "
        "what is left out is counted. For what is too much to be recorded whole. Needs eBPF.",
    ),
    every: str | None = option(
        "--every",
        metavar="TIME",
        help="Record for a while each time so much has passed, such as 1h: with --for, and --pid. One trace "
        "has all these windows. Needs eBPF.",
    ),
    window: str | None = option("--for", metavar="TIME", help="How long each window is, such as 60s."),
    until: str | None = option(
        "--until",
        metavar="WHEN",
        help="When to end, with --pid: 18:00, or 2026-11-24T06:00. Default: as of --seconds.",
    ),
    max_size: str = option(
        "--max-size",
        metavar="SIZE",
        default="1G",
        help="The recording ends when its files take so much, about 90 million calls by default; 0: never.",
    ),
    share: bool = option("--share", help="Let others read the trace; else it is the recording user's alone."),
    as_json: bool = option("--json", help="Print what was recorded as JSON."),
) -> int:
    """Record the file I/O of a command or of running processes as a trace.

    A trace holds names, offsets, sizes and times, and how well the files compress; never content, unless
    --samples is given. Children and threads are followed. Only the user who records can read it, unless
    --share is given. While it is recorded a server at full speed takes some 6 to 8 % more processor time.

    \b
      ztune record -- pgbench -i -s 10 bench
      ztune record --pid $(head -1 /var/lib/postgresql/15/main/postmaster.pid) --seconds 60 --out my.trace
      ztune record --role '/srv/pg/wal/**=wal' --path /srv/pg --pid 1234 --seconds 60
      ztune record --pid 1234 --seconds 3600 --sample 1/8
      ztune record --pid 1234 --every 1h --for 60s --until 18:00

    With a command, Ctrl-C goes to the command, and the trace is written when the command has ended; with
    --pid, Ctrl-C ends the recording, and the trace is written.

    Where no rule knows a single file, or those that it does not know are much of what is written or synced,
    roles are told from what the files do, and the trace says so; `ztune trace roles` shows and changes them.

    Exit code 1 if the command failed, or if nothing was recorded.
    """
    if bool(command_line) == bool(pids):
        raise InputError("say what to record: either a command after --, or --pid")
    rules = RoleRules.parse(roles)
    rate = parse_rate(sample) if sample else 1
    schedule, seconds = _schedule(bool(pids), every, window, until, seconds)
    try:
        max_bytes = parse_size(max_size)
    except ValueError as error:
        raise InputError(f"--max-size: {error}") from None
    out = out or default_name(command_line, pids)
    # Here, as what is wrong is said without NumPy and Arrow.
    from ztune.trace import headroom
    from ztune.trace.record import Recording, record

    with _progress(bool(pids)) as (say, tick):
        recording = Recording(
            out,
            command=command_line,
            pids=pids,
            recorder=recorder,
            rules=rules,
            paths=paths,
            keep_samples=samples,
            share=share,
            say=say,
            sample=rate,
            max_bytes=max_bytes,
            windows=schedule is not None,
        )
        with recording:
            close = headroom.beside(out.parent, (*paths, *headroom.opened(pids, rules)))
            if close is not None:
                output.warn(close)
            passing = (lambda passed: tick(passed, seconds)) if pids else None
            trace = record(recording, seconds, passing, schedule)
        if recording.outlived:  # an hour was asked for, and a restart has left five minutes
            output.echo(
                f"ztune: all that was recorded ended after {trace.duration_s:.0f} s, and the recording with "
                "it; a server that was started again has another --pid",
                err=True,
            )
        if close is None:  # what a command uses is known now
            used = (Path(file.path) for file in trace.manifest.files if file.role)
            if (close := headroom.beside(out.parent, used)) is not None:
                output.warn(close)
        try:
            trace = _proposed(trace, rules.rules, say, recording)
        except MissingError as error:
            output.note(f"no roles are told from what the files do: {error}")
    status = recording.exit_status
    if seconds is not None and status == -signal.SIGTERM:
        status = 0  # as it was told
    if as_json:
        output.print_json(_report(trace, status))
    else:
        _print(trace, status, share)
    if not trace.manifest.events:
        output.echo(
            "ztune: nothing was recorded, so there is nothing to screen; record while the database works",
            err=True,
        )
        return 1
    return 1 if command_line and status != 0 else 0


def _schedule(
    pids: bool, every: str | None, window: str | None, until: str | None, seconds: float | None
) -> tuple[Schedule | None, float | None]:
    """Return when the windows are, None without, and how many seconds are recorded. Raises InputError."""
    if (every is None) != (window is None):
        raise InputError("--every and --for belong together, such as --every 1h --for 60s")
    if until is not None and seconds is not None:
        raise InputError("--seconds and --until both say when to end; leave out one of the two")
    if (every or until) and not pids:
        raise InputError(f"{'--every' if every else '--until'} is for what runs already: name it with --pid")
    if until is not None:
        ends = clock_time(until, "--until")
        seconds = (ends - datetime.datetime.now().astimezone()).total_seconds()
    every_s, for_s = duration(every, "--every"), duration(window, "--for")
    if every_s is None or for_s is None:
        return None, seconds
    if for_s >= every_s:
        raise InputError(
            f"--for {window} leaves nothing out of --every {every}; leave out both, or write less"
        )
    return Schedule(every_s, for_s), seconds


def _proposed(
    trace: Trace, given: Sequence[RoleRule], say: Callable[[str], None], recording: Recording
) -> Trace:
    """Return ``trace`` with roles by what the files do, where no rule knows one or what others do matters;
    while they are there: their content is sampled. What the user has ``given`` stays.
    """
    files = trace.manifest.files
    found = rest(trace, asked=True) if any(file.role for file in files) else proposals(trace)
    found = reassign.not_given(found, given, files)
    given = [rule for rule in given if any(rule.matches(file.path) for file in files)]
    rules = as_rules(found)
    if not rules:
        return trace
    from ztune.trace.untouched import with_more  # here, as most recordings take it already

    say("looking for files that nothing touched")
    all_rules = RoleRules([*rules, *given], builtin=False)
    manifest = with_more(trace.manifest, recording.untouched, all_rules, recording.paths)
    trace = reassign.change(trace, manifest)
    return reassign.change(trace, reassign.with_roles(trace, [*rules, *given], reassign.sentence(found), say))


def default_name(command_line: tuple[str, ...], pids: tuple[int, ...]) -> Path:
    """Return a name for the trace: the program's, and the time; of two servers, recorded by two jobs of cron
    in one second, each has its own.
    """
    if command_line:
        name = Path(command_line[0]).name
    else:
        try:
            name = Path(f"/proc/{pids[0]}/comm").read_text(errors="replace").strip()
        except OSError:
            raise InputError(f"there is no process {pids[0]}") from None
    # Whoever made the process named it: no option of the next command, and no hidden folder.
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip("-.") or "process"
    if not command_line:
        name += f"-{pids[0]}"
    return Path(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.trace")


@contextlib.contextmanager
def _progress(
    spinning: bool,
) -> Iterator[tuple[Callable[[str], None], Callable[[float, float | None], None]]]:
    """Yield how to say a step, and how to tell of time passing; on stderr, and alive only on a terminal.

    ``spinning``: from the beginning, where no command writes to the terminal too.
    """
    console = output.Console(stderr=True)

    def said(text: str) -> None:
        output.note(text)

    if not console.is_terminal:
        # Steps that all take a moment need no line; a reason (why strace?) does.
        yield (lambda text: said(text) if " since " in text else None), (lambda _passed, _of: None)
        return
    status = console.status("starting to record")

    def tick(passed: float, of: float | None) -> None:
        left = f" of {of:.0f}" if of else "; Ctrl-C ends it"
        status.update(output.Text(f"recording, {passed:.0f} s{left}"))

    def step(text: str) -> None:
        if " since " in text:
            said(text)
        else:
            status.update(output.Text(text))
            status.start()  # a command has ended by now

    try:
        if spinning:
            status.start()
        yield step, tick
    finally:
        status.stop()


def _report(trace: Trace, status: int | None) -> dict[str, object]:
    manifest = trace.manifest
    return {
        "trace": os.fspath(trace.path),
        "recorder": manifest.recorder.name,
        "events": manifest.events,
        "dropped": manifest.dropped,
        "complete": manifest.complete,
        "files": len(manifest.files),
        "duration_ns": manifest.duration_ns,
        "exit_status": status,
        "warnings": [warning.model_dump() for warning in manifest.warnings],
        "samples": bool(manifest.samples),
        "sample": None if manifest.sample is None else manifest.sample.model_dump(),
        "windows": [window.model_dump() for window in manifest.windows],
        "lacking": lacking(trace),
        "without_role": left_out.sentence(trace),
    }


def _print(trace: Trace, status: int | None, shared: bool = False) -> None:
    manifest = trace.manifest
    if status is not None and status != 0:
        what = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        output.note(f"the command {what}")
    roles = sorted({file.role for file in manifest.files if file.role})
    output.echo(
        f"{trace.path}: {counted(manifest.events, 'event')} on {counted(len(manifest.files), 'file')}"
        f" in {trace.duration_s:.1f} s, recorded with {manifest.recorder.name};"
        f" roles: {', '.join(roles) or 'none (`ztune trace roles`)'}"
    )
    for text in sentences(manifest):
        output.echo(text)
    if manifest.samples:
        output.echo("The trace keeps content: blocks of the files are in its folder samples.")
    for warning in manifest.warnings:
        output.warn(warning.message)
    unknown = left_out.sentence(trace)
    for text in filter(None, (unknown, *lacking(trace))):
        output.warn(text)
    sys.stdout.flush()
    if manifest.events:
        # Without a role there is nothing to replay, and what has none is left out.
        then = "screen" if roles and not unknown else "trace roles"
        own = shlex.quote(str(trace.path))
        output.echo(f"Next: ztune trace show {own}   ztune {then} {own}", err=True)
    if (caller := _caller()) is not None:
        who = "be changed" if shared else "be read"
        output.echo(
            f"The trace is root's, and can't {who} by {caller}: sudo chown -R {caller} "
            f"{shlex.quote(str(trace.path))}",
            err=True,
        )


def _caller() -> str | None:
    """Return who had sudo run this, where that is not root."""
    name = os.environ.get("SUDO_USER", "")
    return name if os.geteuid() == 0 and name not in ("", "root") and name.isprintable() else None
