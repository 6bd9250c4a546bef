"""Clean-up after trials that died: from their journals, and from the properties of what is alive."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ztune.errors import ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import devices, labels, tunables
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.home import ID, RunHome, runs, trials
from ztune.onhost.host.own_directory import OwnDirectory
from ztune.onhost.host.zfs import Commands, Zfs, module_version
from ztune.onhost.trial.door import RUN, STATE, TRIAL, Door, token
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
    lost = {one for one in _lost(state, events, patience).values() if not _journals(state, *one)}
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
                if (where.run, trial) in lost:
                    continue
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
    # Asked again: what said that it is of a trial which had a journal until now is not the trial's.
    ok &= _clean_lost(state, _lost(state, events, patience), busy, events, patience)
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


def without_journal(zfs: Zfs, state: Path) -> dict[str, tuple[str, str]]:
    """Return of ``live`` what no journal in STATE knows of: not what runs, nor what was refused."""
    return {
        name: (run, trial)
        for name, (run, trial) in live(zfs, state).items()
        if ID.fullmatch(run)
        and ID.fullmatch(trial)
        and not any(_knows(path) for path in _journals(state, run, trial))
    }


def _journals(state: Path, run: str, trial: str) -> list[Path]:
    """Return the journals of a trial: one, or none."""
    paths = [RunHome(state, run, old).believed / trial / JOURNAL for old in (False, True)]
    return [path for path in paths if path.exists()]


def _knows(path: Path) -> bool:
    """Whether a journal still has pools or datasets to remove. One whose pool was not imported has none."""
    try:
        journal = Journal.open(path)
    except ZtuneError:
        return True  # `clean` says what is wrong with it
    kinds = {thing.kind for thing in journal.things.values()}
    journal.close()
    return bool(kinds & {"pool", "datasets"})


def _lost(state: Path, events: Events, patience: float) -> dict[str, tuple[str, str]]:
    return without_journal(Zfs(Commands(events, patience=patience)), state) if module_version() else {}


def _clean_lost(
    state: Path, lost: Mapping[str, tuple[str, str]], busy: set[str], events: Events, patience: float
) -> bool:
    """Remove what has no journal any more but says that it is ours: the state directory was lost."""
    ok = True
    zfs = Zfs(Commands(events, patience=patience))
    lost = {name: whose for name, whose in lost.items() if whose[0] not in busy}
    for name in [name for name in lost if _renamed(name)]:
        events.error(_renamed(name), "destroy")
        ok = False
        del lost[name]
    for name, (run, trial) in lost.items():
        lock = RunLock(state, run)
        try:
            lock.acquire(2.0 * patience)
            _clean_one(zfs, name, lock.where, trial, events, patience)
        except (ZtuneError, OSError) as error:
            events.error(str(error), "destroy")
            ok = False
        finally:
            lock.release()
    unknown = sorted({trial for run, trial in lost.values() if not _journals(state, run, trial)})
    largest = tunables.read("zfs_arc_max")
    if unknown and largest not in (None, "0"):
        events.warning(
            f"zfs_arc_max is {largest}, for all pools of this host: of {' and '.join(unknown)} "
            "one may have set it, and what was there before stood in its journal; "
            "`echo 0 > /sys/module/zfs/parameters/zfs_arc_max` is ZFS's default, for zfs_arc_min too"
        )
    return ok


def _renamed(name: str) -> str:
    """Return the sentence for a dataset that has another name than a trial gives; empty for others."""
    if "/" not in name or name.rpartition("/")[2].startswith("ztune-"):
        return ""
    return (
        f"dataset {name}: left alone: its name is not one that a trial gives; "
        f"if it is yours now, `zfs inherit {STATE} {shlex.quote(name)}` has ztune look at it no more"
    )


def _clean_one(zfs: Zfs, name: str, where: RunHome, trial: str, events: Events, patience: float) -> None:
    """Remove a pool or dataset that has no journal, and the directories that it was mounted in.

    Raises ZtuneError, OSError.
    """
    home, directory = where.believed / trial, where.places / trial
    door = Door(
        zfs,
        run=where.run,
        trial=trial,
        state=where.state,
        directory=directory,
        home=home,
        patience=patience,
    )
    tree = zfs.tree(name, ("mountpoint", "mounted", "type"))
    points = {
        dataset: values["mountpoint"].value
        for dataset, values in tree.items()
        if values.get("mounted") is not None and values["mounted"].value == "yes"
    }
    if "/" in name:
        door.destroy_datasets(
            Thing(name, "datasets", {"root": name, "names": list(tree), "mountpoints": points})
        )
    else:
        nodes = _vdevs(zfs, name)
        facts = {"name": name, "datasets": list(tree), "mountpoints": points, "nodes": nodes}
        door.destroy_pool(Thing(name, "pool", facts))
        for node in nodes:
            _release(door, node, name, events)
    if _journals(where.state, where.run, trial):
        return
    if not any(name != other and one == (where.run, trial) for other, one in live(zfs, where.state).items()):
        door.remove_directory()


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


def forget(state: Path, disk: str, trial: str = "", *, do: bool) -> list[dict[str, Any]]:
    """Have the journals of dead trials name ``disk`` no more, which clean-up refuses; return what they said.

    It is not opened, and nothing on it is changed. Where a pool of the trial was refused too, as it can't be
    had without that disk, the pool is forgotten with all its disks: it would be refused for ever, and without
    it clean-up would wipe a disk of what somebody may have made their own.

    Args:
        state: the state directory of the trials.
        disk: its path, as it was named or as the device node is called.
        trial: of this one alone.
        do: False only tells.

    Raises:
        NotOursError: somebody else could have written the state directory.
        ZtuneError: a journal can't be written.
    """
    found: list[dict[str, Any]] = []
    for where in runs(state):
        lock = RunLock(state, where.run, old=where.old)
        try:
            if not lock.acquire(0.0, make=False):
                continue
        except ZtuneError:
            continue  # a trial that runs has its disks, and what another user could have written says nothing
        try:
            for name in trials(lock.home):
                if trial in ("", name):
                    found += _forget(where, name, disk, do)
        finally:
            lock.release()
    return found


def _forget(where: RunHome, trial: str, disk: str, do: bool) -> list[dict[str, Any]]:
    try:
        journal = Journal.open(where.believed / trial / JOURNAL)
    except ZtuneError:
        return []  # `clean` says what is wrong with it
    try:
        own = (journal.token, journal.run, journal.trial)
        if own != (token(where.run, trial, where.state), where.run, trial):
            return []
        things = list(journal.things.values())
        named = {
            one.id
            for one in things
            if one.kind == "disk" and disk in (one.facts.get("path"), one.facts.get("node"))
        }
        group = _bound(things, named)
        others = next((one for one in group if one.kind not in ("disk", "pool")), None)
        early = next((one for one in group if not one.refused), None)
        why = ""
        if others is not None:
            why = f"{others.id} of the trial goes with it, and is to be removed first"
        elif early is not None:
            why = f"clean-up has not refused {early.id} yet, which may be the trial's own still"
        done = do and bool(group) and not why
        if done:
            # All at once: a disk whose pool alone was forgotten would be wiped by the next clean-up.
            journal.append("forgotten", ids=[one.id for one in group])
        return [
            {**_forgotten(where.run, trial, one), "named": one.id in named, "why": why, "forgotten": done}
            for one in group
        ]
    finally:
        journal.close()


def _bound(things: list[Thing], named: set[str]) -> list[Thing]:
    """Return the things that are ``named``, and what can't be removed without them, nor they without it."""
    bound = set(named)
    before: set[str] = set()
    while bound != before:
        before = set(bound)
        for one in things:
            uses = {str(use) for use in one.facts.get("uses", ())}
            if one.id in bound:
                bound |= uses
            elif uses & bound:
                bound.add(one.id)
    return [one for one in things if one.id in bound]


def _forgotten(run: str, trial: str, thing: Thing) -> dict[str, Any]:
    facts = thing.facts
    return {
        "run": run,
        "trial": trial,
        "id": thing.id,
        "kind": thing.kind,
        "name": str(facts.get("name" if thing.kind == "pool" else "path", thing.id)),
        "identity": str(facts.get("identity", "")),
        "size": facts.get("size"),
        "refused": thing.refused,
    }


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
    lost = without_journal(Zfs(Commands(events)), state) if module_version() else {}
    return {
        "state": str(state),
        "trials": found,
        "datasets": [
            {"name": name, "run": run, "trial": trial, "problem": _renamed(name)}
            for name, (run, trial) in lost.items()
        ],
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
