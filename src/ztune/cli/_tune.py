"""The steps of ``ztune tune``: run the workload, record, screen, measure if asked, recommend, write files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import click

from ztune import files, output, paths
from ztune.advice.commands import script
from ztune.advice.model import Recommendation
from ztune.analysis.standing import standing
from ztune.cli._live import LiveView
from ztune.cli._options import (
    advice_option,
    arc_option,
    argument,
    budget_option,
    cores_option,
    elsewhere_option,
    have_option,
    jobs_option,
    option,
    params_option,
    processor_option,
    profile_option,
    seed_option,
)
from ztune.cli._processors import on_host
from ztune.cli._recording import record_jobs, record_workload
from ztune.cli._screening import say_advice, say_notes
from ztune.cli._waiting import waiting
from ztune.cli.screen import ranking_json
from ztune.databases import database, memory, registry
from ztune.databases.database import Offer
from ztune.databases.workload import Workload
from ztune.errors import InputError, ZtuneError
from ztune.places import engine as engines
from ztune.places.channel import Place
from ztune.places.engine import Engine
from ztune.places.users_host import UsersHost
from ztune.report import html, source
from ztune.report import measured as reports
from ztune.runs import offered as of_run
from ztune.runs import offers, recordings, runner, screening
from ztune.runs.asked import have_of, study_for, study_of_jobs, suited, with_advice
from ztune.runs.offered import OfferedSettings
from ztune.runs.options import DEFAULT_BUDGET, ScreenOptions, TrialOptions
from ztune.runs.plan import workload_job
from ztune.runs.recordings import varied
from ztune.store.db import Store
from ztune.store.records import Run
from ztune.study import Study, advised, profiles, ready
from ztune.study.hardware import parse_have
from ztune.trace.reader import Trace
from ztune.trace.recorders import choose


@dataclass(frozen=True)
class TuneOptions:
    """What the user asked ``ztune tune`` for, beside trials."""

    workload: str = argument()
    params: dict[str, str] = params_option
    out: Path | None = option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where report.html, apply.sh and run.json go. Default: ztune-WORKLOAD here.",
    )
    study: str | None = option(
        "--study",
        metavar="FILE|NAME",
        help="The layouts to try: a TOML file or a ready study. Default: the workload's own.",
    )
    profile: str | None = profile_option
    advice: tuple[str, ...] = advice_option
    arc: str | None = arc_option
    budget: int | None = budget_option
    jobs: int | None = jobs_option
    seed: int | None = seed_option
    recorder: Literal["auto", "ebpf", "strace"] = option(
        "--recorder", default="auto", help="How to record; auto takes eBPF where it is allowed."
    )
    have: tuple[str, ...] = have_option
    cores: int | None = cores_option
    processor: str | None = processor_option
    settings: int | None = option(
        "--settings",
        type=click.IntRange(0, 10),
        metavar="N",
        help="The most settings of the database itself that are tried, such as full_page_writes=off: on top "
        "of the layout found, each with a recording of its own. Default 1; none with --study.",
    )
    no_elsewhere: bool = elsewhere_option

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return self.out or Path(f"ztune-{self.workload}")


@dataclass(frozen=True)
class Trying:
    """Where layouts are measured, which is not yet up; how many of them at most, and how."""

    place: Place
    top: int
    options: TrialOptions


@dataclass(frozen=True)
class Tuned:
    """What came of it. ``failed``: how many layouts and trials failed, or left something behind; each was
    named when it did.

    ``decides``: the run that ``recommendation`` is of: the measured one where there is one with an answer.
    """

    run_id: str
    trace: Path
    recommendation: Recommendation
    failed: int
    decides: source.RunEvidence
    measured: source.RunEvidence | None = None


def tune(asked: TuneOptions, trying: Trying | None) -> Tuned:
    """Do the whole loop, with trials if they are asked for. Files appear in ``asked.folder`` only at the end,
    all of them.

    Raises InputError, MissingError, ZtuneError; KeyboardInterrupt after everything was cleaned up.
    """
    parameters = {**_memory(asked), **_study_parameters(asked), **asked.params}
    workload = registry.make(asked.workload, parameters)
    _check_early(asked, trying, workload)
    several = _several(asked, parameters)
    engine = engines.check()
    options = ScreenOptions(
        jobs=asked.jobs or 0, budget=asked.budget or DEFAULT_BUDGET, seed=asked.seed,
        elsewhere=not asked.no_elsewhere,
    )  # fmt: skip
    options = on_host(options, engine, asked.cores, asked.processor)
    try:
        made_out = files.make_folder(asked.folder)
    except OSError as error:
        raise InputError(f"can't make the folder {asked.folder}: {error.strerror}") from None
    done = False
    try:
        # Kept with the results: a run whose trace is gone could not be repeated.
        if several is not None:
            trace, others = record_jobs(several, asked.workload, parameters, asked.recorder, options.budget)
            study = suited(several, trace, None, None)
        else:
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
            path = paths.traces() / f"{asked.workload}-{stamp}.trace"
            trace, others = record_workload(workload, asked.recorder, path), {}
            study = study_for(trace, asked.study, asked.profile, asked.arc)
        study = say_advice(with_advice(study, asked.advice, trace))
        have, unused = have_of(asked.have, study)
        options = replace(options, have=have)
        say_notes(study, options.budget, unused)
        offered = [] if several is not None else offers.of_workload(asked.workload, parameters)
        limit = (0 if asked.study else 1) if asked.settings is None else asked.settings
        _say_offers(asked, offered, limit)
        with Store.open() as store:
            with LiveView() as live:
                run = screening.start(
                    store, trace, study, engine, options,
                    kind="tune", command=["ztune", *sys.argv[1:]], observer=live, others=others,
                )  # fmt: skip
            if offered and limit:
                _write(asked, run.id, trace.path, store, None)  # what was found is there, whatever comes now
                done = True
                run = _try_offers(offered, limit, asked, parameters, store, run, trace, engine, options)
            elif offered:
                waiting = OfferedSettings(waiting=tuple(map(offers.words, offered)))
                run = _note_offers(store, run, waiting)
            measured = None
            if trying is not None:
                # The screening's files are there whatever comes of the trials.
                _write(asked, run.id, trace.path, store, None)
                done = True
                measured = _measure(trying, asked.seed, workload, run, store)
            outcome = _write(asked, run.id, trace.path, store, measured)
        done = True
        return outcome
    finally:
        if made_out and not done:
            with suppress(OSError):  # not empty: somebody has put something there meanwhile
                asked.folder.rmdir()


def _say_offers(asked: TuneOptions, offered: Sequence[Offer], limit: int) -> None:
    """Say what the settings of the database will cost, before it does."""
    if offered and limit:
        count = min(limit, len(offered))
        more = "another recording" if count == 1 else f"up to {count} more recordings"
        names = " or ".join(offers.words(one) for one in offered[:count])
        said = f"at the end {names} is tried on top of the layout found"
        output.note(f"{said}, which takes {more}; --settings 0 leaves it out")
    elif asked.settings:
        said = f"no setting of its database is known to be worth trying for {asked.workload}"
        output.note(f"{said} as it is set, or its study varies them")


def _try_offers(
    offered: Sequence[Offer],
    limit: int,
    asked: TuneOptions,
    parameters: Mapping[str, Any],
    store: Store,
    run: Run,
    trace: Trace,
    engine: Engine,
    options: ScreenOptions,
) -> Run:
    """Try the settings ``offered``, each on top of what is best by then, ``limit`` of them at most. One that
    fails is left out, and why is kept.
    """
    tried: list[str] = []
    left_out: dict[str, str] = {}
    waiting: list[str] = []
    for offer in offered:
        text = offers.words(offer)
        best = screening.chosen(store, run)
        if best is None:
            break
        layout, why = offers.on_top(run.resolved_study, best, offer)
        if why:
            left_out[text] = why
        elif len(tried) >= limit:
            waiting.append(text)
        else:
            output.echo(f"setting {len(tried) + 1} of at most {limit}: {text}", err=True)
            try:
                recording = recordings.recorded(
                    asked.workload, parameters, layout.database, recordings.PREFIX,
                    lambda made, path: record_workload(made, asked.recorder, path),
                )  # fmt: skip
                with LiveView() as live:
                    run = screening.on_top(
                        store, run, trace, layout, recording, engine, options, observer=live
                    )
                tried.append(text)
            except ZtuneError as error:  # the answer without it stands
                left_out[text] = str(error)
                output.note(f"{text} is left out: {error}")
    own = registry.settings_of(asked.workload, parameters)
    now = {name: own[name] for offer in offered for name in offer.set}
    return _note_offers(store, run, OfferedSettings(tuple(tried), left_out, tuple(waiting), now))


def _note_offers(store: Store, run: Run, found: OfferedSettings) -> Run:
    outcome = {**store.run(run.id).outcome, of_run.KEY: found.to_json()}
    return store.note_run(run.id, outcome=outcome)


def _named_study(asked: TuneOptions) -> Study | None:
    """Return the ready study or the file that is asked for, or else the workload's own; none: it has none."""
    name = asked.study or asked.workload
    return ready.find(name) if asked.study or name in ready.files() else None


def _several(asked: TuneOptions, parameters: Mapping[str, Any]) -> Study | None:
    """Return the study as it is screened if its layouts change the job itself, so that one recording won't
    do; else None."""
    study = _named_study(asked)
    if study is None or not varied(study):
        return None
    return study_of_jobs(study, asked.workload, parameters, asked.profile, asked.arc)


def _study_parameters(asked: TuneOptions) -> dict[str, Any]:
    """Return the workload's parameters that its study asks for, if it is one for this workload."""
    study = _named_study(asked)
    return {} if study is None or study.workload not in (None, asked.workload) else dict(study.parameters)


def _memory(asked: TuneOptions) -> dict[str, Any]:
    """Return the ARC of the layouts that will be tried, if the workload has a size that is relative to it."""
    fields = registry.get(asked.workload).Parameters.model_fields
    if not memory.is_relative(fields, {**_study_parameters(asked), **asked.params}):
        return {}
    if asked.arc is not None:
        return {"arc": asked.arc}
    study = _named_study(asked)
    return {} if study is None else {"arc": study.layout.arc}


def _check_together(workload: Workload, study: Study) -> None:
    """Refuse a study that parts what the database keeps together.

    Raises InputError.
    """
    for role, why in getattr(workload, "roles_together", {}).items():
        beside, own = study.layout.dataset_of("data"), study.layout.dataset_of(role)
        if beside is not None and own is not None and beside.name != own.name:
            raise InputError(
                f'study "{study.name}" gives {role} the dataset {own.name} and data {beside.name}: {why}'
            )


def _check_early(asked: TuneOptions, trying: Trying | None, workload: Workload) -> None:
    """Find what is wrong before a database is filled: a wrong flag must not cost a minute."""
    workload.check()
    choose(asked.recorder)
    if asked.study is not None:
        _check_together(workload, ready.find(asked.study))
    if (study := _named_study(asked)) is not None:
        parse_have(asked.have, study.layout)
        if not asked.advice:  # which adds layouts
            have_of(asked.have, study)
    if asked.profile is not None:
        profiles.find(asked.profile)
    known = database.of_workload(asked.workload)
    for name in asked.advice:
        advised.about(name, asked.workload if known is None else known.name)
    if trying is not None:
        with waiting(f"waiting for {trying.place.name}"), trying.place as place:
            place.about_host()
            if isinstance(place, UsersHost):
                place.check_placing()


def _measure(trying: Trying, seed: int | None, workload: Workload, screened: Run, store: Store) -> Run:
    """Run layouts of the screening, and the baseline, on real file systems."""
    job = workload_job(workload)
    if not trying.place.name.startswith("ssh://"):
        job = replace(job, version=workload.check())
    trials = store.trials(screened.id)
    study = screened.resolved_study
    request = runner.Request(
        study=study,
        layouts=[study.layout],
        prior=screening.prior_of(screened, trials, trying.top),
        job=job,
        place=trying.place,
        options=replace(trying.options, have=ScreenOptions.of(screened).have),
        seed=seed,
        command=["ztune", *sys.argv[1:]],
        source_run=screened.id,
    )
    with LiveView() as live:
        return runner.start(store, request, live)


def _write(asked: TuneOptions, run_id: str, trace: Path, store: Store, measured: Run | None) -> Tuned:
    """Write the files of the run that decides: the measured one, if it has an answer.

    The report of the other stands beside it: what screening predicted, or what of the trials failed.
    """
    screened = source.evidence(run_id, store)
    found = screened if measured is None else source.evidence(measured.id, store)
    decides = screened if measured is not None and standing(measured, found.trials).chosen is None else found
    recommendation = decides.recommend()
    files.write(asked.folder / "report.html", html.of(decides))
    whole = ranking_json(screened.run, screened.trials)
    whole["recommendation"] = recommendation.model_dump(mode="json")
    if measured is not None:
        name, other = ("screened", screened) if decides is found else ("measured", found)
        files.write(asked.folder / f"{name}.html", html.of(other))
        whole["measured"] = reports.to_json(found.run, found.trials, found.screened)
    if not recommendation.no_answer:
        files.write(asked.folder / "apply.sh", script(recommendation), executable=True)
    files.write(asked.folder / "run.json", output.json_text(whole) + "\n")
    trials = screened.trials if measured is None else [*screened.trials, *found.trials]
    failed = sum(t.status == "failed" or bool(t.left) for t in trials)
    return Tuned(run_id, trace, recommendation, failed, decides, measured=None if measured is None else found)
