"""``ztune claims``: what others published of databases on ZFS, and what replays and trials find of it."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.analysis import units
from ztune.claims import claim as known
from ztune.claims import verdict as verdicts
from ztune.claims.claim import Claim
from ztune.claims.conclusion import Tried, Word, cited, joined
from ztune.claims.measuring import Measurements, takes_trials
from ztune.claims.recordings import SECONDS, Recordings
from ztune.claims.replaying import PROFILES, Conditions, Hearing, Replays
from ztune.cli._live import LiveView
from ztune.cli._options import Blocks, argument, group, jobs_option, json_option, option, params_option, takes
from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.databases.workload import Workload
from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places import named as places
from ztune.runs import versions
from ztune.runs.named import resolve
from ztune.store.db import Store
from ztune.study import profiles
from ztune.study.layout import MAX_ARC, MIN_ARC
from ztune.trace.reader import Trace
from ztune.units import format_size, parse_size


@click.group("claims")
def command() -> None:
    """What others have claimed of databases on ZFS, each as a published sentence, and what holds of it here.

    \b
      ztune claims list
      ztune claims show guide-postgresql-8k
      ztune claims test guide-postgresql-8k

    docs/studies.md says how a verdict comes about.
    """


@command.command("list", short_help="The claims, and whether their own figures show them.")
@takes
def list_(as_json: bool = json_option) -> None:
    """List the claims: whether a claim's own figures show it, what came of its last test, and its sentence.

    \b
      ztune claims list
      ztune claims list --json
    """
    rows = [(claim, verdicts.last(claim)) for claim in known.every().values()]
    if as_json:
        output.print_json(
            [
                {**verdicts.described(c), **{key: None if v is None else v.get(key) for key in _LAST}}
                for c, v in rows
            ]
        )
        return
    for claim, last in rows:
        figures = f"own figures: {verdicts.described(claim)['supported']['word']}"
        tested = "not tested" if last is None else verdicts.word(last)
        _entry(f"{claim.id}: {tested}", claim.sentence, figures)
    output.echo("`ztune claims show CLAIM` says more; `ztune claims test CLAIM` tests one.")


_LAST = ("verdict", "hint", "says", "flips", "when", "gone")
"""What the list has of a claim's last verdict; ``show`` has all of it."""


@command.command("show", short_help="One claim, its layouts and figures, and its last verdict.")
@takes
def show(name: str = argument(metavar="CLAIM"), as_json: bool = json_option) -> None:
    """Show CLAIM: its source, its layouts with their published figures, and its last verdict.

    The verdict comes with each condition, and with the trials that it rests on.

    \b
      ztune claims show guide-postgresql-8k
      ztune claims show guide-postgresql-8k --json
    """
    claim = known.find(name)
    found = verdicts.last(claim)
    if as_json:
        output.print_json({**verdicts.described(claim), "last": found})
        return
    source = claim.source
    output.echo(f"{claim.id}: {claim.sentence}")
    output.echo(f"  source     {', '.join(filter(None, [source.author, source.title, str(source.year)]))}")
    for label, text in (
        ("where", claim.where), ("url", source.url), ("workload", claim.workload), ("doubt", claim.doubt),
        ("stand-in", claim.stand_in), ("no replay", known.replay_cannot(claim)),
    ):  # fmt: skip
        if text:
            output.echo(f"  {label:10} {text}")
    support = verdicts.described(claim)["supported"]
    output.echo(f"  figures    {support['word']}: {support['why']}")
    if claim.layouts:
        output.print_table(
            ("layout", "published", "differs in"),
            [
                (s.name, "" if s.figure is None else f"{s.figure:,g} {claim.unit}", _changes(s))
                for s in claim.layouts
            ],
        )
    if found is None:
        output.echo(f"`ztune claims test {claim.id}{_measured(claim)}` tests it.")
        return
    _fold(f"{verdicts.word(found)} ({found['when'][:10]}). {found['says']}")
    if found.get("gone"):
        gone = ", ".join(found["gone"])
        output.echo(
            f"Deleted since: {gone}. `ztune claims test {claim.id}{_measured(claim)}` makes its trials anew."
        )
    tried = [c for c in found["conditions"] if c["profile"]]
    if tried:
        output.print_table(
            ("how", "disks", "ARC", "OpenZFS", f"{claim.subject.name} over", "so it", "trials"),
            [
                (
                    _how(c), c["profile"], format_size(c["arc"]),
                    c["openzfs"],
                    ", ".join(f"{o} {_ratio(c, o)}" for o in c["ratios"]) or c["untried"],
                    _STATES[c["state"]], cited(c["trials"]),
                )
                for c in tried
            ],
        )  # fmt: skip
        output.echo("`ztune show RUN --trial N` shows the trial RUN/N.")


def _measured(claim: known.Claim) -> str:
    """Return the option without which ``claim`` can't be tested; empty for none."""
    return " --on mount" if takes_trials(claim) and known.replay_cannot(claim) else ""


def _changes(side: known.ComparedLayout) -> str:
    return ", ".join(f"{key}={value}" for key, value in {**side.set, **side.parameters}.items())


@command.command("test", short_help="Replay or run the claims' layouts, and say what holds.")
@takes
def test(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[CLAIM]..."),
    on: str | None = option(
        "--on",
        metavar="mount",
        help="Run the database's own job on the layouts as well, in real time, where a claim speaks of time "
        "or no replay answers.",
    ),
    often: Blocks = group("--on"),
    trace: Path | None = option(
        "--trace", metavar="TRACE", help="Replay this recording, and record nothing."
    ),
    openzfs: str | None = option(
        "--openzfs",
        metavar="VERSION,…",
        help="Replay with these versions of OpenZFS instead of this machine's. "
        "`ztune setup openzfs` brings a version.",
    ),
    disks: tuple[str, ...] = option(
        "--profile",
        metavar="NAME|FILE",
        help=f"Data disks to try. Repeatable; default: {', '.join(PROFILES)}; with --on the claim's own.",
    ),
    arcs: tuple[str, ...] = option(
        "--arc",
        metavar="SIZE",
        help="An ARC to try. Repeatable; default: a sixth of the data, at least 64M, and twice the data; "
        "with --on the claim's own.",
    ),
    seconds: int | None = option(
        "--seconds",
        type=click.IntRange(1, 86_400),
        metavar="S",
        help=f"How long a job runs that takes a time. [default: {SECONDS}]",
    ),
    params: dict[str, str] = params_option,
    jobs: int | None = jobs_option,
    as_json: bool = json_option,
) -> int:
    """Test each CLAIM (default: all) by replay, and say what holds of it.

    A claim's workload is recorded once for each set of its parameters. Its layouts are replayed on each of
    the disks with each ARC, as trials of ordinary runs. Claims that no replay can test are listed with the
    reason. Times are modelled from the disks' profiles.

    With `--on mount` the real database runs as well, on OpenZFS in user space in real time, block by block
    until the claim is told or --blocks is not enough; without CLAIM, of those claims alone that speak of time
    or that no replay answers. Measured time decides over modelled time of the same disks. Trials run with
    this machine's own OpenZFS.

    What is stored already is not run again, so a test which was cut goes on when it is called again. Each
    claim's verdict is kept as soon as it is there; another condition of the same job adds to it.

    \b
      ztune claims test guide-postgresql-8k
      ztune claims test oltp-log-pool --profile ssd-sata --arc 64M --arc 1G
      ztune claims test guide-postgresql-32k --on mount
      ztune claims test guide-postgresql-8k --openzfs 2.1,2.4
      ztune claims test guide-postgresql-8k --trace my.trace
      ztune claims test -p scale=10 --seconds 30

    Exit code 1 if a recording, a replay or a trial failed; the others are compared all the same.
    """
    claims = [known.find(name) for name in dict.fromkeys(names)] or list(known.every().values())
    if on is not None and not names:
        claims = [claim for claim in claims if takes_trials(claim)]
    for profile in disks:
        profiles.find(profile)
    sizes = tuple(map(_arc, arcs))
    if trace is not None and (params or seconds is not None or on is not None):
        raise InputError(
            "--trace is replayed as it is; --on runs the claim's own job" if on is not None else
            f"--trace is replayed as it is; {'-p' if params else '--seconds'} is for recording"
        )  # fmt: skip
    if on not in (None, "mount"):
        raise InputError(f'--on is "{on}"; claims are tried on a mount: --on mount')
    _check_params(claims, params)
    own = [engines.check()] if openzfs is None else versions.asked(openzfs)
    with Store.open() as store:
        given = None if trace is None else resolve(str(trace), "trace", store=store)
        hearing = Hearing(LiveView, lambda text: output.echo(text, err=True))
        recordings = Recordings(_record, params, seconds, given)
        words = ["ztune", *sys.argv[1:]]
        measurements = None
        if on is not None:
            place = places.make(on, None)
            measurements = Measurements(
                store, place, recordings, hearing, often.options(settle="cold"), disks, sizes, words
            )
            measurements.check()
        conditions = Conditions(
            disks or PROFILES, sizes, jobs or 0, () if measurements is None else disks or (None,)
        )
        replays = [Replays(store, engine, recordings, conditions, hearing, words) for engine in own]
        job = {"params": params, "seconds": seconds, "trace": None if given is None else given.sha}
        pace = _Pace(len(claims))
        said: list[dict[str, Any]] = []
        # Of before: what this test adds is cited by no verdict yet.
        runs = {run.id: run for run in store.runs()}
        try:
            for number, claim in enumerate(claims, 1):
                pace.begin(number, claim.id)
                tried = _tried(claim, replays, measurements)
                stands = verdicts.before(claim, job, runs, own[0].version)
                one = verdicts.verdict(claim, joined(tried, stands), job)
                verdicts.keep(one)
                said.append(one)
                if not as_json:
                    _print(one)
                    if one["verdict"] == Word.CANNOT and measurements is None and takes_trials(claim):
                        output.echo(f"  `ztune claims test {claim.id}{_measured(claim)}` measures it.")
        except KeyboardInterrupt:
            output.echo("What is done is kept; the same command goes on from there.", err=True)
            raise
    if as_json:
        output.print_json(said)
    else:
        _fold(
            "Replayed times are modelled from the disks' profiles. What does not hold here may have held "
            "there and then. `ztune claims show CLAIM` says what a verdict rests on."
        )
    return 1 if any(c["failed"] for one in said for c in one["conditions"]) else 0


def _tried(claim: Claim, replays: Sequence[Replays], measurements: Measurements | None) -> tuple[Tried, ...]:
    """Try the claim by replay with each version of OpenZFS, and in real time if it is asked for."""
    found: list[Tried] = []
    for replay in replays:
        (tried,) = replay.test([claim]).values()
        # What no replay can tell is said once, whatever the version.
        if not found or any(each.condition.profile for each in tried):
            found += tried
    if measurements is not None and takes_trials(claim):
        found += measurements.test(claim)
    return tuple(found)


class _Pace:
    """Says which claim of how many is tried, and about how long the others take."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = time.monotonic()
        self._took: list[float] = []

    def begin(self, number: int, claim: str) -> None:
        """Say that claim ``number`` of all begins; none where there is but one."""
        now = time.monotonic()
        if number > 1:
            self._took.append(now - self._began)
        self._began = now
        # Those that the store had tell nothing of the others.
        slow = [seconds for seconds in self._took if seconds > _STORED_S]
        left = (
            f", about {units.seconds(sum(slow) / len(slow) * (self._total - number + 1))} left"
            if slow
            else ""
        )
        if self._total > 1:
            output.echo(f"claim {number} of {self._total}, {claim}{left}", err=True)


_STATES = {"holds": "holds", "fails": "does not", "open": "too small to tell", "untried": ""}
_STORED_S = 2.0
"""What a claim takes whose trials are all in the store, at most."""


def _record(workload: Workload, out: Path) -> Trace:
    output.echo(f"record {workload.name}", err=True)
    return record_workload(workload, "auto", out)


def _arc(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InputError(f"--arc {text}: {error}") from None
    if not MIN_ARC <= size <= MAX_ARC:
        raise InputError(
            f"--arc {text}: {format_size(MIN_ARC)} is the least, and {format_size(MAX_ARC)} the most"
        )
    return size


def _check_params(claims: list[Claim], params: dict[str, str]) -> None:
    """Raise InputError for a parameter that no workload of ``claims`` has, or a value that it can't have."""
    workloads = {claim.workload for claim in claims if not claim.cannot}
    taken = {name: set(registry.get(name).Parameters.model_fields) for name in sorted(workloads)}
    for param in params:
        if not any(param in fields for fields in taken.values()):
            raise InputError(f"-p {param}: no parameter of {', '.join(taken) or 'any workload here'}")
    for name, fields in taken.items():
        registry.make(name, {param: value for param, value in params.items() if param in fields})


def _print(one: dict[str, Any]) -> None:
    """Print what was found of a claim."""
    lines = []
    for how in ("measured", "replayed"):
        tried = [c for c in one["conditions"] if c["ratios"] and _how(c) == how]
        others = dict.fromkeys(other for c in tried for other in c["ratios"])
        for other in others:
            ratios = [c for c in tried if other in c["ratios"]]
            text = (
                _ratio(ratios[0], other) if len(ratios) == 1 else _range([c["ratios"][other] for c in ratios])
            )
            lines.append(f"{text} of {other}, {how}")
    tried = [c for c in one["conditions"] if c["ratios"]]
    telling = one["verdict"] in (Word.CANNOT, Word.TOO_SMALL) or not tried
    asked = sum(bool(c["profile"]) for c in one["conditions"])
    lines.append(one["flips"] or (one["says"] if telling else _count(len(tried), asked)))
    if not telling:
        lines += dict.fromkeys(
            f"{'failed' if c['failed'] else f'not {_how(c)}'}: {c['untried']}"
            for c in one["conditions"]
            if c["untried"]
        )
    lines += one["disagree"]
    _entry(f"{one['claim']}: {verdicts.word(one)}", *lines)


def _how(condition: dict[str, Any]) -> str:
    # Verdicts of before trials in real time were replayed.
    return "measured" if condition.get("measured") else "replayed"


def _entry(head: str, *lines: str) -> None:
    """Print a head and lines below it, folded to the terminal's width."""
    _fold(head)
    for line in lines:
        _fold(line, "  ")


def _fold(text: str, indent: str = "") -> None:
    """Print a text, folded to the terminal's width."""
    width = output.wide(otherwise=110).width
    hanging = indent and f"{indent}  "
    output.echo(
        textwrap.fill(text, width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)
    )


def _count(tried: int, asked: int) -> str:
    if tried < asked:
        return f"{tried} of {asked} conditions"
    return "the one condition tried" if tried == 1 else f"all {tried} conditions"


def _ratio(condition: dict[str, Any], other: str) -> str:
    """Return the ratio to ``other`` with its interval, where it has one."""
    text = f"×{_number(condition['ratios'][other])}"
    low, high = condition.get("intervals", {}).get(other, (None, None))
    return text if low is None else f"{text} ({low:.2f} … {_number(high)})"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.2f}"


def _range(values: list[float | None]) -> str:
    """Return the least and the greatest of ``values``; None is beyond all numbers."""
    order = sorted(values, key=lambda v: float("inf") if v is None else v)
    low, high = _number(order[0]), _number(order[-1])
    return f"×{low}" if low == high else f"×{low}…{high}"
