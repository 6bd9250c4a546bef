"""``ztune screen``: rank ZFS layouts for a recorded trace."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.advice.trust import outpaced
from ztune.analysis import aged, elsewhere, neighbours, sampled
from ztune.analysis.across import family
from ztune.analysis.metrics import REPLAYED, TOTALS, operations, table
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
    load_option,
    option,
    processor_option,
    profile_option,
    role_option,
    said,
    sample_option,
    seed_option,
    takes,
)
from ztune.cli._processors import on_host
from ztune.cli._recording import record_jobs
from ztune.cli._screening import print_ranking, say_advice, say_notes
from ztune.cli._values import YEAR_S, FiniteRange
from ztune.cli._waiting import waiting
from ztune.errors import InputError
from ztune.fleet import connect
from ztune.places import engine as engine_programs
from ztune.places import neighbour
from ztune.places.executor import Executor, LocalExecutor
from ztune.report import versions as of_versions
from ztune.report.terminal import TOP
from ztune.runs import offers, recordings, screening, versions
from ztune.runs.asked import have_of, study_for, study_of_jobs, suited, with_advice
from ztune.runs.named import LAST, resolve
from ztune.runs.options import DEFAULT_BUDGET, ScreenOptions
from ztune.runs.recordings import JobKey, with_parameters
from ztune.runs.search import stopped
from ztune.runs.space import differences
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study import OBJECTIVES, Study, ready
from ztune.study.durability import judge
from ztune.study.layout import plain, with_settings
from ztune.trace import excerpt, left_out, reassign
from ztune.trace.manifest import UNSEEN, Manifest
from ztune.trace.rate import parse_rate
from ztune.trace.reader import Trace
from ztune.trace.roles import RoleRules

_AS_ASKED = ("--jobs", "--seed", "--budget", "--timeout", "--on", "--openzfs", "--all", "--json")
"""What may be said of a run that is resumed."""


@click.command("screen")
@takes
def command(
    trace: Path | None = argument(required=False),
    study_name: str | None = option(
        "--study", metavar="FILE|NAME", help="The layouts to try: a TOML file or a ready study."
    ),
    roles: tuple[str, ...] = role_option,
    profile: str | None = profile_option,
    advice: tuple[str, ...] = advice_option,
    arc: str | None = arc_option,
    jobs: int | None = jobs_option,
    seed: int | None = seed_option,
    budget: int | None = budget_option,
    have: tuple[str, ...] = have_option,
    cores: int | None = cores_option,
    processor: str | None = processor_option,
    age: str | None = option(
        "--age",
        metavar="AGE,…",
        help="Try the base and the best on pools of these ages too, to see whether the choice holds: "
        "used, old, or such as 'fill 90% rewrites 3'.",
    ),
    beside: str | None = option(
        "--with",
        metavar="TRACE[@START]",
        help="Replay the base and the best beside this second recording too, on the same pools, from START "
        "seconds on, and say what each of the two loses.",
    ),
    sample: str | None = sample_option,
    windows: str | None = option(
        "--windows",
        metavar="NxS|all",
        help="Replay N windows of S seconds of the recording, one after the other, such as 6x20s; or all. "
        f"Default: all of up to {excerpt.CALLS:,} calls; of more, one stretch with half as many.",
    ),
    load: str | None = load_option,
    no_elsewhere: bool = elsewhere_option,
    on: str | None = option(
        "--on",
        metavar="FLEET",
        help="Replay on the workers of a Dask cluster instead of here: dask://HOST:PORT, tls://HOST:PORT, "
        "local-cluster, or local-cluster:N for N workers on this machine.",
    ),
    timeout: float | None = option(
        "--timeout", type=FiniteRange(1, YEAR_S), metavar="S", help="Give a layout up after S seconds."
    ),
    name: str | None = option("--name", help="A name for the run; default: the study's."),
    resume: str | None = option(
        "--resume",
        metavar="[RUN]",
        is_flag=False,
        flag_value="last",
        help="Go on with a run that was cut; without RUN the last one of this trace.",
    ),
    openzfs: str | None = option(
        "--openzfs",
        metavar="VERSION,…",
        help="With these versions of OpenZFS instead of this machine's: the first tries layouts as always, "
        "the others the same ones, and one table compares them. `ztune setup openzfs` brings a version.",
    ),
    everything: bool = option("--all", help="Show all layouts of the ranking."),
    as_json: bool = option("--json", help="Print the ranking as JSON."),
) -> int:
    """Replay TRACE through OpenZFS against many layouts, and rank them.

    This needs no ZFS on this machine, no root and no spare disk. Times are modelled from the disks'
    profile, never measured; reads, writes and space are what OpenZFS really did.

    A model of what was tried proposes the next layouts, on the study's own disks and memory. It stops when
    something better is unlikely, and says so; what would have to be bought is tried last.

    \b
      ztune screen my.trace
      ztune screen my.trace --profile nvme --arc 4G
      ztune screen my.trace --study my-study.toml --budget 60
      ztune screen my.trace --role '/srv/db/log/*=wal'    another role, without recording again
      ztune screen my.trace --advice openzfs-guide   what the guide says, beside what is found
      ztune screen my.trace --age used,old   does the choice hold on a full pool, years later?
      ztune screen my.trace --with backup.trace@5     what do it and a backup lose to each other?
      ztune screen my.trace --sample 1/8    one region in eight; what is not said is chosen
      ztune screen long.trace --windows 1x300s   of a long recording five minutes
      ztune screen my.trace --resume            go on where it was cut
      ztune screen my.trace --on dask://10.0.0.1:8786    on the workers of a Dask cluster
      ztune screen my.trace --profile nvme --processor host.json    with the processors of another host
      ztune screen my.trace --openzfs 2.3.2,2.4.4    what does the upgrade change?
      ztune list layouts postgres-oltp          what a ready study tries

    A study whose layouts change the job itself (`workload.*`, `database.*`) takes a recording of each job:
    `ztune tune WORKLOAD --study FILE` makes them, and so does `ztune screen --study FILE` without TRACE.

    Versions of OpenZFS are never mixed in a ranking: each has a run of its own. `--resume RUN --openzfs
    2.4.4` adds a version to a run that there is.

    `--on` spreads the layouts over many machines, each with ztune and the same OpenZFS; docs/fleet.md shows
    how. A result does not depend on where it was counted.

    Exit code 1 if some layouts failed; the others are ranked all the same.
    """
    if on is not None:
        connect.parse(on)
    if name is not None:
        output.plain(name, "--name")
    if resume is not None and trace is None and Path(resume).is_dir():
        trace, resume = Path(resume), "last"  # `--resume TRACE`: the word is not a run
    asked = None if study_name is None or trace is not None else ready.find(study_name)
    if trace is None and resume is None and (asked is None or not recordings.varied(asked)):
        raise InputError("which trace? `ztune screen TRACE`; `ztune record` makes one")
    engines = [] if openzfs is None else versions.asked(openzfs)
    with Store.open() as store:
        options = ScreenOptions(
            jobs or 0, budget or DEFAULT_BUDGET, timeout, seed, elsewhere=not no_elsewhere,
            sample=parse_rate(sample) if sample else 0, load=load or "",
        )  # fmt: skip
        if resume is not None:
            if wrong := said("trace", "--resume", *_AS_ASKED):
                raise InputError(f"{wrong[0]} can't be changed when a run is resumed; start a new run")
            opened = None if trace is None else resolve(str(trace), "trace", store=store)
            run = _unfinished(store, resume, opened)
            if opened is not None and opened.sha != run.trace_sha:
                told, _ = reassign.told_unasked(opened)
                opened = told if told.sha == run.trace_sha else opened
            if opened is None or resume in LAST:  # it may be of windows of the trace that was named
                opened = Trace.open(run.trace_path)
            begun = ScreenOptions.of(run)
            options = replace(
                options, budget=budget or begun.budget, only=begun.only, have=begun.have, ages=begun.ages,
                beside=begun.beside, elsewhere=begun.elsewhere, cores=begun.cores, processor=begun.processor,
            )  # fmt: skip
            engine = engine_programs.of_run(run.versions)
            with LiveView() as live, _replays_on(on, live) as executor:
                run = screening.resume(store, run, opened, engine, options, observer=live, executor=executor)
        else:
            engine = engines[0] if engines else engine_programs.check()
            options = on_host(options, engine, cores, processor)
            if trace is None:
                if roles:
                    raise InputError("--role changes the roles of a recording; name its TRACE")
                if windows is not None:
                    raise InputError("--windows takes a part of a recording; name its TRACE")
                assert asked is not None
                study, opened, others = _recorded(asked, profile, arc, options.budget)
            else:
                opened = resolve(str(trace), "trace", store=store)
                rules = RoleRules.parse(roles, builtin=False).rules
                opened, unasked = reassign.told_unasked(opened, rules)
                if unasked:
                    output.note(unasked)
                if roles:
                    changed = reassign.with_roles(opened, rules)
                    if not any(file.role for file in changed.files):
                        raise InputError(
                            f"--role leaves no file of {opened.path} a role, so nothing would be replayed; "
                            f"`ztune trace files {shlex.quote(str(opened.path))}` lists them"
                        )
                    opened = reassign.beside(opened, changed)
                    if unknown := reassign.unmeasured(opened.manifest):
                        output.note(unknown)
                for warning in opened.manifest.warnings:
                    if warning.code in UNSEEN:
                        output.note(warning.message)
                opened = _in_windows(opened, windows, options.sample, beside)
                study = study_for(opened, study_name, profile, arc)
                study = recordings.replayable(study, opened, study_name)
                others = recordings.found(study, opened, options.budget, study_name)
            study = say_advice(with_advice(study, advice, opened))
            at_hand, unused = have_of(have, study)
            options = replace(
                options, have=at_hand, ages=_ages(age, study), beside=_beside(beside, opened, store)
            )
            say_notes(study, options.budget, unused)
            with LiveView() as live, _replays_on(on, live) as executor:
                run = screening.start(
                    store, opened, study, engine, options, others=others, name=name,
                    command=["ztune", *sys.argv[1:]], observer=live, executor=executor,
                )  # fmt: skip
        first = family(store, run)[0]
        for engine in engines:
            with LiveView() as live, _replays_on(on, live) as executor:
                versions.also(
                    store, first, opened, engine, options,
                    command=["ztune", *sys.argv[1:]], observer=live, executor=executor,
                )  # fmt: skip
        runs = [(one, store.trials(one.id)) for one in family(store, run)]
        trials = store.trials(run.id)
        if engines:
            trials = [trial for _, several in runs for trial in several]
        failed = [t for t in trials if t.status == "failed"]
        if len(runs) > 1:
            _print_versions(runs, None if everything else TOP, as_json)
        elif as_json:
            output.print_json(ranking_json(run, trials))
        else:
            print_ranking(run, store, None if everything else TOP)
            end = stopped(run.outcome)
            if end is not None and end.sentence():
                output.paragraph(end.sentence())
            if not recordings.varied(run.resolved_study) and (text := offers.note(opened.manifest)):
                output.paragraph(text)
            if any(t.ok for t in trials):
                output.echo(f"`ztune recommend {run.id}` says {_answer(run)}.")
        return 1 if failed else 0


def _answer(run: Run) -> str:
    """Return what a recommendation for the run has to say."""
    left = left_out.of_run(run.outcome, None, run.warnings)
    return "what to do first" if left is not None and left.most else "what to set, and why"


@contextlib.contextmanager
def _replays_on(on: str | None, live: LiveView) -> Iterator[Executor]:
    """Yield where layouts are replayed: on the fleet that ``on`` names, or here."""
    with contextlib.ExitStack() as held:
        executor = LocalExecutor() if on is None else held.enter_context(connect.fleet(on, live.say))
        live.hosts = executor.hosts
        yield executor


def _in_windows(trace: Trace, given: str | None, sample: int, beside: str | None) -> Trace:
    """Return the windows of ``trace`` that are asked for, or those of a long recording; else ``trace``."""
    if given is not None and beside is not None and given != "all":
        raise InputError("--windows can't be replayed with --with; leave out one of the two")
    if given is not None:
        asked = excerpt.parse(given)
    elif beside is not None or sample == 1:
        asked = None
    else:
        asked = excerpt.usual(trace.manifest)
    if asked is None:
        return trace
    with waiting(f"looking for {asked} of {trace.path}"):
        found = excerpt.of(trace, asked)
    if given is None:
        part = next(w.message for w in found.manifest.warnings if w.code == excerpt.CODE)
        output.note(f"{part} --windows all replays everything.")
    return found


def _ages(given: str | None, study: Study) -> tuple[str, ...]:
    """Return the ages named; InputError for one that is none."""
    values = tuple(filter(None, map(str.strip, (given or "").split(","))))
    for value in values:
        try:
            with_settings(study.layout, {"age": value})
        except ValueError as error:
            raise InputError(f"--age: {plain(error)}") from None
    return values


def _beside(given: str | None, first: Trace, store: Store) -> dict[str, Any]:
    """Return the second recording named, as options keep it; InputError for one that can't be beside it."""
    if given is None:
        return {}
    path, start = neighbour.parse(given)
    one = neighbour.Neighbour(resolve(path, "trace", store=store), start)
    one.check(first)
    return one.to_json()


def _recorded(
    study: Study, profile: str | None, arc: str | None, budget: int
) -> tuple[Study, Trace, dict[JobKey, Trace]]:
    """Record what the layouts of ``study`` are replayed on; return it as it is screened, the base's recording
    and the others."""
    if study.workload is None:
        raise InputError(
            f'study "{study.name}" changes the job itself and names no workload that could be recorded; add '
            'workload = "…"'
        )
    parameters = with_parameters(study.workload, study.parameters, {}, arc or study.layout.arc)
    study = study_of_jobs(study, study.workload, parameters, profile, arc)
    base, others = record_jobs(study, str(study.workload), parameters, "auto", budget)
    return suited(study, base, None, None), base, others


def _print_versions(runs: Sequence[tuple[Run, Sequence[Trial]]], top: int | None, as_json: bool) -> None:
    if as_json:
        output.print_json(of_versions.to_json(runs))
        return
    output.Console(highlight=False).print(of_versions.table(runs, top))
    output.echo()
    for run, _ in runs:
        output.echo(f"`ztune show {run.id}` has the ranking with OpenZFS {run.versions['openzfs']}.")


def _unfinished(store: Store, name: str, trace: Trace | None) -> Run:
    """Return the run to resume: the one named, or the last that was made from ``trace`` and not finished."""
    if name not in LAST:
        return resolve(name, "run", store=store)
    of = None
    if trace is not None:
        named = (trace, reassign.told_unasked(trace)[0])
        of = {one.sha for made in named for one in (made, *excerpt.made_of(made))}
    runs = [r for r in store.runs() if store.is_own(r) and (of is None or r.trace_sha in of)]
    cut = [r for r in runs if r.status != "done" or any(t.status != "ok" for t in store.trials(r.id))]
    if not cut:
        what = "" if trace is None else f" of {trace.path}"
        raise InputError(f"there is no run{what} that was cut; `ztune runs` lists all")
    return cut[-1]


def _manifest(run: Run) -> Manifest | None:
    """Return the manifest of the run's trace; None where it is gone or no longer the same."""
    try:
        return Trace.reopen(run.trace_path, run.trace_sha).manifest
    except InputError:
        return None


def ranking_json(run: Run, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the run and its layouts, best first, then those that are not allowed, failed or waiting."""
    study = run.resolved_study
    now = standing(run, trials)
    ranks = {p.result.hash: p.rank for p in now.ranked}
    to_buy = {p.result.hash: dict(p.to_buy) for p in now.places}

    def metric(trial: Trial, name: str) -> Any:
        node: Any = trial.measure  # as the engine wrote it: a count stays a whole number
        for part in OBJECTIVES[name][0]:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def predicted(trial: Trial) -> dict[str, Any]:
        # Of the recorded load: the share of its pace that the layout reaches, or, where the job had none, its
        # throughput as a multiple of the recorded; and what its operations and calls take, in ms.
        model = trial.measure["model"]
        took = [f"{what}_latency_ms" for what in ("operation", "sync", "read", "write")]
        paces = {key: REPLAYED[key].read(trial.result or {}) for key in ("pace", "speed")}
        return {**paces, "elapsed_s": model.get("elapsed_s"), **{key: model.get(key) for key in took}}

    def of_one(trial: Trial) -> dict[str, Any] | None:
        if not (now.found.per_operation and trial.ok):
            return None
        metrics = table("modelled", per_operation=True)
        return {name: metrics[name].read(trial.result or {}) for name in OBJECTIVES if name in TOTALS}

    def entry(trial: Trial) -> dict[str, Any]:
        return {
            "rank": ranks.get(trial.layout_hash),
            "trial": trial.number,
            "layout": trial.layout_name,
            "hash": trial.layout_hash,
            "baseline": trial.is_baseline,
            "status": trial.status,
            "error": trial.error,
            "round": trial.round,
            "durability": judge(trial.layout).klass.value,
            "changes": differences(study.layout, trial.layout),
            # Hardware that it takes and that is not there: it is not ranked.
            "to_buy": to_buy.get(trial.layout_hash, {}),
            "metrics": {name: metric(trial, name) for name in OBJECTIVES} if trial.ok else None,
            "predicted": predicted(trial) if trial.ok else None,
            # Of the recorded job, where layouts have recordings of their own: the metrics are its totals.
            "operations": operations(trial.result or {}) if trial.trace_sha else None,
            # What ranks them then; null where the metrics do.
            "per_operation": of_one(trial),
            "trace": {"path": trial.trace_path, "sha": trial.trace_sha} if trial.trace_sha else None,
            "wall_s": trial.wall_s,
        }

    usual = [t for t in trials if not t.condition]
    ordered = sorted(usual, key=lambda t: ranks.get(t.layout_hash) or len(ranks) + t.number)
    return {
        "run": run.id,
        "name": run.name,
        "status": run.status,
        "versions": run.versions,
        "seed": run.seed,
        "trace": {"path": run.trace_path, "sha": run.trace_sha},
        "objective": run.objective.model_dump(mode="json"),
        "warnings": run.warnings,
        "search": None if (end := stopped(run.outcome)) is None else end.to_json(),
        "aged": aged.sentences(now, trials),
        "neighbour": neighbours.sentences(now, trials),
        "sample": None if (part := sampled.error(run, trials)) is None else part.to_json(),
        "carries": elsewhere.sentence(now, trials),
        "elsewhere": [asdict(row) for row in elsewhere.rows(now, trials)],
        "beside": [asdict(row) for row in neighbours.rows(now, trials)],
        "outpaced": outpaced(now, _manifest(run)) if now.chosen is not None else "",
        "layouts": [entry(t) for t in ordered],
    }
