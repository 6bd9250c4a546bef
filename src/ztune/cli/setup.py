"""``ztune setup``: bring what a workload needs."""

from __future__ import annotations

import click

from ztune import output
from ztune.cli._options import argument, json_option, option, takes
from ztune.cli._values import pairs
from ztune.databases import setup


@click.command("setup")
@takes
def command(
    workload: str = argument(),
    params: tuple[str, ...] = option(
        "-p",
        "--param",
        metavar="NAME=VALUE",
        help="A parameter of the workload, where another value needs other things.",
    ),
    version: str | None = option(
        "--version",
        metavar="VERSION",
        help='With "openzfs": which one, as 2.4 or 2.4.4. Of a workload: the same as -p version=VERSION.',
    ),
    dry_run: bool = option("--dry-run", help="Only say what would be done."),
    as_json: bool = json_option,
) -> int:
    """Install what WORKLOAD needs, with this system's own package manager, and nothing else.

    "programs" stands for ztune's own: what they are built with is installed, and they are built, for this
    machine's OpenZFS. Without it they are built on first use, if that is here.

    "openzfs" stands for the replay engine and the mount with another OpenZFS than this machine's, for the
    option --openzfs of `ztune screen`, `mount`, `run` and `tune`: Debian's packages of it are unpacked into a
    directory of ztune's own, both are built against them, and nothing is installed. `ztune clean --openzfs`
    removes them.

    What no package has, such as OrientDB, is fetched with Maven or pip into ztune's own cache: a pinned
    version, checked by its SHA-256.

    ztune says each command, and why, before it runs it. What is there already stays as it is; a second run
    finds everything there. No database is set up: a workload makes its own for each run.

    \b
    Examples:
      ztune setup programs                    the replay engine, the mount, the recorders
      ztune setup openzfs --version 2.4       engine and mount with OpenZFS 2.4, beside this machine's own
      ztune setup mariadb-oltp
      ztune setup rocksdb --dry-run
      ztune setup postgres-oltp --json
      ztune setup orientdb-import -p version=1.7.4

    Exit code 0 if everything is there at the end, 1 if a command failed, 3 if something is missing that can't
    be brought.
    """
    given = pairs(params) | ({} if version is None else {"version": version})
    wanted = setup.plan(workload, given)

    def say(step: setup.Step) -> None:
        output.echo(f"{step.text}\n    {step.why}", err=as_json)

    done = wanted
    if wanted.steps and dry_run:
        if not as_json:
            for step in wanted.steps:
                say(step)
    elif wanted.steps:
        done = setup.carry_out(wanted, say)
    if as_json:
        shown = {
            "workload": workload,
            "ready": not done.missing,
            "version": done.version,
            "missing": done.missing,
            "steps": [{"command": list(step.argv), "why": step.why} for step in wanted.steps],
            "done": bool(wanted.steps) and not dry_run,
        }
        output.print_json(shown)
    elif done.version:
        output.echo(f"{workload}: everything is there: {done.version}")
    elif not done.missing:
        output.echo(f"{workload}: nothing to install")
    return 0
