"""``ztune umount``: the clean end of a mount."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from ztune import output
from ztune.errors import InputError


@click.command("umount", short_help="Unmount what `ztune mount` mounted.")
@click.argument("directory", metavar="DIR")
@click.option("--destroy", is_flag=True, help="Delete the disks' files too, with all that is on them.")
@click.option("--force", is_flag=True, help="Unmount even if programs use it; they get errors from then on.")
def command(directory: str, destroy: bool, force: bool) -> int:
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
    from ztune.cli.mount import found_at, resolved
    from ztune.onhost.host.interrupt import signals_as_interrupt
    from ztune.places import mount_points

    place = resolved(directory)
    found_at(place)
    with signals_as_interrupt(), mount_points.locked(place):
        point = found_at(place)
        if destroy:
            # Before the mount is ended, not after.
            with contextlib.suppress(FileNotFoundError):
                point.kept.check()
        _unmount(point, destroy, force)
        if destroy:
            store = point.kept
            size = store.allocated()
            store.remove()
            point.forget()
            from ztune.analysis.units import amount

            output.echo(f"{point.directory}: what was kept of it is deleted: {amount(size)} in {point.store}")
        else:
            output.echo(f"{point.directory} is unmounted; its files are kept in {point.store}")
    return 0


def _unmount(point: Any, destroy: bool, force: bool) -> None:
    from ztune.cli._waiting import waiting
    from ztune.cli.mount import _STOP_S, state_of
    from ztune.onhost.host import mounted, mounts

    state, mount = state_of(point)
    if state == "kept" and not destroy:
        raise InputError(
            f"{point.directory}: is not mounted; its files are kept in {point.store}; --destroy deletes them"
        )
    if mount is not None:
        if not force:
            users = [
                who for place in point.places.values() for who in mounts.users(place, without={mount.pid})
            ]
            if users:
                raise InputError(
                    f"{point.directory}: is used by {', '.join(dict.fromkeys(users))}; stop what uses it, or "
                    f"unmount it under them with --force"
                )
        with waiting("unmounting: the disks' caches are written"):
            try:
                mount.stop(_STOP_S)
            except mounted.MountError as error:
                # What is deleted anyway need not have been written: its disk may be full.
                if not destroy or mount.alive():
                    raise
                output.echo(f"note: {error}", err=True)
        if mount.said:
            output.echo(f"note: {mount.said}", err=True)
    elif state == "dead":
        for place in point.dead():
            mounted.detach(place)
        said = mounted.last_words(point.disks)
        why = f": {said}" if said else ""
        output.echo(f"{point.directory}: the program was gone already, as in a power cut{why}", err=True)
    point.remove_places()
