"""``ztune runs``: the runs in the results database."""

from __future__ import annotations

import json

import click


@click.command("runs", short_help="The runs there are.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List the runs, oldest first.

    \b
      ztune runs
      ztune runs --json
      ztune show last
    """
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from ztune.store.db import Store

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
                    "layouts": len(trials),
                    "ok": sum(t.status == "ok" for t in trials),
                    "failed": sum(t.status == "failed" for t in trials),
                    "trace": run.trace_path,
                    "trace_sha": run.trace_sha,
                    "openzfs": run.versions.get("openzfs", ""),
                    "engine": run.versions.get("engine", ""),
                    "seed": run.seed,
                }
            )
    if as_json:
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if not rows:
        click.echo("There are no runs yet; `ztune screen TRACE` makes one.")
        return
    table = Table()
    for column in ("id", "created", "name", "status", "layouts", "ok", "failed", "trace", "openzfs"):
        table.add_column(column, overflow="fold")
    for row in rows:
        values = [
            row[c] for c in ("id", "created", "name", "status", "layouts", "ok", "failed", "trace", "openzfs")
        ]
        values[1] = str(values[1])[:16].replace("T", " ")
        values[7] = Path(str(values[7])).name
        table.add_row(*(str(v) for v in values))
    Console().print(table)
