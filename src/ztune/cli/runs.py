"""``ztune runs``: the runs in the results database."""

from __future__ import annotations

from typing import Any

import click

from ztune import output
from ztune.errors import InputError


@click.command("runs", short_help="The runs there are.")
@click.option(
    "--delete", "unwanted", multiple=True, metavar="RUN",
    help="Delete this run, and the trace that was made for it alone. Repeatable.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="With --delete: do it. Without --yes it is only shown.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(unwanted: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """List the runs, oldest first, or delete some.

    \b
      ztune runs
      ztune runs --json
      ztune runs --delete 7f3k2a           show what that deletes
      ztune runs --delete 7f3k2a --yes

    What a cut run left where its trials ran is not in the store: `ztune clean --run RUN` destroys it, before
    the run is deleted. Undo files of `ztune apply` stay.
    """
    from pathlib import Path

    from rich.table import Table

    from ztune.store.db import Store

    if unwanted:
        _delete(unwanted, yes, as_json)
        return
    if yes:
        raise InputError("--yes goes with --delete RUN")
    with Store.open() as store:
        rows = []
        for run in store.runs():
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
                }
            )
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        output.echo("There are no runs yet; `ztune screen TRACE` or `ztune run WORKLOAD` makes one.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # The id is what the next command needs: it stays whole, and the trace gives way on a narrow terminal.
    for column, width in (("run", 6), ("created (UTC)", 16), ("status", 11), ("trials", 8), ("name", 13)):
        table.add_column(column, no_wrap=True, min_width=width)
    table.add_column("trace, or where it ran", no_wrap=True, overflow="ellipsis")
    for row in rows:
        layouts = f"{row['ok']} of {row['trials']}" + (f", {row['failed']} failed" if row["failed"] else "")
        created = str(row["created"])[:16].replace("T", " ")
        table.add_row(
            str(row["id"]),
            created,
            str(row["status"]),
            layouts,
            str(row["name"]),
            Path(str(row["trace"])).name or str(row["target"]),
        )
    output.Console().print(table)


def _delete(unwanted: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Say what deleting the runs takes away; do it with ``yes``."""
    from ztune.store import deletion
    from ztune.store.db import Store

    with Store.open() as store:
        runs = list({found.id: found for found in map(store.run, unwanted)}.values())
        store.check_deletable([run.id for run in runs])
        folders = deletion.folders(store, runs)
        rows: list[dict[str, Any]] = [
            {
                "id": run.id,
                "name": run.name,
                "trials": len(store.trials(run.id)),
                "folders": [str(folder) for folder in folders[run.id]],
                "deleted": yes,
            }
            for run in runs
        ]
        if yes:
            deletion.delete(store, runs)
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        output.echo(f"{'deleted ' if yes else ''}run {row['id']}, {row['name']}: {row['trials']} trials")
        for folder in row["folders"]:
            output.echo(f"  {folder}")
    if not yes:
        output.echo("Nothing was changed; --yes deletes it.")
