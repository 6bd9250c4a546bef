"""``ztune mount``: a layout's datasets as directories, by OpenZFS in user space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import click

from ztune import output
from ztune.advice.commands import check_answer
from ztune.analysis import units
from ztune.cli._options import arc_option, argument, json_option, option, profile_option, takes
from ztune.cli._waiting import waiting
from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import mounted
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.places import mount_points, mount_program, mounting
from ztune.places.mount_points import MountPoint
from ztune.report import source
from ztune.runs import plan
from ztune.runs.asked import changed, layout_of
from ztune.runs.named import is_run, run_id
from ztune.study import Layout, Study
from ztune.study.layout import parse_layout


@click.command("mount")
@takes
def command(
    what: str | None = argument(required=False, metavar="[LAYOUT]"),
    directory: str | None = argument(required=False, metavar="[DIR]"),
    layout_name: str | None = option(
        "--layout",
        metavar="NAME|HASH",
        help="The study's layout, default its baseline; or the run's, default the one that it recommends.",
    ),
    disks: Literal["profile", "instant"] = option(
        "--disks",
        default="profile",
        help="Service times of the profile in real time, or as fast as this machine.",
    ),
    cache: Literal["volatile", "none", "lazy"] = option(
        "--cache",
        default="volatile",
        help="The disks' write cache: lost with the program; none; or written out only when flushed or full.",
    ),
    profile: str | None = profile_option,
    arc: str | None = arc_option,
    store: str | None = option(
        "--store",
        metavar="DIR",
        help="Where the disks' files are kept; default below ztune's state directory.",
    ),
    page_cache: bool = option("--page-cache", help="Let the kernel cache pages; ZFS would not."),
    openzfs: str | None = option(
        "--openzfs",
        metavar="VERSION",
        help="With this OpenZFS, which `ztune setup openzfs` brings; default the one that made the pools "
        "there, else this machine's own.",
    ),
    foreground: bool = option("--foreground", help="Stay until Ctrl-C or another signal unmounts it."),
    list_: bool = option("--list", help="Show what is mounted, and what is kept."),
    stats: bool = option("--stats", help="Show the counters of the mount at DIR."),
    as_json: bool = json_option,
) -> int:
    """Mount a layout's datasets below DIR, each in a directory of its own.

    The file systems are OpenZFS itself, in a program that stays in the background; the disks are files that
    behave as the layout's disks do, in real time. LAYOUT is a study, a ready study or a workload, with
    :NAME or --layout for one of its layouts; or a run, for the layout that it recommends or --layout. What is
    written stays when it is unmounted: the same command mounts it again.

    \b
    Examples:
      ztune mount postgres-oltp /mnt/pg
      ztune mount postgres-oltp:wal.recordsize=16K /mnt/pg --profile nvme --arc 1G
      ztune mount my-study.toml /mnt/pg --layout small --disks instant
      ztune mount 7f3k2a /mnt/pg                       what run 7f3k2a recommends
      ztune mount postgres-oltp /mnt/pg --openzfs 2.4
      ztune mount --list
      ztune mount --stats /mnt/pg
      ztune umount /mnt/pg

    docs/mount.md says what a power cut loses, and what the times can tell.
    """
    if list_ or stats:
        if what is not None and (list_ or directory is not None):
            raise InputError("--list takes no argument, --stats one: `ztune mount --stats DIR`")
        return _list(as_json) if list_ else _stats(what, as_json)
    if what is None or directory is None:
        raise InputError(
            "what is to be mounted, and where? `ztune mount LAYOUT DIR`, or --list, or --stats DIR"
        )

    study, layout = _asked(what, layout_name, profile, arc)
    options = MountOptions(disks=disks, cache=cache, page_cache=page_cache)
    point, running = mounting.mount(study, layout, directory, options, store, waiting, openzfs)
    if foreground:
        return _stay(point, running, lambda: _tell(point, layout, running, options, as_json))
    _tell(point, layout, running, options, as_json)
    return 0


def _asked(what: str, name: str | None, profile: str | None, arc: str | None) -> tuple[Study, Layout]:
    """Return the study and the layout that ``what`` means: one of a study or a workload, or of a run."""
    if not is_run(what):
        return layout_of(what, name, profile, arc)
    if name is None:
        found, which = source.best(run_id(what))
        if which:
            output.note(which)
        recommendation = found.recommend()
        check_answer(recommendation)
        layout = parse_layout(recommendation.layout)
        output.note(f"run {found.run.id} recommends {recommendation.layout_name}")
    else:
        found = source.evidence(run_id(what))
        layout = plan.chosen(found.run, found.trials, [name])[-1]
    study = changed(found.run.resolved_study.model_copy(update={"layout": layout}), profile, arc)
    return study, study.layout


def _rows(point: MountPoint) -> list[dict[str, Any]]:
    layout = point.layout
    rows = []
    for dataset in layout.datasets:
        shown = {key: dataset.properties[key] for key in ("recordsize", "compression", "logbias", "sync")}
        place = str(point.places[dataset.name])
        rows.append({"roles": list(dataset.roles), "dataset": dataset.name, "directory": place, **shown})
    return rows


def _tell(point: MountPoint, layout: Layout, mount: Mount, options: MountOptions, as_json: bool) -> None:
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
            "openzfs": str(mount.ready.get("openzfs") or ""),
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
    rows = [(", ".join(row.pop("roles")), *row.values()) for row in _rows(point)]
    output.print_table(("role", "dataset", "directory", "recordsize", "compression", "logbias", "sync"), rows)
    for note in notes:
        output.echo(f"note: {note}", err=True)
    output.echo(f"It is OpenZFS {mount.ready.get('openzfs')}.")
    output.echo(f"`ztune mount --stats {point.pasted}` shows what the disks did.")
    output.echo(f"`ztune umount {point.pasted}` unmounts it and keeps the files; --destroy deletes them too.")


def _stay(point: MountPoint, mount: Mount, tell: Callable[[], None]) -> int:
    """Wait for a signal, which unmounts, or until somebody else does."""
    try:
        tell()
        while not mount.wait(3600):
            pass
    except KeyboardInterrupt:
        with uninterrupted(), waiting("unmounting: the disks' caches are written"):
            mount.stop(mounting.STOP_S)
    if mount.code == 0:
        point.remove_places()
        output.echo(f"{point.directory} is unmounted; its files are kept in {point.store}", err=True)
        return 0
    mount.kill()  # it is dead; what it left mounted goes
    said = mounted.last_words(point.disks)
    raise ZtuneError(f"{point.directory}: the mount has died{f': {said}' if said else ''}")


def _list(as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    points, damaged = mount_points.every()
    for sentence in damaged:
        output.echo(f"note: {sentence}", err=True)
    for point in points:
        state, mount = mounting.state_of(point)
        rows.append(
            {
                "directory": str(point.directory),
                "state": state,
                "pid": None if mount is None else mount.pid,
                "study": point.study,
                "layout": point.layout.name,
                "hash": point.layout.hash,
                "openzfs": point.openzfs,
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
    cells = []
    for row in rows:
        pid = "–" if row["pid"] is None else str(row["pid"])
        first = (row["directory"], row["state"], pid, row["study"], row["layout"])
        cells.append((*first, units.amount(row["bytes"]), row["store"]))
    output.print_table(("directory", "state", "process", "study", "layout", "size", "store"), cells)
    for point in points:
        if point.dead() and (said := mounted.last_words(point.disks)):
            output.echo(f"{point.directory}: {said}")
    if any(row["state"] == "dead" for row in rows):
        output.echo(
            "dead: the program is gone, as in a power cut. `ztune mount` mounts it again; "
            "`ztune umount` takes away what is left of the mount."
        )
    return 0


def _stats(what: str | None, as_json: bool) -> int:
    if what is None:
        raise InputError(
            "whose counters? `ztune mount --stats DIR`; `ztune mount --list` shows what there is"
        )
    directory = mounting.resolved(what)
    point = mounting.found_at(directory)
    state, mount = mounting.state_of(point)
    if mount is None:
        raise InputError(f"{directory}: is not mounted now; `ztune mount --list` shows what is")
    stats = mount.stats()
    if as_json:
        shown = {"directory": str(directory), "layout": point.layout.name, "state": state, "pid": mount.pid}
        output.print_json({**shown, **stats})
        return 0
    _show(point, stats)
    return 0


def _show(point: MountPoint, stats: dict[str, Any]) -> None:
    def figure(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        if value is None:
            return "–"
        return units.amount(value) if key.endswith("bytes") or key in _BYTES else units.count(value)

    output.echo(f"{point.directory}: layout {point.layout.name}, {units.seconds(float(stats['seconds']))}")
    rows = []
    for disk in stats.get("disks", []):
        cells = [figure(disk, k) for k in ("reads", "read_bytes", "writes", "write_bytes", "flushes")]
        busy = units.seconds(float(disk.get("busy_s") or 0))
        rows.append([f"{disk.get('pool')} {disk.get('class')} {disk.get('name')}", *cells, busy])
    _figures(("disk", "reads", "read", "writes", "written", "flushes", "busy"), rows)
    rows = [
        [name, *(figure(row, k) for k in ("reads", "read_bytes", "writes", "write_bytes"))]
        for name, row in stats.get("causes", {}).items()
    ]
    _figures(("cause", "reads", "read", "writes", "written"), rows)
    rows = []
    for row in stats.get("datasets", []):
        cells = [figure(row, "logical"), figure(row, "allocated"), units.times(row.get("ratio"))]
        rows.append([str(row.get("name")), *cells, figure(row, "zil_bytes"), figure(row, "commits")])
    _figures(("dataset", "logical", "on disk", "ratio", "log", "commits"), rows)
    arc = stats.get("arc", {})
    if arc:
        asked = int(arc.get("hits") or 0) + int(arc.get("misses") or 0)
        share = (
            f", {units.show(int(arc.get('hits') or 0) / asked, 'share')} of what was asked" if asked else ""
        )
        output.echo(f"ARC: {figure(arc, 'size')} of {figure(arc, 'max')}, {figure(arc, 'hits')} hits{share}")


def _figures(heads: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print rows of figures, flush right, if there are any."""
    if rows:
        output.print_table(heads, rows, right=heads[1:])


_BYTES = {"logical", "allocated", "size", "max"}
