"""``ztune claims``: what others published of databases on ZFS, and what replays find of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.claims import claim as known
from ztune.claims import verdict as verdicts
from ztune.claims.claim import Claim
from ztune.claims.conclusion import Word
from ztune.claims.recordings import SECONDS, Recordings
from ztune.claims.replaying import PROFILES, Conditions, Hearing, Replays
from ztune.cli._live import LiveView
from ztune.cli._options import argument, jobs_option, json_option, option, params_option, takes
from ztune.cli._recording import record_workload
from ztune.databases import registry
from ztune.errors import InputError
from ztune.places import engine as engines
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
            [{**verdicts.described(c), "verdict": None if v is None else v["verdict"]} for c, v in rows]
        )
        return
    output.print_table(
        ("claim", "own figures", "last verdict", "sentence"),
        [
            (c.id, verdicts.described(c)["supported"]["word"], "" if v is None else v["verdict"], c.sentence)
            for c, v in rows
        ],
    )


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
        output.echo(f"`ztune claims test {claim.id}` tests it.")
        return
    output.echo(f"{found['verdict']} ({found['when'][:10]}). {found['says']}")
    tried = [c for c in found["conditions"] if c["profile"]]
    if tried:
        output.print_table(
            ("disks", "ARC", "OpenZFS", f"{claim.subject.name} over", "", "trials"),
            [
                (
                    c["profile"], format_size(c["arc"]), c["openzfs"],
                    ", ".join(f"{o} ×{_number(r)}" for o, r in c["ratios"].items()) or c["untried"],
                    c["state"], ", ".join(c["trials"]),
                )
                for c in tried
            ],
        )  # fmt: skip
        output.echo("`ztune show RUN --trial N` shows the trial RUN/N.")


def _changes(side: known.ComparedLayout) -> str:
    return ", ".join(f"{key}={value}" for key, value in {**side.set, **side.parameters}.items())


@command.command("test", short_help="Replay the claims' layouts, and say what holds.")
@takes
def test(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[CLAIM]..."),
    trace: Path | None = option(
        "--trace", metavar="TRACE", help="Replay this recording, and record nothing."
    ),
    disks: tuple[str, ...] = option(
        "--profile",
        metavar="NAME|FILE",
        help=f"Data disks to try. Repeatable; default: {', '.join(PROFILES)}.",
    ),
    arcs: tuple[str, ...] = option(
        "--arc",
        metavar="SIZE",
        help="An ARC to try. Repeatable; default: a sixth of the data, at least 64M, and twice the data.",
    ),
    seconds: int | None = option(
        "--seconds",
        type=click.IntRange(1, 86_400),
        metavar="S",
        help=f"How long a job runs that takes a time, where it is recorded. [default: {SECONDS}]",
    ),
    params: dict[str, str] = params_option,
    jobs: int | None = jobs_option,
    as_json: bool = json_option,
) -> int:
    """Test each CLAIM (default: all) by replay, and say what holds of it.

    A claim's workload is recorded once for each set of its parameters. Its layouts are replayed on each of
    the disks with each ARC, as trials of ordinary runs; what is stored already is not replayed again, so
    that a test which was cut goes on when it is called again. Claims that no replay can test are listed with
    the reason. Times are modelled from the disks' profiles.

    \b
      ztune claims test guide-postgresql-8k
      ztune claims test oltp-log-pool --profile ssd-sata --arc 64M --arc 1G
      ztune claims test guide-postgresql-8k --trace my.trace
      ztune claims test -p scale=10 --seconds 30

    Exit code 1 if some layouts failed; the others are compared all the same.
    """
    claims = [known.find(name) for name in dict.fromkeys(names)] or list(known.every().values())
    for profile in disks:
        profiles.find(profile)
    conditions = Conditions(disks or PROFILES, tuple(map(_arc, arcs)), jobs or 0)
    if trace is not None and (params or seconds is not None):
        raise InputError(f"--trace is replayed as it is; {'-p' if params else '--seconds'} is for recording")
    _check_params(claims, params)
    with Store.open() as store:
        given = None if trace is None else resolve(str(trace), "trace", store=store)
        hearing = Hearing(LiveView, lambda text: output.echo(text, err=True))
        recordings = Recordings(_record, params, seconds, given)
        replays = Replays(store, engines.check(), recordings, conditions, hearing, ["ztune", *sys.argv[1:]])
        try:
            found = replays.test(claims)
        except KeyboardInterrupt:
            output.echo("What is done is kept; the same command goes on from there.", err=True)
            raise
    said = [verdicts.verdict(claim, found[claim.id]) for claim in claims]
    for one in said:
        verdicts.keep(one)
    if as_json:
        output.print_json(said)
    else:
        _print(said)
    return 1 if any(c["profile"] and c["untried"] for one in said for c in one["conditions"]) else 0


def _record(workload: Any, out: Path) -> Trace:
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


def _print(said: list[dict[str, Any]]) -> None:
    """Print a line for each claim."""
    rows = []
    for one in said:
        tried = [c for c in one["conditions"] if c["ratios"]]
        others = tried[0]["ratios"] if tried else ()
        ratios = {other: [c["ratios"][other] for c in tried] for other in others}
        telling = one["verdict"] in (Word.CANNOT, Word.TOO_SMALL) or not tried
        where = one["flips"] or (one["says"] if telling else _count(len(tried), len(one["conditions"])))
        over = ", ".join(f"{_range(values)} {other}" for other, values in ratios.items())
        rows.append((one["claim"], one["verdict"], over, where))
    output.print_table(("claim", "verdict", "its layout over the others", "where"), rows)
    output.echo(
        "Times are modelled from the disks' profiles. `ztune claims show CLAIM` says what it rests on."
    )


def _count(tried: int, asked: int) -> str:
    if tried < asked:
        return f"{tried} of {asked} conditions"
    return "the one condition tried" if tried == 1 else f"all {tried} conditions"


def _number(value: float | None) -> str:
    return "∞" if value is None else f"{value:.2f}"


def _range(values: list[float | None]) -> str:
    """Return the least and the greatest of ``values``; None is beyond all numbers."""
    order = sorted(values, key=lambda v: float("inf") if v is None else v)
    low, high = _number(order[0]), _number(order[-1])
    return f"×{low}" if low == high else f"×{low}…{high}"
