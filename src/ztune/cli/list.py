"""``ztune list``: the workloads, studies and disk profiles there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ztune import output
from ztune.cli._options import argument, json_option, option, takes
from ztune.databases import registry
from ztune.databases.registry import ListedWorkload
from ztune.onhost.declared import Declared
from ztune.runs.recordings import completed, varied
from ztune.runs.space import aliases, differences, first_round, meaning
from ztune.study import Layout, Study, advised, load_study, ready
from ztune.study import profiles as known
from ztune.study.adjust import adjusted
from ztune.study.advised import AdviceSet
from ztune.study.durability import judge
from ztune.study.schema import study_schema


@click.group("list")
def command() -> None:
    """List what there is to choose from.

    \b
      ztune list workloads
      ztune list layouts                    the ready studies
      ztune list layouts postgres-oltp      the layouts one of them tries
      ztune list advice openzfs-guide       what a guide says, with its source
      ztune list profiles --json
    """


@command.command("workloads")
@takes
def workloads(
    workload: str | None = argument(required=False),
    everything: bool = option("--all", help="Every workload with its parameters."),
    as_json: bool = json_option,
) -> None:
    """List the workloads that ztune can run itself, a line for each; or all about one of them.

    That is its roles, its parameters, what it needs, and whether that is here.

    \b
      ztune list workloads
      ztune list workloads postgres-oltp
      ztune setup postgres-oltp             brings what it needs
      ztune tune postgres-oltp -p NAME=VALUE
    """
    if workload is not None:
        registry.get(workload)  # raises with a hint
    entries = [registry.examined(e) for e in registry.entries() if workload in (None, e.name)]
    if as_json:
        output.print_json([asdict(e) for e in entries])
    elif workload is None and not everything:
        output.print_table(
            ("workload", "here", "what it does"),
            [(_named(entry), _here(entry), entry.trouble or entry.summary) for entry in entries],
            otherwise=200,
        )
        output.echo("`ztune list workloads NAME` shows its parameters, and what it needs.")
    else:
        for entry in entries:
            _show(entry)


def _named(entry: ListedWorkload) -> str:
    return entry.name if entry.source == "ztune" else f"{entry.name} (from {entry.source})"


def _here(entry: ListedWorkload) -> str:
    """Return in a word whether a workload can run here."""
    return "no" if entry.trouble or entry.missing else "yes"


def _show(entry: ListedWorkload) -> None:
    """Print all about one workload."""
    console = output.Console(highlight=False)
    console.print(output.Text.assemble((_named(entry), "bold"), f": {entry.summary}"), soft_wrap=True)
    for line in _standing(entry):
        console.print(f"  {line}", soft_wrap=True)
    rows = []
    for p in entry.parameters:
        unit = f" {p.unit}" if p.unit and p.type != "size" else ""  # a size has its own: 64M
        limits = f" ({p.allowed})" if p.allowed else ""
        rows.append((p.name, p.type, f"{p.default}{unit}", p.meaning + limits))
    if rows:
        output.print_table(("parameter", "type", "default", "meaning"), rows, otherwise=80)


def _standing(entry: ListedWorkload) -> list[str]:
    """Return the lines on a workload's roles, and on what it needs and whether that is here."""
    lines = [f"roles: {entry.roles}"] if entry.roles else []
    if entry.trouble:
        lines.append(f"trouble: {entry.trouble}")
    if entry.missing:
        lines.append(f"missing: {entry.missing}")
        if entry.needs:
            lines.append(f"`ztune setup {entry.name}` installs {', '.join(entry.needs)}")
    elif entry.version:
        packages = f" ({', '.join(entry.needs)})" if entry.needs else ""
        lines.append(f"needs: {entry.version}{packages}, which is here")
    return lines


@command.command("layouts")
@takes
def layouts(
    study: str | None = argument(required=False),
    schema: bool = option("--schema", help="Print the JSON Schema of study files instead."),
    as_json: bool = json_option,
) -> None:
    """List the ready studies, or the layouts of STUDY (a name or a TOML file).

    \b
      ztune list layouts
      ztune list layouts postgres-oltp
      ztune list layouts my-study.toml --json
      ztune list layouts --schema > study.schema.json
    """
    if schema:
        output.print_json(study_schema())
        return
    if study is None:
        found = []
        for name, path in ready.files().items():
            loaded = _as_screened(load_study(path))
            tried = len(first_round(loaded))
            found.append(
                {"name": name, "layouts": tried, "description": loaded.description, "file": str(path)}
            )
        _print(found, as_json, hide=("file",))
        return
    loaded = _as_screened(ready.find(study))
    if loaded.workload is not None:
        loaded = adjusted(loaded, declared=registry.declared(loaded.workload, loaded.parameters))
    else:
        loaded = adjusted(loaded, declared=Declared())  # as of a recording of a database that nobody knows
        output.echo(
            "ztune: the study names no workload, so durability is that of a database that nobody knows; "
            "`ztune screen` goes by what it knows of the recorded one",
            err=True,
        )
    named: dict[str, list[str]] = {}
    for name, same in aliases(loaded).items():
        named.setdefault(meaning(same), []).append(name)
    _print(
        [
            {
                **_called(layout, named.get(meaning(layout), []), as_json),
                "hash": layout.hash,
                "durability": judge(layout).klass.value,
                "changes": differences(loaded.layout, layout),
                "layout": layout.to_json(),
            }
            for layout in first_round(loaded)
        ],
        as_json,
        hide=("changes", "layout"),
    )


def _called(layout: Layout, names: Sequence[str], as_json: bool) -> dict[str, object]:
    """Return what a layout is called: its name, and what the study names it where that is another."""
    others = [name for name in names if name != layout.name]
    if as_json:
        return {"name": layout.name, "also": others}
    return {"name": " = ".join([layout.name, *others])}


def _as_screened(study: Study) -> Study:
    """Return ``study``; where its layouts change the job itself, with what the job has in the base."""
    if study.workload is None or not varied(study):
        return study
    return completed(study, study.workload, study.parameters, settings=True)


@command.command("advice")
@takes
def advice(name: str | None = argument(required=False), as_json: bool = json_option) -> None:
    """List the advice that is in print, as sets that `--advice` takes; or all of one set, with its sources.

    Your own stand in `studies/advice/` of the state directory; docs/advice.md explains the format.

    \b
      ztune list advice
      ztune list advice openzfs-guide
      ztune screen my.trace --advice openzfs-guide
    """
    if name is not None:
        found = advised.find(name)
        if as_json:
            output.print_json(found.model_dump(mode="json", exclude_none=True))
        else:
            _show_advice(name.removeprefix(advised.PREFIX), found)
        return
    _print(
        [
            {
                "name": one,
                "of": ", ".join(loaded.database),
                "as of": loaded.as_of,
                "title": loaded.title,
                "file": str(path),
            }
            for one, path in advised.files().items()
            for loaded in [advised.load(path)]
        ],
        as_json,
        hide=("file",),
    )


def _show_advice(name: str, found: AdviceSet) -> None:
    """Print all of one set."""
    by = f", {found.author}" if found.author else ""
    output.echo(f"{advised.PREFIX}{name}: {found.title}{by} (as of {found.as_of})")
    for text in filter(None, (found.url, found.note)):
        output.echo(f"  {text}")
    for database, said in found.database.items():
        output.echo(f"\n{'every other database' if database == advised.ANY else database}")
        if said.note:
            output.echo(f"  {said.note}")
        rows = []
        for role, values in said.roles().items():
            rows += [(f"{role}.{key}", str(v.value), v.says) for key, v in values.items()]
            if not values:
                rows.append((role, "ZFS's defaults", ""))
        rows += [(f"tunable.{key}", str(v.value), v.says) for key, v in said.tunables.items()]
        rows += [(f"database.{key}", str(v.value), v.says) for key, v in said.settings.items()]
        output.print_table(("setting", "value", "what the source says"), rows, otherwise=110)
        for text in said.left_out:
            output.echo(f"  not taken: {text}")


@command.command("profiles")
@takes
def profiles(as_json: bool = json_option) -> None:
    """List the disk profiles: those of ztune, and your own in `profiles/` of the state directory.

    \b
      ztune list profiles
      ztune screen my.trace --profile nvme
      ztune screen my.trace --profile ./my-disk.toml
    """
    found = [known.find(name) for name in known.names()]
    _print(
        [{**one.model_dump(mode="json"), "cache": one.declared_cache} for one in found],
        as_json,
        show=("name", "kind", "cache", "description"),
    )


def _print(
    rows: list[dict[str, Any]], as_json: bool, *, hide: tuple[str, ...] = (), show: tuple[str, ...] = ()
) -> None:
    """Print rows as a table, without the columns ``hide`` or only with ``show``; or all of them as JSON."""
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        output.echo("There are none.")
        return
    columns = show or tuple(key for key in rows[0] if key not in hide)
    output.print_table(
        columns,
        [[str(row[column]) for column in columns] for row in rows],
        right=[column for column in columns if isinstance(rows[0][column], int)],
        otherwise=80,
    )
