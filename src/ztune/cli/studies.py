"""``ztune studies``: the published studies run again by replay, and one page of what was found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ztune import files, output
from ztune.claims import found, study_trials
from ztune.claims import studies as known
from ztune.claims.recordings import SECONDS, Recordings
from ztune.claims.replaying import NOT_YET, Conditions, Hearing, Replays
from ztune.claims.studies import SWEEP, PublishedStudy
from ztune.claims.study_trials import StudyTrials
from ztune.cli._live import LiveView
from ztune.cli._options import argument, jobs_option, json_option, option, params_option, takes
from ztune.cli._recording import record_workload
from ztune.cli._waiting import waiting
from ztune.databases import registry
from ztune.databases.workload import Workload
from ztune.errors import InputError, ZtuneError
from ztune.onhost.fields import to_json
from ztune.places import engine as engines
from ztune.report import studies_html
from ztune.store.db import Store
from ztune.trace.reader import Trace
from ztune.units import counted

_FILE = click.Path(path_type=Path, dir_okay=False)
_seconds = option(
    "--seconds",
    type=click.IntRange(1, 86_400),
    metavar="S",
    help=f"How long a job runs that takes a time, where it is recorded. [default: {SECONDS}]",
)


@click.group("studies")
def command() -> None:
    """The studies that others published of databases on ZFS, run again by replay, on one page.

    \b
      ztune studies list
      ztune studies run mongo-restore
      ztune studies page --out studies.html

    docs/studies.md has what was found, and says how.
    """


@command.command("list", short_help="The studies, and how much of each is run.")
@takes
def list_(as_json: bool = json_option) -> None:
    """List the studies: how many layouts each asks for, how many were replayed, and when.

    \b
      ztune studies list
      ztune studies list --json
    """
    rows = [_row(known.find(name), study_trials.last(name)) for name in known.names()]
    if as_json:
        output.print_json(rows)
        return
    output.print_table(
        ("study", "year", "layouts", "run", "last run", "title"),
        [
            (r["study"], *(str(r[key]) for key in ("year", "layouts", "run")), r["when"][:10], r["title"])
            for r in rows
        ],
    )


def _row(study: PublishedStudy, kept: StudyTrials | None) -> dict[str, Any]:
    trials = () if kept is None else kept.trials
    run = {each.name for each in trials if each.trial}
    return {
        "study": study.name,
        "title": study.publication.title,
        "year": study.publication.year,
        "layouts": len(study.layouts),
        "run": sum(each.name in run for each in study.layouts),
        "left": [each.name for each in study.layouts if each.name not in run],
        "when": "" if kept is None else kept.when,
        "openzfs": "" if kept is None else kept.openzfs,
    }


@command.command("run", short_help="Record the studies' jobs, and replay their layouts.")
@takes
def run(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[STUDY]..."),
    seconds: int | None = _seconds,
    params: dict[str, str] = params_option,
    jobs: int | None = jobs_option,
    as_json: bool = json_option,
) -> int:
    """Run each STUDY (default: all) again: record its jobs, and replay its layouts.

    The layouts are those with a published figure, those of the ready study, and for each job nine record
    sizes from 4K to 1M. Each is replayed on the study's own disks with its own ARC, as a trial of an ordinary
    run. What is stored already is neither recorded nor replayed again, so that the same command goes on after
    a cut.

    \b
      ztune studies run
      ztune studies run mongo-restore oltp --jobs 2
      ztune studies run mongo-restore -p size=cached

    Exit code 1 if a study, or one of its layouts, could not be run; the others are run all the same.
    """
    chosen = [known.find(name) for name in dict.fromkeys(names or known.names())]
    _check_params(chosen, params)
    engine = engines.check()
    ended: list[tuple[PublishedStudy, StudyTrials | None, str]] = []
    with Store.open() as store:
        hearing = Hearing(LiveView, lambda text: output.echo(text, err=True))
        for study in chosen:
            recordings = Recordings(_record, params, seconds)
            replays = Replays(
                store, engine, recordings, Conditions(jobs=jobs or 0), hearing, ["ztune", *sys.argv[1:]]
            )
            sizes = f"{len(SWEEP)} record sizes for each job"
            output.echo(f"{study.name}: {counted(len(study.layouts), 'layout')}, and {sizes}", err=True)
            try:
                ended.append((study, study_trials.run(study, replays), ""))
            except KeyboardInterrupt:
                output.echo("What is done is kept; the same command goes on from there.", err=True)
                raise
            except ZtuneError as error:
                ended.append((study, None, str(error)))
    said = [_said(study, kept, why) for study, kept, why in ended]
    if as_json:
        output.print_json(said)
    else:
        _print(said)
    return 0 if all(each["run"] == each["layouts"] for each in said) else 1


def _record(workload: Workload, out: Path) -> Trace:
    output.echo(f"record {workload.name}", err=True)
    return record_workload(workload, "auto", out)


def _check_params(chosen: list[PublishedStudy], params: dict[str, str]) -> None:
    """Raise InputError for a parameter that no job of ``chosen`` has, or a value that it can't have."""
    workloads = sorted({each.workload for study in chosen for each in study.layouts})
    taken = {name: set(registry.get(name).Parameters.model_fields) for name in workloads}
    for param in params:
        if not any(param in fields for fields in taken.values()):
            raise InputError(f"-p {param}: no parameter of {', '.join(workloads)}")
    for name, fields in taken.items():
        registry.make(name, {param: value for param, value in params.items() if param in fields})


def _said(study: PublishedStudy, kept: StudyTrials | None, why: str) -> dict[str, Any]:
    trials = () if kept is None else kept.trials
    reasons: dict[str, int] = {}
    for each in trials:
        if not each.trial:
            reasons[each.why] = reasons.get(each.why, 0) + 1
    return {
        "study": study.name,
        "layouts": len(trials) or len(study.layouts),
        "run": 0 if kept is None else kept.done,
        "not_run": [{"why": reason, "layouts": n} for reason, n in reasons.items()]
        or ([{"why": why, "layouts": len(study.layouts)}] if why else []),
        "trials": {each.name: each.trial for each in trials if each.trial},
    }


def _print(said: list[dict[str, Any]]) -> None:
    for each in said:
        output.echo(f"{each['study']}: {each['run']} of {each['layouts']} layouts replayed")
        for left in each["not_run"]:
            output.echo(f"  {left['layouts']} not: {left['why'] or NOT_YET}")
    output.echo("`ztune studies page --out studies.html` shows them beside the published figures.")


@command.command("page", short_help="Write the page of the studies from what is stored.")
@takes
def page(
    out: Path | None = option(
        "--out", type=_FILE, metavar="FILE", help="Where to write the page. [default: studies.html]"
    ),
    found_file: Path | None = option(
        "--found", type=_FILE, metavar="FILE", help="Write what was found as JSON, and no page unless --out."
    ),
    as_json: bool = json_option,
) -> None:
    """Write one HTML page: each study's published tables beside ours, charts, verdicts, and rules of thumb.

    It reads stored trials and the last verdicts, and runs nothing. The page loads nothing from the network.
    --found writes what it shows as a small file; the tables in docs/studies.md are made from such a file.

    \b
      ztune studies page --out studies.html
      ztune studies page --json
      ztune studies page --found docs/studies-found.json
    """
    for path in (out, found_file):
        if path is not None:
            files.check(path)
    with Store.open() as store, waiting("reading the trials"):
        what = found.read(store)
    if found_file is not None:
        found.write(found_file, what)
    if out is None and found_file is None and not as_json:
        out = Path("studies.html")
        files.check(out)
    if out is not None:
        with waiting("making the page"):
            files.write(out, studies_html.render(what))
    if as_json:
        output.print_json(to_json(what))
        return
    for path in filter(None, (out, found_file)):
        output.echo(str(path))
