"""``ztune observe``: what a database does to its file system, and what would be better."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import click
from rich.live import Live

from ztune import files, output
from ztune.advice.findings import Finding, Undecided, findings, undecided, unknown_roles
from ztune.cli import _hosts
from ztune.cli._hosts import (
    HostsOptions,
    all_option,
    dashboard_option,
    every_option,
    expect_option,
    hosts_option,
    metrics_option,
)
from ztune.cli._options import file_option, group, option, takes
from ztune.cli._values import PROCESSES, YEAR_S, FiniteRange
from ztune.errors import InputError
from ztune.hosts.asking import HostAnswer
from ztune.hosts.drift import drifts, read_expected
from ztune.hosts.listed import ListedHost, read_hosts
from ztune.observe.model import PIECE_S, Observation
from ztune.observe.sources import MEANINGS, READERS, read_files
from ztune.observe.subjects import ObservedSubject, choose
from ztune.onhost.words import ROLES
from ztune.report import observed_terminal
from ztune.report.hosts import show_drift
from ztune.trace.rate import parse_rate
from ztune.trace.roles import RoleRules

_FILES_S = 3600.0  # seconds between two looks at the files where windows follow each other
_LINE_S = 30.0
_MOST = 64  # parts of the time: of a minute some five pieces are left
_SECONDS = 60.0  # where nobody can see when to press Ctrl-C


@click.command()
@takes
def command(
    pid: int | None = option(
        "--pid", type=click.IntRange(1, PROCESSES), help="Observe this process and all its descendants."
    ),
    unit: str | None = option("--unit", help="Observe the processes of this systemd unit."),
    dataset: str | None = option(
        "--dataset", help="Observe everything that touches this ZFS dataset, or one below it."
    ),
    path: Path | None = option("--path", help="Observe everything that touches files below this folder."),
    seconds: float | None = option(
        "--seconds",
        type=FiniteRange(0, YEAR_S, min_open=True),
        help=f"How long. Default: until Ctrl-C on a terminal, else {_SECONDS:g}; with --metrics :PORT "
        f"{_hosts.SECONDS:g} for each window.",
    ),
    sources: tuple[Path, ...] = file_option(
        "--from", "Don't observe: read the output of another tool, or a saved observation. Repeatable."
    ),
    format_: str | None = option(
        "--format",
        type=click.Choice([reader.name for reader in READERS]),
        help="Of --from. Default: by its content.",
    ),
    meaning: str | None = option(
        "--as",
        type=click.Choice(MEANINGS),
        help="What the histograms of --from are, where the file does not say.",
    ),
    roles: tuple[str, ...] = option(
        "--role",
        metavar="GLOB=ROLE",
        help="Which role files (or keys of histograms) play, beside the well-known layouts. Repeatable."
        f" Roles: {', '.join(ROLES)}, or - for none.",
    ),
    all_calls: bool = option(
        "--calls",
        help="With --pid or --unit: time all system calls, those on sockets too, not those on files alone. "
        "That costs a server more.",
    ),
    sample: str | None = option(
        "--sample",
        metavar="1/N",
        help=f"Count calls for one part in N of the time, {PIECE_S:g} s at a time, and take these for all: "
        f"costs a server less. Up to 1/{_MOST}.",
    ),
    no_files: bool = option(
        "--no-files", help="Don't walk through the files, nor read samples of them, at the end."
    ),
    user: str | None = option(
        "--user",
        help="Account to ask the database for its settings as, read-only. Default: for root the one that the "
        "server runs as, else yours. It needs no special rights.",
    ),
    hosts: Path | None = hosts_option,
    many: HostsOptions = group(only_with="--hosts"),
    expect: Path | None = expect_option,
    metrics: str | None = metrics_option,
    every: float | None = every_option,
    dashboard: bool = dashboard_option,
    everything: bool = all_option,
    out: Path | None = file_option("--out", "Write an HTML report."),
    save: Path | None = file_option("--save", "Keep the observation as JSON; --from reads it again."),
    as_json: bool = option("--json", help="Print the observation and the findings as JSON."),
) -> int:
    """See what a live database does to its file system, and what would be better. Nothing is changed.

    The kernel counts, by role, file and system call: sizes and times of reads and writes, fsyncs, what is
    in sequence, aligned and overwritten. Beside it on the same time axis: processors, memory, disks, ARC
    and ZIL. Then come the findings, each with its evidence, what to do, and what that would cost. It works
    on every file system; on a host without ZFS that part is missing and it says so. While it looks, a server
    at full speed takes some 8 % more processor time, with --calls 11 %.

    \b
    Examples:
      ztune observe --pid $(head -1 /var/lib/postgresql/15/main/postmaster.pid) --seconds 60
      ztune observe --unit postgresql@15-main --out report.html
      ztune observe --dataset tank/pg
      ztune observe --pid 1234 --metrics :9743 --sample 1/16    all day, for a tenth of the cost
      ztune observe --from writes.txt --as write-sizes --role 'data*=data'
      zpool iostat -r tank > r.txt; ztune observe --from r.txt
      ztune observe --hosts hosts.txt                  two hundred hosts over ssh: one ranked table
      ztune observe --hosts hosts.txt --expect recommended.json
      ztune observe --hosts hosts.txt --metrics :9743  Prometheus scrapes it; --dashboard shows it in Grafana

    With --hosts each host is asked over ssh by python3 alone, for 10 s unless --seconds says otherwise;
    nothing is left there. Exit code 3: a host could not be asked; its row says why.

    Needs root (or CAP_BPF and CAP_PERFMON). On a kernel without BTF it falls back to what /proc tells, and
    says what is lost. --from needs nothing.
    """
    if dashboard:
        output.echo(resources.files("ztune.report").joinpath("dashboard.json").read_text("utf-8"), nl=False)
        return 0
    rules = RoleRules.parse(roles)
    served = metrics is not None and _hosts.listens(metrics)
    if every is not None and not served:
        raise InputError("--every goes with --metrics :PORT, which observes again and again")
    if served and not sources and (out is not None or save is not None or as_json):
        raise InputError(
            "--metrics :PORT goes on until Ctrl-C and has nothing to write then: leave out --out, --save and "
            "--json, or name a file in place of the port"
        )
    page = None if metrics is None or served else Path(metrics)
    for path_ in (out, save, page):
        if path_ is not None:
            files.check(path_)
    named = {os.path.realpath(one): "--from" for one in sources}
    for path_, flag in ((save, "--save"), (out, "--out"), (page, "--metrics")):
        if path_ is not None and (path_.is_file() or not path_.exists()):  # /dev/null may be named twice
            other = named.setdefault(os.path.realpath(path_), flag)
            if other != flag:
                raise InputError(f"{flag} would replace the file of {other}, {path_}; name another")
    live = [pid, unit, dataset, path, seconds]
    expected = None if expect is None else read_expected(expect)
    if hosts is not None:
        _refuse_with_hosts(
            (pid, "--pid"), (unit, "--unit"), (dataset, "--dataset"), (path, "--path"), (user, "--user"),
            (all_calls, "--calls"), (sample, "--sample"), (sources, "--from"), (no_files, "--no-files"),
            (out, "--out"), (save, "--save"), (meaning, "--as"), (format_, "--format"),
        )  # fmt: skip
        listed = read_hosts(hosts)
        answers: list[HostAnswer] = []

        def ask() -> list[HostAnswer]:
            answers[:] = _hosts.ask(listed, seconds, many, rules, expected)
            return answers

        if metrics is not None:
            code = _hosts.watch(ask, metrics, every, expected)
            if code is not None:
                return code
        else:
            ask()
        return _hosts.show(answers, expected, everything, as_json)
    if sources:
        if all_calls or any(value is not None for value in (*live, sample)):
            raise InputError(
                "--from reads files: leave out --pid, --unit, --dataset, "
                "--path, --seconds, --calls and --sample"
            )
        seen = read_files(sources, rules=rules, meaning=meaning, format=format_)
    else:
        if meaning or format_:
            raise InputError("--as and --format say what --from reads; name the file with --from")
        subject = choose(pid, unit, dataset, path)
        if all_calls and subject.by_files:
            raise InputError("--calls times all calls of processes: it goes with --pid or --unit")
        part = 1 if sample is None else parse_rate(sample)
        if part > _MOST:
            raise InputError(f"--sample: 1/{part} of the time is too little; 1/{_MOST} is the least")

        walked: tuple[float, Observation] | None = None

        def look(window: float | None = seconds, at_files: bool = not no_files) -> Observation:
            return _observe(subject, window, rules, all_calls, part, at_files, user, quiet=walked is not None)

        if metrics is not None and served:
            window = _hosts.SECONDS if seconds is None else seconds
            absent = ""

            def again() -> list[HostAnswer]:
                nonlocal subject, walked, absent
                if unit is not None:
                    # Its server may be stopped and started: what runs is asked for anew.
                    try:
                        subject = choose(unit=unit)
                    except InputError as error:
                        if absent != str(error):
                            output.note(f"{error}; its metrics go on once it runs")
                        absent = str(error)
                        return [HostAnswer(_here(), None, absent)]
                    absent = ""
                now = time.monotonic()
                if walked is None or now - walked[0] >= _FILES_S:
                    found = look(window)
                    walked = now, found
                else:
                    found = look(window, False).model_copy(update={"files": walked[1].files})
                # Ctrl-C ends a window, as does the end of a process: there is no next one.
                if found.seconds is not None and found.seconds < window - 1:
                    if pid is not None and not Path(f"/proc/{pid}").exists():
                        output.note(f"process {pid} has ended, and so do the metrics of it")
                    raise KeyboardInterrupt
                return [_answer(found)]

            return _hosts.watch(again, metrics, every, expected) or 0
        seen = look()
    found, open_ = findings(seen), undecided(seen)
    drifted = [] if expected is None else drifts(seen, expected)
    # Before anything is written: a disk that is full by now must not cost what was seen.
    if as_json:
        said = _json(seen, found, open_)
        output.print_json(said if expected is None else {**said, "drift": _hosts.drift_json(drifted)})
    else:
        if expected is not None:
            show_drift({seen.host or "this host": drifted}, expected.path, everything=True)
        observed_terminal.show(output.Console(), seen, found, open_, everything=everything)
    if save is not None:
        files.write(save, json.dumps(seen.to_json(), indent=1) + "\n")
    if out is not None:
        from ztune.report import observed_html  # here, as it takes Jinja

        files.write(out, observed_html.render(seen, found, open_))
    if metrics is not None:
        _hosts.watch(lambda: [_answer(seen)], metrics, every, expected)
    if not as_json:
        for written in (out, save):
            if written is not None:
                output.echo(str(written))
    return _hosts.exit_code([drifted], True)


def _here(name: str = "") -> ListedHost:
    named = name or os.uname().nodename
    return ListedHost(named, named, None)


def _answer(seen: Observation) -> HostAnswer:
    return HostAnswer(_here(seen.host or "this host"), seen)


def _refuse_with_hosts(*given: tuple[object, str]) -> None:
    for value, flag in given:
        if value:
            raise InputError(f"{flag} observes this host; --hosts asks others, so they don't go together")


def _json(seen: Observation, found: list[Finding], open_: list[Undecided]) -> dict[str, object]:
    return {
        "observation": seen.to_json(),
        "unknown_roles": unknown_roles(seen),
        "findings": [one.model_dump(mode="json") for one in found],
        "undecided": [one.model_dump(mode="json") for one in open_],
    }


def _observe(
    subject: ObservedSubject,
    seconds: float | None,
    rules: RoleRules,
    all_calls: bool,
    sample: int,
    look_at_files: bool,
    user: str | None,
    *,
    quiet: bool,
) -> Observation:
    """Observe with a view that refreshes on a terminal, else with a line each half minute; on stderr.

    ``quiet``: without these lines, which a log would have for each window of a day.
    """
    from ztune.observe.watch import watch  # here, as what others have seen is read without NumPy

    console = output.Console(stderr=True)
    if seconds is None and not console.is_terminal:
        seconds = _SECONDS
    with ExitStack() as stack:
        view = None
        if console.is_terminal:
            view = stack.enter_context(Live(console=console, auto_refresh=False, transient=True))
        said = -_LINE_S

        def say(text: str) -> None:
            nonlocal view
            if view is not None:
                view.stop()
                view = None
            if not quiet:
                console.print(f"ztune: {text}", highlight=False)

        def show(seen: Observation, passed: float) -> None:
            nonlocal said
            if view is not None:
                view.update(observed_terminal.live(console, seen, passed, seconds), refresh=True)
            elif not quiet and passed - said >= _LINE_S:
                said = passed
                of = f" of {seconds:.0f}" if seconds is not None else ""
                console.print(f"ztune: observing {subject.words}, {passed:.0f}{of} s", highlight=False)

        return watch(
            subject, seconds, rules, all_calls=all_calls, sample=sample, look_at_files=look_at_files,
            user=user, show=show, say=say,
        )  # fmt: skip
