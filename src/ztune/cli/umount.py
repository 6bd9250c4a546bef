"""``ztune umount``: the clean end of a mount."""

from __future__ import annotations

import click

from ztune import output
from ztune.analysis.units import amount
from ztune.cli._options import argument, option, takes
from ztune.cli._waiting import waiting
from ztune.places import mounting


@click.command("umount")
@takes
def command(
    directory: str = argument(metavar="DIR"),
    destroy: bool = option("--destroy", help="Delete the disks' files too, with all that is on them."),
    force: bool = option("--force", help="Unmount even if programs use it; they get errors from then on."),
) -> int:
    """Unmount a layout in order; the files are kept, and `ztune mount` mounts them again.

    Pools are exported and the disks' caches written, which takes as long as the modelled disks do. While
    programs use the mount, ztune refuses and names them. After a crash of the mount it takes away what is
    left.

    \b
    Examples:
      ztune umount /mnt/pg
      ztune umount --destroy /mnt/pg      the disks' files too

    --destroy deletes only what `ztune mount` made, after looking at it again.
    """
    point, deleted = mounting.unmount(
        directory, destroy, force, waiting, lambda text: output.echo(text, err=True)
    )
    if deleted is None:
        output.echo(f"{point.directory} is unmounted; its files are kept in {point.store}")
    else:
        size = amount(deleted)
        output.echo(f"{point.directory}: what was kept of it is deleted: {size} in {point.store}")
    return 0
