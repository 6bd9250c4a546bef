"""``ztune show``: one run, or one of its trials, with all that it takes to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.analysis.across import family
from ztune.cli._options import argument, json_option, option, takes
from ztune.cli._screening import print_ranking
from ztune.errors import InputError
from ztune.report import measured, processes, versions
from ztune.report.terminal import TOP
from ztune.runs.named import resolve
from ztune.store.db import Store
from ztune.store.records import Run, Trial
from ztune.study.durability import judge
from ztune.trace.reader import Trace
from ztune.units import counted


@click.command("show")
@takes
def command(
    run: str = argument(default="last"),
    trial: int | None = option(
        "--trial", type=click.IntRange(1, 2**31 - 1), metavar="N", help="One trial of the run, in full."
    ),
    rerun: bool = option(
        "--rerun", help="Run that trial again from its record, and compare. Stores nothing."
    ),
    series_of: str | None = option(
        "--series",
        metavar="NAME",
        help="What a probe of that trial counted over time, as CSV: disks, arc, datasets or host.",
    ),
    everything: bool = option("--all", help="All layouts of the ranking, and all that is said of them."),
    as_json: bool = json_option,
) -> int:
    """Show RUN (an id, the beginning of one, or "last").

    \b
      ztune show last
      ztune show last --all                    every layout, not only the first
      ztune show 7f3k2a --json                 everything that is stored
      ztune show 7f3k2a --trial 4 --json       what it takes to run trial 4 again
      ztune show 7f3k2a --trial 4 --rerun      run it again, and compare
      ztune show 7f3k2a --trial 4 --series disks       what its disks did over time
    """
    with Store.open() as store:
        found = resolve(run, "run", store=store)
        trials = store.trials(found.id)
        if trial is None:
            for asked, name in ((rerun, "--rerun"), (series_of, "--series")):
                if asked:
                    raise InputError(f"{name} needs --trial N")
            if as_json:
                output.print_json(run_json(found, trials))
            elif found.measured:
                measured.show(found, trials)
                _print_run(found, trials)
            else:
                print_ranking(found, store, None if everything else TOP)
                _print_run(found, trials)
                runs = [(one, store.trials(one.id)) for one in family(store, found)]
                if len(runs) > 1:
                    output.echo()
                    output.Console(highlight=False).print(versions.table(runs))
            return 0
        chosen = store.trial(found.id, trial)
    if series_of is not None:
        if rerun:
            raise InputError("--series shows what was counted, --rerun runs again; leave one out")
        _print_series(chosen, series_of, as_json)
        return 0
    record = trial_json(found, chosen)
    if rerun and found.measured:
        raise InputError("--rerun repeats replays; `ztune run --from` or `ztune run STUDY` measures again")
    if rerun:
        return _rerun(record, as_json)
    if as_json:
        output.print_json(record)
    else:
        _print_trial(found, chosen)
    return 0


def run_json(run: Run, trials: Sequence[Trial]) -> dict[str, object]:
    """Return everything stored of a run."""
    return {**_run_fields(run), "study": run.study, "trials": [_trial_fields(t) for t in trials]}


def trial_json(run: Run, trial: Trial) -> dict[str, object]:
    """Return one trial with all that it takes to run it again: spec, trace, seed, versions, command."""
    return {"run": _run_fields(run), "trial": _trial_fields(trial), "again": _again(run, trial)}


def _again(run: Run, trial: Trial) -> dict[str, Any]:
    if run.measured:
        return {
            "command": ["python3", "ztune-trial.pyz", "run"],
            "note": "trial.spec on one line goes to its standard input; see docs/trial-format.md.",
        }
    return {
        "command": ["ztune", "show", run.id, "--trial", str(trial.number), "--rerun"],
        "engine": ["ztune-engine", "replay", "--spec", "SPEC", "--ops", "OPS"],
        "note": (
            "SPEC is trial.spec plus `content` (role: file of sample blocks), `backing` and "
            "`backing_dir`; OPS is the export of the trace with this sha. The command fills them in."
        ),
    }


def _run_fields(run: Run) -> dict[str, object]:
    names = (
        "id", "kind", "name", "created", "status", "trace_path", "trace_sha", "environment", "versions",
        "seed", "command", "options", "warnings", "target", "job", "source_run", "outcome", "made_by",
    )  # fmt: skip
    return {**{n: getattr(run, n) for n in names}, "objective": run.objective.model_dump(mode="json")}


def _trial_fields(trial: Trial) -> dict[str, object]:
    names = (
        "number", "round", "block", "twin", "layout_name", "layout_hash", "target", "status", "error",
        "engine_version",
        "openzfs_version", "started", "wall_s", "is_baseline", "spec", "result", "trace_path", "trace_sha",
    )  # fmt: skip
    layout = trial.layout
    return {
        **{n: getattr(trial, n) for n in names},
        "attempts": trial.attempts,
        "series": [asdict(s) for s in trial.series],
        "layout": layout.to_json(),
        "settings": layout.settings(),
        "durability": {"class": judge(layout).klass.value, "reasons": judge(layout).reasons},
    }


def _print_run(run: Run, trials: Sequence[Trial]) -> None:
    if run.trace_path:
        output.echo(f"\ntrace       {run.trace_path} (sha {run.trace_sha[:12]})")
        for path in dict.fromkeys(t.trace_path for t in trials if t.trace_sha not in ("", run.trace_sha)):
            output.echo(f"            and, for a job of other settings, {path}")
    else:
        params = ", ".join(
            f"{k}={v}" for k, v in run.job.get("params", {}).items() if not isinstance(v, dict)
        )
        output.echo(f"\njob         {run.job.get('workload', '')}: {params}")
        if run.job.get("calibration"):
            from ztune.runs.plan import held  # here, as it takes what makes jobs of workloads

            output.echo(f"load        {held(run.job['calibration'])}")
        output.echo(f"target      {run.where}")
        for host in run.target.get("hosts", ()):
            said = ", ".join(f"{key} {host[key]}" for key in ("kernel", "cpu", "cpus") if host.get(key))
            done = sum(t.ok and t.host.split(" ")[0] == host["name"] for t in trials)
            output.echo(f"            {host['name']}: {counted(done, 'trial')} done; {said or 'was not up'}")
    output.echo(f"versions    {', '.join(f'{k} {v}' for k, v in run.versions.items())}")
    memory = run.environment.get("memory_bytes")
    machine = [str(run.environment[key]) for key in ("kernel", "cpu") if run.environment.get(key)]
    machine += [f"{memory >> 20} MiB"] if isinstance(memory, int) else []
    output.echo(f"machine     {', '.join(machine) or 'not recorded'}")
    by = f" by {run.made_by}" if run.made_by else ""
    output.echo(f"made        {run.created}{by}, status {run.status}, seed {run.seed}")
    for warning in run.warnings:
        output.echo(f"warning     {warning}")
    for trial in trials:
        if trial.status == "failed":
            output.echo(f"failed      {trial.number} {trial.layout_name}: {trial.error}")
        elif trial.status != "ok":
            output.echo(f"not done    {trial.number} {trial.layout_name}")


def _print_trial(run: Run, trial: Trial) -> None:
    layout, result, judged = trial.layout, trial.result, judge(trial.layout)
    output.echo(f"trial {trial.number} of run {run.id}: {trial.layout_name} ({trial.layout_hash})")
    output.echo(f"status      {trial.status}" + (f": {trial.error}" if trial.error else ""))
    if run.target.get("hosts"):
        output.echo(f"host        {trial.host}, block {trial.block}")
    if trial.trace_path:
        output.echo(f"trace       {trial.trace_path} (sha {trial.trace_sha[:12]})")
    output.echo(f"durability  {judged.klass.value}")
    for reason in judged.reasons:
        output.echo(f"            {reason}")
    output.echo("settings")
    for key, value in layout.settings().items():
        output.echo(f"  {key:28} {value}")
    if result:
        output.echo("measure")
        measured = {k: v for k, v in result.items() if k in ("job", "measure", "steps")}
        for key, value in _flat(measured if run.kind == "run" else result.get("measure", {})):
            output.echo(f"  {key:44} {value}")
        processes.show(processes.of(trial), output.Console(highlight=False))
    output.echo(f"again       {' '.join(_again(run, trial)['command'])}")


def _print_series(trial: Trial, name: str, as_json: bool) -> None:
    from ztune.store import series  # Parquet: to show a run takes none

    columns = series.read(trial, name)
    if as_json:
        output.print_json({"trial": trial.number, "series": name, "columns": dict(columns)})
        return
    output.echo(",".join(columns))
    for row in zip(*columns.values(), strict=True):
        output.echo(",".join("" if value is None else f"{value:.15g}" for value in row))


def _flat(node: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(node, dict):
        return [
            item for key, value in node.items() for item in _flat(value, f"{prefix}.{key}" if prefix else key)
        ]
    if isinstance(node, list):
        return [item for i, value in enumerate(node) for item in _flat(value, f"{prefix}[{i}]")]
    return [(prefix, node)]


def _rerun(record: dict[str, Any], as_json: bool) -> int:
    """Run a trial again from its record alone; 1 if the engine failed."""
    # Here, as to show a run takes none of what replays one: engine, psutil, export of the trace.
    from ztune.places import engine as engines
    from ztune.places.rerun import compare, rerun

    engine = engines.of_run(record["run"]["versions"])
    path = record["trial"]["trace_path"] or record["run"]["trace_path"]
    outcome = rerun(record, Trace.open(Path(path)), engine)
    if outcome.result is None:
        output.note(f"the trial failed again: {outcome.error}")
        return 1
    rows = compare(record, outcome.result)
    if as_json:
        output.print_json({"result": outcome.result, "compared": rows})
        return 0
    for row in rows:
        output.echo(f"{row['metric']:44} stored {row['stored']}  again {row['again']}")
    return 0
