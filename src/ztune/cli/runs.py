"""``ztune runs``: the runs in the results database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.cli._options import json_option, option, takes
from ztune.errors import InputError
from ztune.runs.named import resolve
from ztune.store import deletion
from ztune.store.db import Store
from ztune.units import counted

_SHOWN = 20


@click.command("runs")
@takes
def command(
    unwanted: tuple[str, ...] = option(
        "--delete",
        metavar="RUN",
        help="Delete this run, and the trace that was made for it alone. Repeatable.",
    ),
    yes: bool = option("--yes", help="With --delete: do it. Without --yes it is only shown."),
    every: bool = option("--all", help=f"All of them, not only the last {_SHOWN}."),
    as_json: bool = json_option,
) -> None:
    """List the last runs, oldest first, or delete some.

    \b
      ztune runs
      ztune runs --json                    all of them
      ztune runs --delete 7f3k2a           show what that deletes
      ztune runs --delete 7f3k2a --yes

    What a cut run left where its trials ran is not in the store: `ztune clean --run RUN` destroys it, before
    the run is deleted. Undo files of `ztune apply` stay. A verdict of `ztune claims` that cites the run
    stays as well, and says that its trials are gone.
    """
    if unwanted:
        _delete(unwanted, yes, as_json)
        return
    if yes:
        raise InputError("--yes goes with --delete RUN")
    with Store.open() as store:
        rows = []
        runs = store.runs()
        shown = runs if every or as_json else runs[-_SHOWN:]
        for run in shown:
            trials = store.trials(run.id)
            # A run whose process is gone was cut without a chance to say so.
            status = "interrupted" if run.status == "running" and not store.is_live(run) else run.status
            rows.append(
                {
                    "id": run.id,
                    "created": run.created,
                    "kind": run.kind,
                    "name": run.name,
                    "status": status,
                    "layouts": len({t.arm for t in trials}),
                    "trials": len(trials),
                    "ok": sum(t.status == "ok" for t in trials),
                    "failed": sum(t.status == "failed" for t in trials),
                    "target": run.target.get("name", "replay"),
                    "blocks": max((t.block for t in trials), default=0),
                    "trace": run.trace_path,
                    "trace_sha": run.trace_sha,
                    "openzfs": run.versions.get("openzfs", ""),
                    "engine": run.versions.get("engine", ""),
                    "seed": run.seed,
                    "made_by": run.made_by,
                }
            )
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        output.echo("There are no runs yet; `ztune screen TRACE` or `ztune run WORKLOAD` makes one.")
        return
    # Whose a run is matters where there are others'.
    makers = {row["made_by"] for row in rows}
    by = len(makers) > 1
    heads = ("run", "created (UTC)", "status", "trials", "name", "trace, or where it ran")
    output.print_table(
        (*heads, "made by") if by else heads,
        [(*_cells(row), row["made_by"]) if by else _cells(row) for row in rows],
    )
    if len(runs) > len(shown):
        output.echo(f"and {counted(len(runs) - len(shown), 'older run')}: --all")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    done = f"{row['ok']} of {row['trials']}" + (f", {row['failed']} failed" if row["failed"] else "")
    created = row["created"][:16].replace("T", " ")
    return row["id"], created, row["status"], done, row["name"], Path(row["trace"]).name or row["target"]


def _delete(unwanted: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Say what deleting the runs takes away; do it with ``yes``."""
    from ztune.claims import verdict as verdicts  # here, as a list of runs takes no claims

    with Store.open() as store:
        runs = list(
            {found.id: found for found in (resolve(one, "run", store=store) for one in unwanted)}.values()
        )
        store.check_deletable([run.id for run in runs])
        folders = deletion.folders(store, runs)
        citing = verdicts.citing([run.id for run in runs])
        rows: list[dict[str, Any]] = [
            {
                "id": run.id,
                "name": run.name,
                "trials": len(store.trials(run.id)),
                "folders": [str(folder) for folder in folders[run.id]],
                "verdicts": [claim for claim, cited in citing.items() if run.id in cited],
                "deleted": yes,
            }
            for run in runs
        ]
        if yes:
            # First: a verdict may say too early that its trials are gone, and never too late.
            verdicts.lose([run.id for run in runs])
            deletion.delete(store, runs)
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        output.echo(f"{'deleted ' if yes else ''}run {row['id']}, {row['name']}: {row['trials']} trials")
        for folder in row["folders"]:
            output.echo(f"  {folder}")
        for claim in row["verdicts"]:
            output.echo(
                f"  cited by the verdict on {claim}, which {'says' if yes else 'will say'} that its trials "
                f"are gone; `ztune claims test {claim}` makes them anew"
            )
    if not yes:
        output.echo("Nothing was changed; --yes deletes it.")
