"""``ztune fleet``: what many machines that replay together need."""

from __future__ import annotations

from pathlib import Path

import click

from ztune import output
from ztune.cli._options import argument, option, takes
from ztune.fleet import certs


@click.group()
def command() -> None:
    """What many machines that replay together need: certificates.

    \b
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
        f"machine and `export DASK_CONFIG={folder.absolute()}` there"
    )
