"""Clean-up after trials that died: from their journals, and from the properties of what is alive."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.trial import devices, labels
from ztune.trial.door import RUN, STATE, TRIAL, Door
from ztune.trial.events import Events
from ztune.trial.journal import NAME as JOURNAL
from ztune.trial.journal import Journal, Thing
from ztune.trial.lifecycle import dead_trials, undo
from ztune.trial.lock import NAME as LOCK
from ztune.trial.lock import BusyError, RunLock
from ztune.trial.zfs import Commands, Zfs, module_version


def runs(state: Path) -> list[str]:
    """Return the runs that have a directory in STATE."""
    with contextlib.suppress(OSError):
        return sorted(p.name for p in state.iterdir() if p.is_dir() and not p.is_symlink() and _is_run(p))
    return []


def _is_run(path: Path) -> bool:
    if (path / LOCK).exists():
        return True
    # Killed between the directory and the lock.
    return not any(path.iterdir())


def clean(state: Path, events: Events, *, patience: float = 1.0) -> bool:
    """Remove everything that trials with this state directory left on this host; True if nothing is left.

    Runs that are alive are not touched, and neither are trials of another state directory.
    """
    ok = True
    busy: set[str] = set()
    events.step("destroy", "begin")
    for run in runs(state):
        lock = RunLock(state, run)
        try:
            if not lock.acquire(2.0 * patience):
                continue
        except BusyError as error:
            events.warning(str(error))
            busy.add(run)
            ok = False
            continue
        try:
            zfs = Zfs(Commands(events, patience=patience, keep_fds=[lock.fd]))
            for directory in dead_trials(state, run):
                events.log(f"trial {directory.name}")
                try:
                    left = undo(directory, state, zfs, patience=patience, progress=_progress(events))
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


def _progress(events: Events) -> Any:
    return lambda share, text: events.step("destroy", "progress", share, text)


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
        directory = state / run / trial
        if run in busy or (directory / JOURNAL).exists():
            continue  # alive, or refused just now
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
    import os

    try:
        partitioned, label = labels.whole_disk_pool(fd)
    finally:
        os.close(fd)
    if base.parent.name == whole and not partitioned:
        disk = devices.Disk.of(str(path))  # a partition of the user's that held the vdev
    elif label is not None and label.comment != door.token:
        raise ZtuneError(f"disk {disk.path}: left alone: its label is not of pool {pool}")
    from ztune.trial.journal import boot_id

    door.release_disk(Thing(node, "disk", {**disk.facts(), "pool": pool, "class": ""}, boot=boot_id()))


def listing(state: Path, events: Events) -> dict[str, Any]:
    """Return what is left of trials with this state directory, as JSON values; nothing is changed."""
    found: list[dict[str, Any]] = []
    for run in runs(state):
        lock = RunLock(state, run)
        running = False
        try:
            lock.acquire(0.0, make=False)
        except BusyError:
            running = True
        for directory in dead_trials(state, run):
            entry: dict[str, Any] = {"run": run, "trial": directory.name, "running": running, "things": []}
            try:
                journal = Journal.open(directory / JOURNAL)
            except ZtuneError as error:
                entry["problem"] = str(error)
            else:
                entry["things"] = [
                    {"id": t.id, "kind": t.kind, "made": t.made, "refused": t.refused}
                    for t in journal.things.values()
                ]
                journal.close()
            found.append(entry)
        if lock.fd >= 0:
            lock.release()
    alive = live(Zfs(Commands(events)), state) if module_version() else {}
    return {
        "state": str(state),
        "trials": found,
        "datasets": [{"name": name, "run": run, "trial": trial} for name, (run, trial) in alive.items()],
    }
