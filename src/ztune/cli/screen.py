"""``ztune screen``: rank ZFS layouts for a recorded trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.cli._numbers import FiniteRange
from ztune.cli._place import jobs_option
from ztune.errors import InputError


@click.command("screen", short_help="Rank layouts for a recorded trace.")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option(
    "--study", "study_name", metavar="FILE|NAME", help="The layouts to try: a TOML file or a ready study."
)
@click.option("--profile", metavar="NAME|FILE", help="Disks to model instead of the study's data disks.")
@click.option(
    "--arc", metavar="SIZE", help="Memory for the ARC, such as 64M or 7.5G, instead of the study's."
)
@jobs_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")
@click.option(
    "--budget",
    type=click.IntRange(1),
    help="Layouts to try; default 32. The pairs that prove the recommendation come on top.",
)
@click.option("--timeout", type=FiniteRange(min=1), metavar="S", help="Give a layout up after S seconds.")
@click.option("--name", help="A name for the run; default: the study's.")
@click.option(
    "--resume", metavar="[RUN]", is_flag=False, flag_value="last",
    help="Go on with a run that was cut; without RUN the last one of this trace.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show all layouts of the ranking.")
@click.option("--json", "as_json", is_flag=True, help="Print the ranking as JSON.")
def command(
    trace: Path | None,
    study_name: str | None,
    profile: str | None,
    arc: str | None,
    jobs: int | None,
    seed: int | None,
    budget: int | None,
    timeout: float | None,
    name: str | None,
    resume: str | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Replay TRACE through OpenZFS against many layouts, and rank them.

    This needs no ZFS on this machine, no root and no spare disk. Times are modelled from the disks'
    profile, never measured; reads, writes and space are what OpenZFS really did.

    \b
      ztune screen my.trace
      ztune screen my.trace --profile nvme --arc 4G
      ztune screen my.trace --study my-study.toml --budget 60
      ztune screen my.trace --resume            go on where it was cut
      ztune list layouts postgres-oltp          what a ready study tries

    Exit code 1 if some layouts failed; the others are ranked all the same.
    """
    # Loaded here: `ztune --help` must not wait for Arrow.
    from ztune.cli._screening import Shown, print_ranking
    from ztune.onhost.host.interrupt import signals_as_interrupt
    from ztune.places import engine as engines
    from ztune.report.terminal import TOP
    from ztune.runs import screening
    from ztune.store.db import Store
    from ztune.trace.reader import Trace

    if name is not None:
        output.plain(name, "--name")
    if resume is not None and trace is None and Path(resume).is_dir():
        trace, resume = Path(resume), "last"  # `--resume TRACE`: the word is not a run
    if trace is None and resume is None:
        raise InputError("which trace? `ztune screen TRACE`; `ztune record` makes one")
    with Store.open() as store, signals_as_interrupt():
        options: dict[str, Any] = {"jobs": jobs or 0, "seed": seed, "timeout_s": timeout}
        if resume is not None:
            given = {"--study": study_name, "--profile": profile, "--arc": arc, "--name": name}
            wrong = [flag for flag, value in given.items() if value is not None]
            if wrong:
                raise InputError(f"{wrong[0]} can't be changed when a run is resumed; start a new run")
            opened = None if trace is None else Trace.open(trace)
            run = _unfinished(store, resume, opened)
            opened = opened or Trace.open(run.trace_path)
            engine = engines.check()
            options["budget"] = budget or run.options.get("budget", screening.DEFAULT_BUDGET)
            with Shown(opened, store) as shown:
                run = screening.resume(
                    store, run, opened, engine, screening.Options(**options), observer=shown
                )
        else:
            assert trace is not None
            opened = Trace.open(trace)
            study = choose_study(opened, study_name, profile, arc)
            engine = engines.check()
            options["budget"] = budget or screening.DEFAULT_BUDGET
            with Shown(opened, store) as shown:
                run = screening.start(
                    store, opened, study, engine, screening.Options(**options),
                    name=name, command=["ztune", *sys.argv[1:]], observer=shown,
                )  # fmt: skip
        trials = store.trials(run.id)
        failed = [t for t in trials if t.status == "failed"]
        if as_json:
            output.print_json(ranking_json(run, trials))
        else:
            print_ranking(run, store, None if everything else TOP)
            output.echo(f"`ztune recommend {run.id}` says what to set, and why.")
        return 1 if failed else 0


def _unfinished(store: Any, name: str, trace: Any) -> Any:
    """Return the run to resume: the one named, or the last that was made from ``trace`` and not finished."""
    if name != "last":
        return store.run(name)
    runs = [r for r in store.runs() if trace is None or r.trace_sha == trace.sha]
    cut = [r for r in runs if r.status != "done" or any(t.status != "ok" for t in store.trials(r.id))]
    if not cut:
        what = "" if trace is None else f" of {trace.path}"
        raise InputError(f"there is no run{what} that was cut; `ztune runs` lists all")
    return cut[-1]


def choose_study(trace: Any, name: str | None, profile: str | None, arc: str | None) -> Any:
    """Return the study named, else the ready one of the trace's workload, else one built from its roles.

    Raises InputError; also if a role of the trace has no dataset in it.
    """
    from ztune.databases import registry
    from ztune.study import generic, ready
    from ztune.study.adjust import adjusted

    manifest = trace.manifest
    roles = {f.role for f in manifest.files if f.role is not None}
    if not roles:
        raise InputError(
            f"no file in {trace.path} has a role, so there is nothing to lay out; "
            f"record again with rules such as --role '/srv/db/**=data'"
        )
    workload = manifest.workload.name if manifest.workload is not None else None
    if name is not None:
        study = ready.find(name)
    elif workload is not None and workload in ready.files():
        study = ready.find(workload)
    else:
        study = generic.build(roles, page_sizes=manifest.page_size, together=registry.together(workload))
    try:
        study.check_roles(roles)
        return adjusted(
            study,
            profile=profile,
            arc=arc,
            database=_settings(manifest.workload),
            declared=_declared(manifest),
        )
    except ValueError as error:
        raise InputError(
            f"--arc {arc}: {_sentence(error)}" if arc is not None else _sentence(error)
        ) from None


def _declared(manifest: Any) -> Any:
    """Return what is declared of the durability of the database that was recorded."""
    from ztune.databases import database, registry
    from ztune.databases.declared import KNOWN, Declared
    from ztune.trace.roles import databases_of

    if manifest.workload is not None:
        return registry.declared(manifest.workload.name, manifest.workload.parameters)
    # A live database: nobody says which it is, but its files do.
    found = database.of_layouts(set(databases_of(f.path for f in manifest.files if f.role is not None)))
    # Those that wait for their log unless they are told otherwise.
    sure = [one for one in found if one.facts.durability.default is not None]
    return Declared() if not sure else KNOWN if any(one.own for one in sure) else sure[0].declared


def _settings(workload: Any) -> dict[str, str]:
    """Return the database's settings that the recorded workload made; of one that is not here, none."""
    from ztune.databases import registry

    if workload is None or workload.name not in registry.names():
        return {}
    try:
        return registry.settings_of(workload.name, workload.parameters)
    except InputError:  # recorded by a version with other parameters
        return {}


def _sentence(error: ValueError) -> str:
    from ztune.study.layout import plain

    return plain(error)


def ranking_json(run: Any, trials: Any) -> dict[str, Any]:
    """Return the run and its layouts, best first, then those that are not allowed, failed or waiting."""
    from ztune.advice.standing import standing
    from ztune.advice.trust import outpaced
    from ztune.cli._screening import changes
    from ztune.runs.screening import allowed_order
    from ztune.study import OBJECTIVES

    study = run.resolved_study
    now = standing(trials, study.objective)
    ranked = [t.number for t in allowed_order(study, trials)]

    def metric(trial: Any, name: str) -> Any:
        node: Any = trial.measure
        for part in OBJECTIVES[name][0]:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def entry(trial: Any) -> dict[str, Any]:
        return {
            "rank": ranked.index(trial.number) + 1 if trial.number in ranked else None,
            "trial": trial.number,
            "layout": trial.layout_name,
            "hash": trial.layout_hash,
            "baseline": trial.is_baseline,
            "status": trial.status,
            "error": trial.error,
            "round": trial.round,
            "durability": trial.layout.durability().value,
            "changes": changes(study.layout, trial.layout),
            "metrics": {name: metric(trial, name) for name in OBJECTIVES} if trial.ok else None,
            "wall_s": trial.wall_s,
        }

    ordered = sorted(
        trials, key=lambda t: ranked.index(t.number) if t.number in ranked else len(ranked) + t.number
    )
    return {
        "run": run.id,
        "name": run.name,
        "status": run.status,
        "versions": run.versions,
        "seed": run.seed,
        "trace": {"path": run.trace_path, "sha": run.trace_sha},
        "objective": run.objective.model_dump(mode="json"),
        "warnings": run.warnings,
        "outpaced": outpaced(now.ranking, now.chosen) if now.chosen is not None else "",
        "layouts": [entry(t) for t in ordered],
    }
