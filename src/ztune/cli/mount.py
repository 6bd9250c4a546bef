"""``ztune mount``: a layout's datasets as directories, by OpenZFS in user space."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ztune import output
from ztune.errors import InputError, ZtuneError

_STOP_S = 3600.0  # a slow disk may have gigabytes to write


@click.command("mount", short_help="Mount a layout: OpenZFS in user space, no kernel module.")
@click.argument("what", required=False, metavar="[LAYOUT]")
@click.argument("directory", required=False, metavar="[DIR]")
@click.option(
    "--layout", "layout_name", metavar="NAME|HASH", help="The study's layout; default its baseline."
)
@click.option(
    "--disks", type=click.Choice(["profile", "instant"]), default="profile", show_default=True,
    help="Service times of the profile in real time, or as fast as this machine.",
)  # fmt: skip
@click.option(
    "--cache", type=click.Choice(["volatile", "none", "lazy"]), default="volatile", show_default=True,
    help="The disks' write cache: lost with the program; none; or written out only when flushed or full.",
)  # fmt: skip
@click.option("--profile", metavar="NAME|FILE", help="Disks instead of the study's data disks.")
@click.option("--arc", metavar="SIZE", help="Memory for the ARC instead of the study's.")
@click.option(
    "--store", metavar="DIR",
    help="Where the disks' files are kept; default below ztune's state directory.",
)  # fmt: skip
@click.option("--page-cache", is_flag=True, help="Let the kernel cache pages; ZFS would not.")
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C or another signal unmounts it.")
@click.option("--list", "list_", is_flag=True, help="Show what is mounted, and what is kept.")
@click.option("--stats", is_flag=True, help="Show the counters of the mount at DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    what: str | None,
    directory: str | None,
    layout_name: str | None,
    disks: str,
    cache: str,
    profile: str | None,
    arc: str | None,
    store: str | None,
    page_cache: bool,
    foreground: bool,
    list_: bool,
    stats: bool,
    as_json: bool,
) -> int:
    """Mount a layout's datasets below DIR, each in a directory of its own.

    The file systems are OpenZFS itself, in a program that stays in the background; the disks are files that
    behave as the layout's disks do, in real time. LAYOUT is a study, a ready study or a workload, with
    :NAME or --layout for one of its layouts. What is written stays when it is unmounted: the same command
    mounts it again.

    \b
    Examples:
      ztune mount postgres-oltp /mnt/pg
      ztune mount postgres-oltp:wal.recordsize=16K /mnt/pg --profile nvme --arc 1G
      ztune mount my-study.toml /mnt/pg --layout small --disks instant
      ztune mount --list
      ztune mount --stats /mnt/pg
      ztune umount /mnt/pg

    docs/mount.md says what a power cut loses, and what the times can tell.
    """
    if list_ or stats:
        if what is not None and (list_ or directory is not None):
            raise InputError("--list takes no argument, --stats one: `ztune mount --stats DIR`")
        return _list(as_json) if list_ else _stats(resolved(what), as_json)
    if what is None or directory is None:
        raise InputError(
            "what is to be mounted, and where? `ztune mount LAYOUT DIR`, or --list, or --stats DIR"
        )
    from ztune.onhost.host.mounted import MountOptions

    study, layout = choose(what, layout_name, profile, arc)
    options = MountOptions(disks=disks, cache=cache, page_cache=page_cache)
    return _mount(study, layout, directory, options, store, foreground, as_json)


def choose(what: str, name: str | None, profile: str | None, arc: str | None) -> tuple[Any, Any]:
    """Return the study and the layout that LAYOUT means: ``STUDY``, ``WORKLOAD``, each with ``:NAME``."""
    from ztune.runs import plan
    from ztune.study.adjust import adjusted
    from ztune.study.layout import plain

    # Layouts' names have colons too, files may: the first one before which there is a study.
    cuts = [len(what), *(i for i, letter in enumerate(what) if letter == ":")]
    for cut in cuts:
        study = _study(what[:cut])
        if study is None:
            continue
        if cut < len(what):
            if name is not None:
                raise InputError(f'"{what}" names a layout, and so does --layout; one of them is enough')
            name = what[cut + 1 :]
        break
    else:
        from ztune.databases import registry
        from ztune.study import ready

        known = ", ".join(dict.fromkeys([*registry.names(), *ready.files()]))
        raise InputError(f'"{what}" is no study and no workload; name a TOML file, or one of {known}')
    try:
        study = adjusted(study, profile=profile, arc=arc)
    except ValueError as error:
        raise InputError(f"--arc {arc}: {plain(error)}" if arc is not None else plain(error)) from None
    return study, study.layout if name is None else plan.layouts(study, [name])[-1]


def _study(what: str) -> Any:
    """Return the study that ``what`` names, a workload's own; None if it names none."""
    from ztune.databases import registry
    from ztune.study import generic, ready

    if ready.is_path(what) or what in ready.files():
        return ready.find(what)
    if what in registry.names():
        workload: Any = registry.make(what)
        if not hasattr(workload, "job"):
            raise InputError(f"workload {what} can be recorded but has no layouts of its own; name a study")
        return generic.build(set(workload.job.roles()), together=registry.together(what))
    return None


def resolved(directory: str | None) -> Path:
    """Return a DIR of the command line without links. Raises InputError without one."""
    import os

    if directory is None:
        raise InputError(
            "whose counters? `ztune mount --stats DIR`; `ztune mount --list` shows what there is"
        )
    # Not `Path.resolve`, to which a mount whose program is gone is an error.
    return Path(os.path.realpath(directory))


def _mount(
    study: Any,
    layout: Any,
    where: str,
    options: Any,
    store: str | None,
    foreground: bool,
    as_json: bool,
) -> int:
    from ztune.cli._waiting import waiting
    from ztune.onhost.host import own_directory
    from ztune.onhost.host.interrupt import signals_as_interrupt
    from ztune.onhost.host.mounted import Mount
    from ztune.onhost.trial.mount_store import MountStore
    from ztune.places import mount_points, mount_program
    from ztune.places.engine_spec import mount_spec

    mount_points.check_layout(layout)
    program = mount_program.check()
    try:
        # A link that somebody else has put there is not followed.
        directory = own_directory.real(Path.cwd() / where)
    except OSError:
        directory = resolved(where)  # what it is instead of a directory is said below
    except own_directory.NotOursError as error:
        raise InputError(f"{where}: can't be mounted on: {error}") from None
    # As it comes back from the record, to be compared with that.
    spec = json.loads(json.dumps(mount_spec(study, layout, study.seed)))
    with signals_as_interrupt():
        with mount_points.locked(directory):
            point = mount_points.find(directory)
            new = point is None
            if point is None:
                point = _new(study, layout, spec, directory, store)
            else:
                point = _again(point, layout, spec, store)
            try:
                point = mount_points.changed(point, options)
                with waiting(f"{'making' if new else 'importing'} the pools of {layout.name}"):
                    mount = Mount.start(program, spec, point.disks, point.places, options, patience_s=_STOP_S)
            except BaseException:
                if new:
                    MountStore(point.store, point.token).remove()
                    point.forget()
                raise
        if foreground:
            return _stay(point, mount, lambda: _tell(point, layout, mount, options, as_json))
        _tell(point, layout, mount, options, as_json)
        return 0


def _new(study: Any, layout: Any, spec: dict[str, Any], directory: Path, store: str | None) -> Any:
    """Return the point of a directory that nothing is known of; its store is made."""
    from ztune.onhost.host import own_directory
    from ztune.onhost.trial.mount_store import MountStore
    from ztune.places import mount_points

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
    made = MountStore.create(where)
    return mount_points.MountPoint(
        directory=directory,
        store=made.path,
        token=made.token,
        places={dataset: directory / name for dataset, name in names.items()},
        study=study.name,
        layout=layout.to_json(),
        spec=spec,
        options={},
        made=not directory.exists(),
    )


def _again(point: Any, layout: Any, spec: dict[str, Any], store: str | None) -> Any:
    """Return the point of a directory mounted before, if it fits what is asked. Raises InputError."""
    import os

    if point.mount() is not None:
        raise InputError(
            f'{point.directory}: layout "{point.of.name}" is mounted there already; '
            f"`ztune mount --stats {point.directory}` shows it, `ztune umount {point.directory}` unmounts it"
        )
    if point.spec != spec:
        same = point.of.hash == layout.hash
        holds = "other disks or another version of them" if same else f'layout "{point.of.name}"'
        raise InputError(
            f"{point.directory}: what is kept of it has {holds} (study {point.study}, {point.of.hash}); "
            f"mount that again, or delete it with `ztune umount --destroy {point.directory}`"
        )
    if store is not None and Path(os.path.realpath(store)) != point.store:
        raise InputError(f"{point.directory}: its store is {point.store} already; leave --store out")
    try:
        point.kept.check()
    except FileNotFoundError:
        raise InputError(
            f"{point.directory}: its store {point.store} is gone; "
            f"`ztune umount --destroy {point.directory}` forgets it"
        ) from None
    return point


def _rows(point: Any) -> list[dict[str, Any]]:
    layout = point.of
    rows = []
    for dataset in layout.datasets:
        shown = {key: dataset.properties[key] for key in ("recordsize", "compression", "logbias", "sync")}
        place = str(point.places[dataset.name])
        rows.append({"roles": list(dataset.roles), "dataset": dataset.name, "directory": place, **shown})
    return rows


def _tell(point: Any, layout: Any, mount: Any, options: Any, as_json: bool) -> None:
    from ztune.places import mount_points, mount_program

    notes = mount_points.unheeded(layout)
    if not mount_program.others_may_enter():
        notes.append(
            f"only this user can enter: others may where {mount_program.CONF} has a line user_allow_other"
        )
    if as_json:
        found = {
            "directory": str(point.directory),
            "pid": mount.pid,
            "study": point.study,
            "layout": layout.name,
            "hash": layout.hash,
            "store": str(point.store),
            "imported": bool(mount.ready.get("imported")),
            "replayed": int(mount.ready.get("replayed") or 0),
            "disks": options.disks,
            "cache": options.cache,
            "page_cache": options.page_cache,
            "mounts": _rows(point),
            "notes": notes,
        }
        output.print_json(found)
        return
    if mount.ready.get("imported"):
        replayed = int(mount.ready.get("replayed") or 0)
        log = f"{replayed} records of the intent log were replayed" if replayed else "no log to replay"
        output.echo(f"mounted what is kept in {point.store}: the pools were imported, {log}")
    table = _table("role", "dataset", "directory", "recordsize", "compression", "logbias", "sync")
    for row in _rows(point):
        table.add_row(", ".join(row.pop("roles")), *row.values())
    _print(table)
    for note in notes:
        output.echo(f"note: {note}", err=True)
    output.echo(f"`ztune mount --stats {point.directory}` shows what the disks did.")
    output.echo(
        f"`ztune umount {point.directory}` unmounts it and keeps the files; --destroy deletes them too."
    )


def _stay(point: Any, mount: Any, tell: Callable[[], None]) -> int:
    """Wait for a signal, which unmounts, or until somebody else does."""
    from ztune.cli._waiting import waiting
    from ztune.onhost.host import mounted
    from ztune.onhost.host.interrupt import uninterrupted

    try:
        tell()
        while not mount.wait(3600):
            pass
    except KeyboardInterrupt:
        with uninterrupted(), waiting("unmounting: the disks' caches are written"):
            mount.stop(_STOP_S)
    if mount.code == 0:
        point.remove_places()
        output.echo(f"{point.directory} is unmounted; its files are kept in {point.store}", err=True)
        return 0
    mount.kill()  # it is dead; what it left mounted goes
    said = mounted.last_words(point.disks)
    raise ZtuneError(f"{point.directory}: the mount has died{f': {said}' if said else ''}")


def state_of(point: Any) -> tuple[str, Any]:
    """Return "mounted", "dead" or "kept", and the mount if there is one."""
    mount = point.mount()
    if mount is not None:
        return "mounted", mount
    return ("dead" if point.dead() else "kept"), None


def _list(as_json: bool) -> int:
    from ztune.analysis import units
    from ztune.onhost.host import mounted
    from ztune.places import mount_points

    rows = []
    points, damaged = mount_points.every()
    for sentence in damaged:
        output.echo(f"note: {sentence}", err=True)
    for point in points:
        state, mount = state_of(point)
        rows.append(
            {
                "directory": str(point.directory),
                "state": state,
                "pid": None if mount is None else mount.pid,
                "study": point.study,
                "layout": point.of.name,
                "hash": point.of.hash,
                "options": point.options,
                "store": str(point.store),
                "bytes": point.kept.allocated(),
                "mounts": _rows(point),
            }
        )
    if as_json:
        output.print_json(rows)
        return 0
    if not rows:
        output.echo("Nothing is mounted and nothing kept; `ztune mount LAYOUT DIR` mounts.")
        return 0
    table = _table("directory", "state", "process", "study", "layout", "size", "store")
    for row in rows:
        pid = "–" if row["pid"] is None else str(row["pid"])
        cells = [row["directory"], row["state"], pid, row["study"], row["layout"]]
        table.add_row(*map(str, cells), units.amount(row["bytes"]), str(row["store"]))  # type: ignore[arg-type]
    _print(table)
    for point in points:
        if point.dead() and (said := mounted.last_words(point.disks)):
            output.echo(f"{point.directory}: {said}")
    if any(row["state"] == "dead" for row in rows):
        output.echo(
            "dead: the program is gone, as in a power cut. `ztune mount` mounts it again; "
            "`ztune umount` takes away what is left of the mount."
        )
    return 0


def found_at(directory: Path) -> Any:
    """Return the point at ``directory``. Raises InputError with the right one, if there is one."""
    from ztune.places import mount_points

    point = mount_points.find(directory)
    if point is None:
        other = mount_points.above(directory)
        if other is not None:
            raise InputError(f"{directory} is one directory of a layout that is mounted at {other.directory}")
        raise InputError(
            f"{directory}: nothing was mounted there; `ztune mount --list` shows what was, and where"
        )
    return point


def _stats(directory: Path, as_json: bool) -> int:
    point = found_at(directory)
    state, mount = state_of(point)
    if mount is None:
        raise InputError(f"{directory}: is not mounted now; `ztune mount --list` shows what is")
    stats = mount.stats()
    if as_json:
        shown = {"directory": str(directory), "layout": point.of.name, "state": state, "pid": mount.pid}
        output.print_json({**shown, **stats})
        return 0
    _show(point, stats)
    return 0


def _show(point: Any, stats: dict[str, Any]) -> None:
    from ztune.analysis import units

    def figure(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        if value is None:
            return "–"
        return units.amount(value) if key.endswith("bytes") or key in _BYTES else units.count(value)

    output.echo(f"{point.directory}: layout {point.of.name}, {units.seconds(float(stats['seconds']))}")
    table = _table("disk", "reads", "read", "writes", "written", "flushes", "busy", right=True)
    for disk in stats.get("disks", []):
        cells = [figure(disk, k) for k in ("reads", "read_bytes", "writes", "write_bytes", "flushes")]
        busy = units.seconds(float(disk.get("busy_s") or 0))
        table.add_row(f"{disk.get('pool')} {disk.get('class')} {disk.get('name')}", *cells, busy)
    _print(table)
    table = _table("cause", "reads", "read", "writes", "written", right=True)
    for name, row in stats.get("causes", {}).items():
        table.add_row(name, *(figure(row, k) for k in ("reads", "read_bytes", "writes", "write_bytes")))
    _print(table)
    table = _table("dataset", "logical", "on disk", "ratio", "log", "commits", right=True)
    for row in stats.get("datasets", []):
        ratio = row.get("ratio")
        cells = [figure(row, "logical"), figure(row, "allocated"), units.times(ratio)]
        table.add_row(str(row.get("name")), *cells, figure(row, "zil_bytes"), figure(row, "commits"))
    _print(table)
    arc = stats.get("arc", {})
    if arc:
        asked = int(arc.get("hits") or 0) + int(arc.get("misses") or 0)
        share = (
            f", {units.show(int(arc.get('hits') or 0) / asked, 'share')} of what was asked" if asked else ""
        )
        output.echo(f"ARC: {figure(arc, 'size')} of {figure(arc, 'max')}, {figure(arc, 'hits')} hits{share}")


_BYTES = {"logical", "allocated", "size", "max"}


def _table(*columns: str, right: bool = False) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if right and number else "left", overflow="fold")
    return table


def _print(table: Any) -> None:
    if not table.row_count:
        return
    output.wide(160).print(table)
