"""``ztune fleet``: what many machines need that replay, or run trials, together."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from rich.table import Table

from ztune import output
from ztune.analysis.units import amount
from ztune.cli._options import argument, json_option, option, takes
from ztune.cli._waiting import waiting
from ztune.fleet import certs
from ztune.output import Text
from ztune.places import rack


@click.group()
def command() -> None:
    """What many machines need: certificates where they replay, a look at them where they run trials.

    \b
      ztune fleet check fleet.toml
      ztune run postgres-oltp --on fleet.toml
      ztune fleet certs /etc/ztune-fleet
      ztune screen my.trace --on tls://10.0.0.1:8786
    """


@command.command("certs")
@takes
def certificates(
    folder: Path = argument(metavar="DIR"),
    days: int = option(
        "--days", type=click.IntRange(1, 3650), default=certs.DAYS, help="How long they are good."
    ),
) -> None:
    """Make certificates, by which the machines of a fleet know each other, in the new directory DIR.

    Copy DIR to the same path on each machine, readable for its user alone, and name it there:
    `export DASK_CONFIG=DIR`. Dask then encrypts, and talks to nobody without such a certificate. Whoever can
    read DIR can run programs on all workers. The key that signed is not kept: new machines take a copy too.

    \b
      ztune fleet certs /etc/ztune-fleet
      scp -rp /etc/ztune-fleet db2:/etc/
      export DASK_CONFIG=/etc/ztune-fleet
    """
    until = certs.make(folder, days)
    output.echo(
        f"{folder} has the certificates, good until {until:%Y-%m-%d}; copy it to the same path on each "
        f"machine and `export DASK_CONFIG={shlex.quote(str(folder.absolute()))}` there"
    )


@command.command("check")
@takes
def check(
    file: Path = argument(metavar="FILE", type=click.Path(path_type=Path, dir_okay=False)),
    as_json: bool = json_option,
) -> int:
    """Ask the hosts in FILE whether `ztune run --on FILE` can use them; nothing is changed there.

    Each is asked over ssh, all at once: whether it is there, lets us in as root, has Python, OpenZFS, and the
    datasets, disks or directories that FILE names; and whether trials run there or left something.

    \b
      ztune fleet check fleet.toml

    Exit code 1 if a host has a problem, or not all have the same OpenZFS.
    """
    hosts = rack.read(file)
    with waiting(f"asking {len(hosts.places)} hosts"):
        found = rack.check(hosts)
    versions = sorted({one.openzfs for one in found if one.about})
    if as_json:
        rows = [{"host": one.name, **one.about, "problems": list(one.problems)} for one in found]
        output.print_json({"hosts": rows, "openzfs": versions})
    else:
        table = Table("host", "OpenZFS", "kernel", "processors", "memory", "", box=None, pad_edge=False)
        for one in found:
            about = one.about
            memory = amount(about["memory"]) if "memory" in about else "–"
            words = Text("; ".join(one.problems) or "ready", style="red" if one.problems else "green")
            cells = [str(about.get(key) or "–") for key in ("kernel", "cpus")]
            table.add_row(Text(one.name), one.openzfs or "–", *cells, memory, words)
        output.Console(highlight=False).print(table)
        if len(versions) > 1:
            output.echo(
                f"They have OpenZFS {', '.join(version or 'none' for version in versions)}: a run uses the "
                "hosts that have the version of the first that is up."
            )
    return 1 if len(versions) > 1 or any(one.problems for one in found) else 0
