"""Clean-up after trials that died: from their journals, and from the properties of what is alive."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import devices, labels
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.home import ID, RunHome, runs, trials
from ztune.onhost.host.own_directory import OwnDirectory
from ztune.onhost.host.zfs import Commands, Zfs, module_version
from ztune.onhost.trial.door import RUN, STATE, TRIAL, Door
from ztune.onhost.trial.journal import NAME as JOURNAL
from ztune.onhost.trial.journal import Journal, Thing
from ztune.onhost.trial.lifecycle import undo
from ztune.onhost.trial.lock import BusyError, RunLock


def clean(state: Path, events: Events, *, patience: float = 1.0) -> bool:
    """Remove everything that trials with this state directory left on this host; True if nothing is left.

    Runs that are alive are not touched, and neither are trials of another state directory.

    Raises:
        NotOursError: somebody else could have written the state directory.
    """
    ok = True
    busy: set[str] = set()
    events.step("destroy", "begin")
    for where in runs(state):
        lock = RunLock(state, where.run, old=where.old)
        try:
            if not lock.acquire(2.0 * patience):
                continue
        except BusyError as error:
            events.send("running", run=where.run)
            events.warning(str(error))
            busy.add(where.run)
            ok = False
            continue
        except ZtuneError as error:
            events.error(f"run {where.run}: left alone: {error}", "destroy")
            ok = False
            continue
        try:
            zfs = Zfs(Commands(events, patience=patience, keep_fds=[lock.fd]))
            progress = partial(events.step, "destroy", "progress")
            for trial in trials(lock.home):
                events.log(f"trial {trial}")
                try:
                    left = undo(lock, trial, zfs, patience=patience, progress=progress)
                except (ZtuneError, OSError) as error:
                    left = [str(error)]
                for problem in left:
                    events.error(problem, "destroy")
                    ok = False
        finally:
            lock.release()
    if module_version():
        ok &= _clean_live(state, busy, events, patience)
    events.step("destroy", "end")
    return ok


def live(zfs: Zfs, state: Path) -> dict[str, tuple[str, str]]:
    """Return the tops of what is alive and says it belongs to STATE: dataset → run, trial."""
    marked = [name for name, value in zfs.with_property(STATE).items() if value == str(state)]
    if not marked:
        return {}
    values = zfs.values(marked, (RUN, TRIAL))
    found = {}
    for name in marked:
        run, trial = values.get(name, {}).get(RUN), values.get(name, {}).get(TRIAL)
        if run is None or trial is None or "local" not in (run.source, trial.source):
            continue
        if not any(name.startswith(other + "/") for other in marked):
            found[name] = (run.value, trial.value)
    return found


def _clean_live(state: Path, busy: set[str], events: Events, patience: float) -> bool:
    """Remove what has no journal any more but says that it is ours: the state directory was lost."""
    ok = True
    zfs = Zfs(Commands(events, patience=patience))
    for name, (run, trial) in live(zfs, state).items():
        if not (ID.fullmatch(run) and ID.fullmatch(trial)):
            continue
        homes = [RunHome(state, run, old) for old in (False, True)]
        if run in busy or any((home.believed / trial / JOURNAL).exists() for home in homes):
            continue  # alive, or refused just now
        directory = homes[0].places / trial
        door = Door(zfs, run=run, trial=trial, state=state, directory=directory, patience=patience)
        tree = zfs.tree(name, ("mountpoint", "mounted", "type"))
        points = {
            dataset: values["mountpoint"].value
            for dataset, values in tree.items()
            if values.get("mounted") is not None and values["mounted"].value == "yes"
        }
        try:
            if "/" in name:
                if not name.rpartition("/")[2].startswith("ztune-"):
                    raise ZtuneError(f"dataset {name}: left alone: its name is not one that a trial gives")
                door.destroy_datasets(
                    Thing(name, "datasets", {"root": name, "names": list(tree), "mountpoints": points})
                )
                continue
            nodes = _vdevs(zfs, name)
            door.destroy_pool(
                Thing(
                    name,
                    "pool",
                    {"name": name, "datasets": list(tree), "mountpoints": points, "nodes": nodes},
                )
            )
            for node in nodes:
                _release(door, node, name, events)
        except (ZtuneError, OSError) as error:
            events.error(str(error), "destroy")
            ok = False
    return ok


def _vdevs(zfs: Zfs, pool: str) -> list[str]:
    """Return the whole paths of a pool's devices."""
    out = zfs.run(["zpool", "list", "-vHPp", pool])
    return [
        f[1] for line in out.splitlines() if (f := line.split("\t")) and len(f) > 1 and f[1].startswith("/")
    ]


def _release(door: Door, node: str, pool: str, events: Events) -> None:
    """Empty a disk of a pool that was just destroyed, if the label says that it was that pool's."""
    path = Path(node)
    if not path.is_block_device():
        events.warning(f"file {node} was a disk of pool {pool}; ztune has no journal of it, so it was left")
        return
    base = Path(f"/sys/class/block/{path.resolve().name}").resolve()
    whole = base.parent.name if (base / "partition").exists() else path.resolve().name
    disk = devices.Disk.of(f"/dev/{whole}")
    fd = devices.open_exclusive(disk, seconds=10)
    try:
        partitioned, label = labels.whole_disk_pool(fd)
    finally:
        os.close(fd)
    if base.parent.name == whole and not partitioned:
        disk = devices.Disk.of(str(path))  # a partition of the user's that held the vdev
    elif label is not None and label.comment != door.token:
        raise ZtuneError(f"disk {disk.path}: left alone: its label is not of pool {pool}")
    door.release_disk(Thing(node, "disk", {**to_json(disk), "pool": pool, "class": ""}, boot=boot_id()))


def listing(state: Path, events: Events) -> dict[str, Any]:
    """Return what is left of trials with this state directory, as JSON values; nothing is changed.

    Raises:
        NotOursError: somebody else could have written the state directory.
    """
    found: list[dict[str, Any]] = []
    for where in runs(state):
        lock = RunLock(state, where.run, old=where.old)
        running = False
        try:
            lock.acquire(0.0, make=False)
        except BusyError:
            running = True
        except ZtuneError as error:
            entry = {"run": where.run, "trial": where.run, "running": False, "things": []}
            found.append({**entry, "problem": f"left alone: {error}"})
            continue
        with contextlib.suppress(FileNotFoundError), OwnDirectory.open(where.believed) as home:
            found += [_listed(where, trial, running) for trial in trials(home)]
        if lock.fd >= 0:
            lock.release()
    alive = live(Zfs(Commands(events)), state) if module_version() else {}
    return {
        "state": str(state),
        "trials": found,
        "datasets": [{"name": name, "run": run, "trial": trial} for name, (run, trial) in alive.items()],
    }


def _listed(where: RunHome, trial: str, running: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"run": where.run, "trial": trial, "running": running, "things": []}
    folders = dict.fromkeys((where.places / trial, where.believed / trial))
    entry["directories"] = [str(path) for path in folders if path.is_dir()]
    try:
        journal = Journal.open(where.believed / trial / JOURNAL)
    except ZtuneError as error:
        entry["problem"] = str(error)
        return entry
    entry["things"] = [
        {"id": t.id, "kind": t.kind, "made": t.made, "refused": t.refused, "what": what(t)}
        for t in journal.things.values()
    ]
    journal.close()
    return entry


def what(thing: Thing) -> list[str]:
    """Return what the removal of a thing would remove, end or put back: paths, names, processes."""
    facts = thing.facts

    def listed(key: str) -> list[str]:
        value = facts.get(key)
        return [str(one) for one in value] if isinstance(value, list) else []

    match thing.kind:
        case "files":
            return [str(Path(str(facts.get("dir", ""))) / name) for name in listed("names")]
        case "pool":
            return [str(facts.get("name", "")), *listed("nodes")]
        case "datasets":
            return listed("names")
        case "processes":
            pids = facts.get("pids")
            return [f"process {pid}" for pid, _ticks in pids] if isinstance(pids, list) else []
        case "mounts":
            places = facts.get("places")
            return [str(point) for point in places.values()] if isinstance(places, dict) else []
        case "parameters":
            before = facts.get("previous")
            return [f"{k}={v}" for k, v in before.items()] if isinstance(before, dict) else []
    return [str(facts[key]) for key in ("point", "path", "file") if key in facts]
