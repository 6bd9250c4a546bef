"""``ztune run``: the real database on real ZFS, layout by layout."""

from __future__ import annotations

import sys
from typing import Any

import click

from ztune import output
from ztune.cli._place import blocks as parse_blocks
from ztune.cli._place import duration, make_place, pairs, place_options, share
from ztune.errors import InputError


@click.command("run", short_help="Run the real database on layouts of real ZFS.")
@click.argument("what", required=False, metavar="[STUDY|WORKLOAD]")
@click.option(
    "-p", "--param", "params", multiple=True, metavar="NAME=VALUE",
    help="A parameter of the workload; `ztune list workloads` shows them.",
)  # fmt: skip
@click.option(
    "--on",
    default="lab",
    show_default=True,
    metavar="lab|mount|local|ssh://HOST",
    help="Where the trials run.",
)
@place_options
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Disks instead of the study's data disks, in the lab or on a mount.",
)
@click.option("--arc", metavar="SIZE", help="Memory for the ARC instead of the study's.")
@click.option(
    "--layouts", "names", multiple=True, metavar="NAME|HASH",
    help="Only this layout of the study (may be repeated); the baseline always runs.",
)  # fmt: skip
@click.option("--from", "source", metavar="RUN", help="Take the best layouts of this screening run.")
@click.option(
    "--top", type=click.IntRange(1), default=3, show_default=True, help="With --from: how many of the best."
)
@click.option(
    "--blocks", default="3:8", show_default=True, metavar="MIN:MAX",
    help="The fewest and the most times that each layout runs.",
)  # fmt: skip
@click.option(
    "--resolution", default="2%", show_default=True, metavar="SHARE",
    help="Smaller differences don't matter; decides when it is enough.",
)  # fmt: skip
@click.option("--time-limit", metavar="TIME", help="Begin no trial after this long: seconds, 30m, 2h.")
@click.option(
    "--warm", is_flag=True, help="Leave the caches as loading left them, instead of emptying them first."
)
@click.option("--probe", "probes", multiple=True, metavar="NAME=on|off", help="Switch a probe on or off.")
@click.option(
    "--saved", metavar="DIR",
    help="On ssh://: a directory there for the loaded database, so that it is loaded once. It stays.",
)  # fmt: skip
@click.option(
    "--aa", is_flag=True, help="Run the baseline against itself: an A/A study, to test the measuring."
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed instead of the study's.")
@click.option("--name", help="A name for the run; default: the study's.")
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on with a run that was cut, where it ran; what it left there is destroyed first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ranking as JSON.")
def command(
    what: str | None,
    params: tuple[str, ...],
    on: str,
    pool: str | None,
    parents: tuple[str, ...],
    disks: tuple[str, ...],
    files: str | None,
    size: str,
    pace: str | None,
    page_cache: bool,
    openzfs: str | None,
    dilation: float | None,
    profile: str | None,
    arc: str | None,
    names: tuple[str, ...],
    source: str | None,
    top: int,
    blocks: str,
    resolution: str,
    time_limit: str | None,
    warm: bool,
    probes: tuple[str, ...],
    saved: str | None,
    aa: bool,
    seed: int | None,
    name: str | None,
    resume: str | None,
    as_json: bool,
) -> int:
    """Run the workload of a study on each of its layouts, with the real database on real ZFS.

    Layouts run in blocks: each block holds every layout once, in random order, the baseline among them.
    After each block ztune asks whether the best is known, and ends if it is, or if no difference is as
    large as --resolution. Pools and datasets are made for each trial and destroyed after it; results are
    stored after each trial.

    \b
    Examples:
      ztune run postgres-oltp                         in the lab: a throw-away virtual machine
      ztune run postgres-oltp --on mount              OpenZFS in user space, in real time, no root needed
      ztune run --from last --top 3                   the best of the last screening, and the baseline
      ztune run my-study.toml --on local --pool tank/ztune
      ztune run fio --on local --disk main=/dev/sdb --blocks 5
      ztune run postgres-oltp --on ssh://db7 --pool tank/ztune -p scale=400
      ztune run --resume 7f3k2a                       go on where it was cut

    Ctrl-C stops in order: the trial destroys what it made. Exit code 1 if some trials failed.
    """
    # Loaded here: `ztune --help` must not wait for Arrow.
    from ztune.cli._live import LiveView
    from ztune.onhost.host.interrupt import signals_as_interrupt
    from ztune.places import named as places
    from ztune.runs import runner
    from ztune.runs.plan import Options
    from ztune.store.db import Store

    if name is not None:
        output.plain(name, "--name")
    with Store.open() as store, signals_as_interrupt():
        if resume is not None:
            if what is not None or source is not None or params:
                raise InputError("--resume goes on with a run as it was begun; leave the rest out")
            run = store.run(resume)
            with LiveView() as live:
                run = runner.resume(store, run, places.again(run), live)
        else:
            options = Options(
                blocks=parse_blocks(blocks),
                resolution=share(resolution, "--resolution"),
                time_limit_s=duration(time_limit),
                aa=aa,
                settle="warm" if warm else "cold",
                saved=saved,
                probes=_probes(probes),
            )
            study, layouts, job = choose(
                store,
                what,
                source,
                pairs(params),
                names,
                top,
                profile,
                arc,
                native=not on.startswith("ssh://"),
            )
            place = make_place(on, pool, parents, disks, files, size, openzfs, dilation, pace, page_cache)
            request = runner.Request(
                study=study, layouts=layouts, job=job, place=place, options=options, seed=seed, name=name,
                command=["ztune", *sys.argv[1:]], source_run=None if source is None else store.run(source).id,
            )  # fmt: skip
            with LiveView() as live:
                run = runner.start(store, request, live)
        trials = store.trials(run.id)
        print_run(run, trials, as_json)
        if not as_json:
            output.echo(f"`ztune report {run.id}` shows it; `ztune recommend {run.id}` says what to set.")
        return 1 if any(t.status == "failed" for t in trials) else 0


def print_run(run: Any, trials: Any, as_json: bool) -> None:
    """Print the ranking of a measured run, as a table or as JSON."""
    from ztune.report import measured

    if as_json:
        output.print_json(measured.to_json(run, trials))
    else:
        measured.show(run, trials)


def choose(
    store: Any,
    what: str | None,
    source: str | None,
    params: dict[str, str],
    names: tuple[str, ...],
    top: int,
    profile: str | None = None,
    arc: str | None = None,
    native: bool = True,
) -> tuple[Any, Any, Any]:
    """Return study, layouts and job. ``native``: the database runs on this host's programs. Raises
    InputError.
    """
    from ztune.databases import registry
    from ztune.runs import plan
    from ztune.runs.screening import allowed_order
    from ztune.study.adjust import adjusted
    from ztune.study.layout import plain

    if (what is None) == (source is None):
        raise InputError("what is to run? `ztune run STUDY`, `ztune run WORKLOAD`, or `ztune run --from RUN`")
    if source is not None:
        run = store.run(source)
        if run.measured:
            raise InputError(f"run {run.id} was measured already; --from takes a screening run")
        if profile is not None or arc is not None:
            raise InputError("--profile and --arc are those of the screening run; leave them out with --from")
        study = run.resolved_study
        workload_name, recorded = _recorded(run)
        trials = store.trials(run.id)
        layouts = plan.best_of(run, allowed_order(study, trials), trials, top, names)
        job = _job(workload_name, {**recorded, **params}, native)
    else:
        assert what is not None
        study, workload_name = _study(what, params)
        asked = {**study.parameters, **params}
        try:
            study = adjusted(
                study,
                profile=profile,
                arc=arc,
                database=registry.settings_of(workload_name, asked),
                declared=registry.declared(workload_name, asked),
            )
        except ValueError as error:
            raise InputError(f"--arc {arc}: {plain(error)}" if arc is not None else plain(error)) from None
        layouts = plan.layouts(study, names)
        job = _job(workload_name, {**_memory(workload_name, study, params), **asked}, native)
    return study, layouts, job


def _job(name: str, params: dict[str, Any], native: bool) -> Any:
    from dataclasses import replace

    from ztune.databases import registry
    from ztune.runs.plan import workload_job

    workload = registry.make(name, params)
    job = workload_job(workload)
    # Elsewhere the database is another one; the trial itself says which.
    return replace(job, version=workload.check()) if native else job


def _memory(name: str, study: Any, params: dict[str, str]) -> dict[str, Any]:
    """Return the layouts' ARC, if the workload has a size that is relative to it."""
    from ztune.databases import memory, registry

    fields = registry.get(name).Parameters.model_fields
    return {"arc": study.layout.arc} if memory.is_relative(fields, {**study.parameters, **params}) else {}


def _study(what: str, params: dict[str, str]) -> tuple[Any, str]:
    """Return the study that ``what`` names, and its workload's name."""

    from ztune.databases import registry
    from ztune.study import generic, ready

    if ready.is_path(what) or what in ready.files():
        study = ready.find(what)
        workload = study.workload or (what if what in registry.names() else None)
        if workload is None:
            raise InputError(
                f'study "{study.name}" names no workload, so nothing can run; add workload = "…"'
            )
    elif what in registry.names():
        workload = what
        made: Any = registry.make(what, params)
        if not hasattr(made, "job"):
            raise InputError(f"workload {what} can be recorded but not run in trials: it has no job")
        study = generic.build(set(made.job.roles()), together=registry.together(what))
    else:
        known = ", ".join(dict.fromkeys([*registry.names(), *ready.files()]))
        raise InputError(f'"{what}" is no study and no workload; name a TOML file, or one of {known}')
    return study, workload


def _recorded(run: Any) -> tuple[str, dict[str, Any]]:
    """Return the workload of a screening run and the parameters that it was recorded with, from its trace."""
    from pathlib import Path

    from ztune.trace.reader import Trace

    try:
        workload = Trace.open(Path(run.trace_path)).manifest.workload
    except InputError:
        workload = None
    if workload is not None:
        return workload.name, dict(workload.parameters)
    name = run.study.get("workload")
    if not isinstance(name, str):
        raise InputError(
            f"run {run.id} screened a trace that no workload of ztune's made, so there is nothing to run; "
            "`ztune run WORKLOAD` runs one"
        )
    return name, {}


def _probes(given: tuple[str, ...]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in pairs(given).items():
        if value not in {"on", "off"}:
            raise InputError(f"--probe {name}={value}: write {name}=on or {name}=off")
        out[name] = value == "on"
    return out
