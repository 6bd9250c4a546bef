"""Mounting a layout at a directory and unmounting it: each is done whole, or nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from ztune.errors import InputError, Refused
from ztune.native import openzfs as native_openzfs
from ztune.onhost.host import mounted, mounts, own_directory
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.onhost.trial.mount_store import MountStore
from ztune.places import mount_points, mount_program
from ztune.places.engine_spec import mount_spec
from ztune.places.mount_points import MountPoint
from ztune.places.mount_program import MountProgram
from ztune.study import Layout, Study

STOP_S = 3600.0  # a slow disk may have gigabytes to write

# "unfinished": ztune was killed as it made the store, and nothing is in it.
PointState = Literal["mounted", "dead", "kept", "unfinished"]

# Shows what is waited for within its body.
Waiting = Callable[[str], AbstractContextManager[None]]


def resolved(directory: str) -> Path:
    """Return ``directory``, as a user gave it, without links."""
    # Not `Path.resolve`, to which a mount whose program is gone is an error.
    return Path(os.path.realpath(directory))


def mount(
    study: Study,
    layout: Layout,
    where: str,
    options: MountOptions,
    store: str | None,
    waiting: Waiting,
    openzfs: str | None = None,
) -> tuple[MountPoint, Mount]:
    """Mount ``layout`` of ``study`` below the directory ``where``; return its record and the mount.

    ``store``: where the disks' files are kept; by default below the state directory. What was mounted there
    before is mounted again. ``openzfs``: a version or its beginning; by default the one that made the pools
    if it is here, else this machine's own. Raises InputError, MissingError, MountError; a new store is then
    removed again.
    """
    mount_points.check_layout(layout)
    if openzfs is not None:
        mount_program.check(openzfs)  # before anything is made
    try:
        # A link that somebody else has put there is not followed.
        directory = own_directory.real(Path.cwd() / where)
    except OSError:
        directory = resolved(where)  # what it is instead of a directory is said below
    except own_directory.NotOursError as error:
        raise InputError(f"{where}: can't be mounted on: {error}") from None
    # As it comes back from the record, to be compared with that.
    spec = json.loads(json.dumps(mount_spec(study, layout, study.seed)))
    with mount_points.locked(directory):
        point = mount_points.find(directory)
        if point is not None and point.unfinished:
            point.discard()  # of a mount that was killed before there was anything in it
            point = None
        new = point is None
        if point is None:
            point = _new(study, layout, spec, directory, store)
        else:
            point = _again(point, layout, spec, store)
        try:
            if new:
                # Its record first: what is cut from here on is found by it.
                point.write()
                MountStore.create(point.store, point.token)
            program = _program(point, openzfs)
            point = mount_points.changed(point, options, point.openzfs or program.openzfs)
            with waiting(f"{'making' if new else 'importing'} the pools of {layout.name}"):
                running = Mount.start(
                    program.path, spec, point.disks, point.places, options, patience_s=STOP_S
                )
        except BaseException:
            if new:
                # Where the store stays, its record says so, and why we are here is what counts.
                with contextlib.suppress(Refused):
                    point.discard()
            raise
    return point, running


def _program(point: MountPoint, wanted: str | None) -> MountProgram:
    """Return the program for ``point``. Raises MissingError; InputError where it is older than the pools."""
    made_with = point.openzfs
    there = made_with if native_openzfs.library(made_with) else None
    program = mount_program.ask(mount_program.check(wanted or there))
    if made_with and native_openzfs.order(program.openzfs) < native_openzfs.order(made_with):
        raise InputError(
            f"{point.directory}: its pools were made with OpenZFS {made_with}, which the older "
            f"{program.openzfs} can't import; mount them with --openzfs {made_with} or a newer one"
        )
    return program


def _new(
    study: Study, layout: Layout, spec: dict[str, Any], directory: Path, store: str | None
) -> MountPoint:
    """Return the point of a directory that nothing is known of; its store is yet to be made."""
    if directory.exists():
        try:
            if any(directory.iterdir()):
                raise InputError(f"{directory}: is not empty; a mount takes a directory of its own")
        except OSError as error:
            raise InputError(f"{directory}: can't be mounted on: {error.strerror}") from None
    where = mount_points.folder_of(directory) / "store" if store is None else Path.cwd() / store
    try:
        where = own_directory.real(where)
    except OSError as error:
        raise InputError(f"{where}: can't become a store: {error.strerror}") from None
    except own_directory.NotOursError as error:
        raise InputError(f"{where}: can't become a store: {error}") from None
    if where == directory or where in directory.parents or directory in where.parents:
        raise InputError(
            f"--store {where} and {directory} lie in each other; name another place for the store"
        )
    names = mount_points.names([dataset.name for dataset in layout.datasets])
    return MountPoint(
        directory=directory,
        store=where,
        token=secrets.token_hex(16),
        places={dataset: directory / name for dataset, name in names.items()},
        study=study.name,
        layout=layout,
        spec=spec,
        options={},
        made=not directory.exists(),
        unfinished=True,
    )


def _again(point: MountPoint, layout: Layout, spec: dict[str, Any], store: str | None) -> MountPoint:
    """Return the point of a directory mounted before, if it fits what is asked. Raises InputError."""
    if point.mount() is not None:
        raise InputError(
            f'{point.directory}: layout "{point.layout.name}" is mounted there already; '
            f"`ztune mount --stats {point.pasted}` shows it, `ztune umount {point.pasted}` unmounts it"
        )
    if point.spec != spec:
        same = point.layout.hash == layout.hash
        holds = "other disks or another version of them" if same else f'layout "{point.layout.name}"'
        raise InputError(
            f"{point.directory}: what is kept of it has {holds} (study {point.study}, {point.layout.hash}); "
            f"mount that again, or delete it with `ztune umount --destroy {point.pasted}`"
        )
    if store is not None and Path(os.path.realpath(store)) != point.store:
        raise InputError(f"{point.directory}: its store is {point.store} already; leave --store out")
    try:
        point.kept.check()
    except FileNotFoundError:
        raise InputError(
            f"{point.directory}: its store {point.store} is gone; "
            f"`ztune umount --destroy {point.pasted}` forgets it"
        ) from None
    return point


def found_at(directory: Path) -> MountPoint:
    """Return the point at ``directory``. Raises InputError with the right one, if there is one."""
    point = mount_points.find(directory)
    if point is None:
        other = mount_points.above(directory)
        if other is not None:
            raise InputError(f"{directory} is one directory of a layout that is mounted at {other.directory}")
        raise InputError(
            f"{directory}: nothing was mounted there; `ztune mount --list` shows what was, and where"
        )
    return point


def state_of(point: MountPoint) -> tuple[PointState, Mount | None]:
    """Return the state, and the mount if there is one."""
    if point.unfinished:
        return "unfinished", None
    mount = point.mount()
    if mount is not None:
        return "mounted", mount
    return ("dead" if point.dead() else "kept"), None


def unmount(
    directory: str, destroy: bool, force: bool, waiting: Waiting, say: Callable[[str], None]
) -> tuple[MountPoint, int | None]:
    """Unmount what is mounted at ``directory``; with ``destroy`` delete its disks' files too.

    Returns its record, and how many bytes were deleted: None where all is kept. ``force``: even if programs
    use it; ``say`` is told what else there is to know. Raises InputError, MountError.
    """
    place = resolved(directory)
    found_at(place)
    with mount_points.locked(place):
        point = found_at(place)
        if destroy and not point.unfinished:
            # Before the mount is ended, not after.
            with contextlib.suppress(FileNotFoundError):
                point.kept.check()
        _end(point, destroy, force, waiting, say)
        if not destroy:
            return point, None
        size = point.kept.allocated()
        point.discard()
        return point, size


def _end(point: MountPoint, destroy: bool, force: bool, waiting: Waiting, say: Callable[[str], None]) -> None:
    """End the mount, or take away what is left of a dead one."""
    state, running = state_of(point)
    if state in ("kept", "unfinished") and not destroy:
        raise InputError(
            f"{point.directory}: is not mounted; its files are kept in {point.store}; --destroy deletes them"
        )
    if running is not None:
        if not force:
            users = [
                who for place in point.places.values() for who in mounts.users(place, without={running.pid})
            ]
            if users:
                raise InputError(
                    f"{point.directory}: is used by {', '.join(dict.fromkeys(users))}; stop what uses it, or "
                    f"unmount it under them with --force"
                )
        with waiting("unmounting: the disks' caches are written"):
            try:
                running.stop(STOP_S)
            except mounted.MountError as error:
                # What is deleted anyway need not have been written: its disk may be full.
                if not destroy or running.alive():
                    raise
                say(f"note: {error}")
        if running.said:
            say(f"note: {running.said}")
    elif state == "dead":
        for place in point.dead():
            mounted.detach(place)
        said = mounted.last_words(point.disks)
        why = f": {said}" if said else ""
        say(f"{point.directory}: the program was gone already, as in a power cut{why}")
    point.remove_places()
