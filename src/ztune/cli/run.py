"""``ztune run``: the real database on real ZFS, layout by layout."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from ztune import output
from ztune.analysis.standing import standing
from ztune.cli._live import LiveView
from ztune.cli._options import (
    Trials,
    Where,
    advice_option,
    arc_option,
    argument,
    group,
    option,
    params_option,
    profile_option,
    said,
    seed_option,
    takes,
)
from ztune.cli._values import metrics, pairs
from ztune.errors import InputError
from ztune.places.rack import is_file
from ztune.report import measured
from ztune.runs import asked, runner
from ztune.runs.named import resolve
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.study import Objective
from ztune.units import listed


@click.command("run")
@takes
def command(
    what: str | None = argument(required=False, metavar="[STUDY|WORKLOAD]"),
    params: dict[str, str] = params_option,
    on: str = option(
        "--on",
        default="lab",
        metavar="lab|mount|local|ssh://HOST|FILE.toml",
        help="Where the trials run; a file names several hosts, each of which runs whole blocks.",
    ),
    where: Where = group(),
    profile: str | None = profile_option,
    arc: str | None = arc_option,
    age: str | None = option(
        "--age",
        metavar="AGE",
        help="Age the pools of every layout before the measure: used, old, or such as 'fill 90% rewrites 3'.",
    ),
    beside: str | None = option(
        "--with",
        metavar="WORKLOAD[:NAME=VALUE,…]",
        help="Run this workload too, on the same pools: in each block every layout has a trial of each job "
        "alone and one of both together.",
    ),
    names: tuple[str, ...] = option(
        "--layouts",
        metavar="NAME|HASH",
        help="Only this layout of the study (may be repeated); the baseline always runs.",
    ),
    advice: tuple[str, ...] = advice_option,
    source: str | None = option(
        "--from", metavar="RUN", help="Measure layouts of this screening run, chosen one after the other."
    ),
    objective: str | None = option(
        "--objective",
        metavar="METRIC,…",
        help="What to minimise instead of the study's, most important first, such as cpu,time.",
    ),
    trials: Trials = group(),
    caches: str | None = option(
        "--caches",
        type=click.Choice(["warm", "cold"]),
        help="As loading left them, or emptied before the job. Default: warm for a load that goes on for a "
        "set time, as of a database in use; cold for a job that runs once from start to end.",
    ),
    probes: tuple[str, ...] = option("--probe", metavar="NAME=on|off", help="Switch a probe on or off."),
    saved: str | None = option(
        "--saved",
        metavar="DIR",
        help="On ssh://: a directory there for the loaded database, so that it is loaded once. It stays. "
        "On a mount: a directory for the pools as loading left them; what loads alike begins with a copy.",
    ),
    aa: bool = option("--aa", help="Run the baseline against itself: an A/A study, to test the measuring."),
    seed: int | None = seed_option,
    name: str | None = option("--name", help="A name for the run; default: the study's."),
    resume: str | None = option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was cut, where it ran; what it left there is destroyed first.",
    ),
    as_json: bool = option("--json", help="Print the ranking as JSON."),
) -> int:
    """Run the workload of a study on each of its layouts, with the real database on real ZFS.

    Layouts run in blocks: each block holds every layout once, in random order, the baseline among them.
    After each block ztune asks whether the best is known, and ends if it is, or if no difference is as
    large as --resolution. With --from layouts join block by block: what the screening foretold says which,
    corrected by what was measured; it stops where another is unlikely to be better. Pools and datasets are
    made for each trial and destroyed after it; results are stored after each trial.

    \b
    Examples:
      ztune run postgres-oltp                         in the lab: a throw-away virtual machine
      ztune run postgres-oltp --on mount              OpenZFS in user space, in real time, no root needed
      ztune run --from last                           layouts of the last screening, and the baseline
      ztune run --from last --top 1 --advice openzfs-guide      against what OpenZFS's guide says
      ztune run my-study.toml --on local --pool tank/ztune
      ztune run postgres-oltp --on mount --objective cpu     least processor time per transaction
      ztune run postgres-oltp --on mount --age used   on pools that are full and fragmented
      ztune run postgres-oltp --on mount --with postgres-backup:scale=10    what both lose
      ztune run fio --on local --disk main=/dev/sdb --blocks 5
      ztune run postgres-oltp --on ssh://db7 --pool tank/ztune -p scale=400
      ztune run postgres-oltp --on fleet.toml         on several hosts at once: docs/fleet.md
      ztune run --resume 7f3k2a                       go on where it was cut

    Ctrl-C stops in order: the trial destroys what it made. Exit code 1 if some trials failed,
    or could not remove what they made: what those measured counts all the same.
    """
    if name is not None:
        output.plain(name, "--name")
    with Store.open() as store:
        if resume is not None:
            if more := said("--resume", "--json"):
                raise InputError(f"--resume goes on with a run as it was begun; leave {listed(more)} out")
            run = resolve(resume, "run", store=store)
            with LiveView() as live:
                run = runner.resume(store, run, observer=live)
        else:
            options = trials.options(aa=aa, settle=caches, saved=saved, probes=_probes(probes))
            native = not (on.startswith("ssh://") or is_file(on))
            before = None
            if source is not None and what is None:
                if profile is not None or arc is not None:
                    raise InputError(
                        "--profile and --arc are those of the screening run; leave them out with --from"
                    )
                before = resolve(source, "run", store=store)
                task = asked.task_after(
                    before, store, params, names, trials.top, native=native, on=on, advice=advice
                )
                options = replace(options, have=ScreenOptions.of(before).have)
            elif what is not None and source is not None:
                raise InputError(
                    f'"{what}" and --from {source}: a run has the study and the workload of its screening; '
                    "leave one of the two out"
                )
            elif what is not None:
                task = asked.task(what, params, names, profile, arc, native=native, on=on, advice=advice)
            else:
                raise InputError(
                    "what is to run? `ztune run STUDY`, `ztune run WORKLOAD`, or `ztune run --from RUN`"
                )
            for note in task.notes:
                output.note(note)
            if age is not None:
                task = asked.aged(task, age)
            if beside is not None:
                if aa or source is not None:
                    other = "--aa" if aa else "--from"
                    raise InputError(f"--with goes with a study or a workload, not with {other}")
                task = asked.beside(task, beside, native=native)
            study = task.study
            if objective is not None:
                goal = {**study.objective.model_dump(mode="json"), "minimise": metrics(objective)}
                study = study.model_copy(update={"objective": Objective.model_validate(goal)})
            place = where.places(on)
            request = runner.Request(
                study=study, layouts=task.layouts, job=task.job, place=place, options=options, seed=seed,
                name=name, command=["ztune", *sys.argv[1:]], source_run=None if before is None else before.id,
                prior=task.prior,
            )  # fmt: skip
            with LiveView() as live:
                run = runner.start(store, request, live)
        ran = store.trials(run.id)
        if as_json:
            output.print_json(measured.to_json(run, ran))
        else:
            measured.show(run, ran)
            what = (
                "" if standing(run, ran).chosen is None else f"; `ztune recommend {run.id}` says what to set"
            )
            output.echo(f"`ztune report {run.id}` shows it{what}.")
        return 1 if any(t.status == "failed" or t.left for t in ran) else 0


def _probes(given: tuple[str, ...]) -> dict[str, bool]:
    out: dict[str, bool] = {}
    for name, value in pairs(given).items():
        if value not in {"on", "off"}:
            raise InputError(f"--probe {name}={value}: write {name}=on or {name}=off")
        out[name] = value == "on"
    return out
