"""``ztune observe --hosts``: asks many hosts at once, and prints one table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from ztune import files, output
from ztune.advice.findings import findings
from ztune.cli._options import file_option, option
from ztune.cli._values import FiniteRange
from ztune.hosts.asking import AT_A_TIME, TIMEOUT_S, HostAnswer, ask_all
from ztune.hosts.drift import Drift, ExpectedLayout, drifts
from ztune.hosts.listed import ListedHost
from ztune.hosts.ranked import ranked
from ztune.report import hosts as view
from ztune.trace.roles import RoleRules
from ztune.units import counted

EVERY_S = 60
SECONDS = 10.0
"""Two transaction groups at their default interval of 5 s."""
_LINE_S = 30.0
DRIFTED, NOT_ASKED = 1, 3


@dataclasses.dataclass(frozen=True)
class HostsOptions:
    """What goes with --hosts."""

    at_a_time: int = option(
        "--at-a-time",
        type=click.IntRange(1, 1000),
        default=AT_A_TIME,
        help="How many hosts are asked at once.",
    )
    timeout: float = option(
        "--timeout",
        type=FiniteRange(min=1, max=3600),
        default=TIMEOUT_S,
        help="Seconds that a host has to answer, beside the window; then it is left out, and that is said.",
    )


def ask(
    hosts: Sequence[ListedHost],
    seconds: float | None,
    options: HostsOptions,
    rules: RoleRules,
    expected: ExpectedLayout | None,
) -> list[HostAnswer]:
    """Ask every host, with a line on stderr that says how far it is."""
    console = output.Console(stderr=True)
    window = SECONDS if seconds is None else seconds
    words = f"asking {counted(len(hosts), 'host')}, {options.at_a_time} at a time, {window:g} s on each"
    done = silent = 0
    said = time.monotonic()
    with console.status(words) as status:
        if not console.is_terminal:
            console.print(f"ztune: {words}", highlight=False)

        def told(answer: HostAnswer) -> None:
            nonlocal done, silent, said
            done, silent = done + 1, silent + (answer.seen is None)
            text = f"{done} of {counted(len(hosts), 'host')} asked, {silent} without an answer"
            status.update(output.Text(text))
            if not console.is_terminal and time.monotonic() - said >= _LINE_S:
                said = time.monotonic()
                console.print(f"ztune: {text}", highlight=False)

        return ask_all(
            hosts,
            window,
            datasets=sorted(set(expected.names.values())) if expected else (),
            at_a_time=options.at_a_time,
            timeout=options.timeout,
            rules=rules,
            told=told,
        )


def show(
    answers: Sequence[HostAnswer], expected: ExpectedLayout | None, everything: bool, as_json: bool
) -> int:
    """Print what was found, and return the exit code."""
    rows = ranked(answers)
    drifted = {
        answer.host.name: drifts(answer.seen, expected)
        for answer in answers
        if expected is not None and answer.seen is not None
    }
    if as_json:
        output.print_json({
            "format": "ztune-hosts",
            "version": 1,
            "hosts": [_host(answer, drifted.get(answer.host.name), expected) for answer in answers],
            "findings": [
                {"hosts": list(row.hosts), "about": row.about, **row.finding.to_json()} for row in rows
            ],
        })  # fmt: skip
    else:
        if expected is not None:
            view.show_drift(drifted, expected.path, everything=everything)
        view.show(answers, rows, everything=everything)
    return exit_code(drifted.values(), all(answer.seen is not None for answer in answers))


def exit_code(drifted: Iterable[Sequence[Drift]], all_answered: bool) -> int:
    """Return 1 where something has drifted, 3 where a host could not be asked, else 0."""
    if any(drifted):
        return DRIFTED
    return 0 if all_answered else NOT_ASKED


def listens(where: str) -> bool:
    """Return whether ``where``, of --metrics, is a port to serve them at, not a file."""
    from ztune.hosts.metrics import address  # see ``watch``

    return address(where) is not None


def watch(
    answers: Callable[[], Sequence[HostAnswer]],
    where: str,
    every: float | None,
    expected: ExpectedLayout | None,
) -> int | None:
    """Write metrics of what ``answers`` returns to a file once, or serve them until Ctrl-C.

    Returns the exit code, None where metrics were written and there is more to print. ``every``: seconds from
    one beginning to the next, default ``EVERY_S``.
    """
    from ztune.hosts.metrics import ObservedMetrics, address  # here, as it takes prometheus_client

    metrics = ObservedMetrics(expected)
    listen = address(where)
    if listen is None:
        metrics.take(answers())
        # What a textfile collector takes ends so, and is the older text.
        files.write(Path(where), metrics.text(plain=where.endswith(".prom")))
        return None
    server = metrics.serve(listen)
    shown = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
    output.note(f"metrics at http://{shown}:{listen[1]}/metrics until Ctrl-C")
    try:
        while True:
            began = time.monotonic()
            metrics.take(answers())
            time.sleep(max(0.0, began + (every or EVERY_S) - time.monotonic()))
    except KeyboardInterrupt:
        return 0
    finally:
        server.shutdown()
        server.server_close()


def drift_json(found: Sequence[Drift]) -> list[dict[str, str]]:
    """Return drifts as JSON values."""
    return [dataclasses.asdict(one) for one in found]


def _host(answer: HostAnswer, drifted: list[Drift] | None, expected: ExpectedLayout | None) -> dict[str, Any]:
    seen = answer.seen
    said: dict[str, Any] = {"host": answer.host.name, "asked": seen is not None}
    if seen is None:
        return {**said, "why": answer.why}
    said |= {
        "observation": seen.to_json(),
        "findings": [one.to_json() for one in findings(seen)],
    }
    return said if expected is None else {**said, "drift": drift_json(drifted or [])}


metrics_option = option(
    "--metrics",
    metavar="FILE|[ADDRESS]:PORT",
    help="Write OpenMetrics to FILE (to one that ends in .prom what textfile collectors read), or serve them "
    "at PORT until Ctrl-C: on loopback, unless an address says otherwise.",
)
all_option = option(
    "--all",
    help="All that was seen: findings with their evidence, tables, distributions; with --hosts all findings "
    "and all hosts, in whole sentences.",
)
every_option = option(
    "--every",
    type=FiniteRange(min=1, max=86_400),
    help=f"With --metrics :PORT: seconds from the beginning of one window to the next. Default: {EVERY_S}.",
)
dashboard_option = option(
    "--dashboard", is_flag=True, help="Print a Grafana dashboard for what --metrics tells, as JSON, and end."
)
hosts_option = file_option(
    "--hosts",
    "Ask the hosts that FILE lists, one on each line as ssh takes it, instead of this one.",
)
expect_option = file_option(
    "--expect",
    "Say what differs from this recommendation (`ztune recommend --json`, `ztune apply --export json`); "
    "exit code 1 if anything does.",
)
