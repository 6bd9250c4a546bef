"""The one door for everything that destroys: pools, datasets, file systems, mounts, files, settings.

Each thing that a trial made is looked at again on the live system before it is removed: its name, its guid,
our properties with source "local", that no clone, snapshot, bookmark or dataset of somebody else hangs on it,
and that nothing foreign is mounted on it or below. What is not beyond doubt ours is left alone, with a
sentence (``Refused``). There is no option that turns this off, no ``-f`` and no ``-r``: what appears between
the look and the act makes the act fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ztune.errors import InputError, ZtuneError
from ztune.trial import devices, labels, mounts, saved, tunables
from ztune.trial.journal import NAME as JOURNAL
from ztune.trial.journal import Thing, boot_id
from ztune.trial.zfs import Value, Zfs, import_places, last_words

if TYPE_CHECKING:
    from ztune.trial.jobs.process import Identity
    from ztune.trial.mount_store import MountStore

RUN, TRIAL, STATE = "ztune:run", "ztune:trial", "ztune:state"
STATE_MARKER = ".ztune-state"
_LOOK = ("type", "guid", "origin", "clones", "userrefs", RUN, TRIAL)
BUSY_SECONDS, BUSY_MOST = 15.0, 60.0
"""How long something that is in use is tried again, and the most on a slow host: udev and the like let go
within a second."""


class Refused(ZtuneError):
    """Something was left alone, because it may not be ours."""


def token(run: str, trial: str, state: Path) -> str:
    """Return the mark of a trial: short enough for a pool's comment (31 bytes), and so for its labels."""
    return "ztune:" + hashlib.sha256(f"{run}\0{trial}\0{state}".encode()).hexdigest()[:24]


class Door:
    """Removes what one trial made."""

    def __init__(
        self,
        zfs: Zfs,
        *,
        run: str,
        trial: str,
        state: Path,
        directory: Path,
        patience: float = 1.0,
        table: Callable[[], list[mounts.Mount]] = mounts.table,
    ) -> None:
        self.zfs = zfs
        self.run, self.trial = run, trial
        self.directory = directory
        self.token = token(run, trial, state)
        self._patience = patience
        self._table = table
        self._kinds: dict[str, Callable[[Thing], None]] = {
            "pool": self.destroy_pool,
            "datasets": self.destroy_datasets,
            "mount": self._unmount_thing,
            "disk": self.release_disk,
            "loop": self.detach_loop,
            "files": self.remove_files,
            "parameters": self.restore_parameters,
            "processes": self.end_processes,
            "saved": self.remove_saved,
            "mounts": self.end_mounts,
            "store": self.remove_store,
        }

    def remove(self, thing: Thing) -> None:
        """Remove one thing of the journal; does nothing when it is gone already.

        Raises:
            Refused: it may not be ours. It was left alone.
            ZtuneError: it is ours, but a command failed.
        """
        self._kinds[thing.kind](thing)

    # -- pools -----------------------------------------------------------------------------------------

    def destroy_pool(self, thing: Thing) -> None:
        """Destroy a pool that this trial made, whether it is imported or not."""
        name = str(thing.facts["name"])
        guid = str(thing.facts.get("guid", ""))
        live = self.zfs.pools()
        self._not_renamed(name, guid, live)
        if name not in live and not self._import_to_look(thing, name, guid):
            return
        self.require_pool(thing)
        self._until_free(["zpool", "destroy", name], f"pool {name}")

    def export_pool(self, thing: Thing) -> None:
        """Export a pool that this trial made."""
        name = str(thing.facts["name"])
        self._own_pool(thing)
        self._until_free(["zpool", "export", name], f"pool {name}")

    def _not_renamed(self, name: str, guid: str, live: Mapping[str, str]) -> None:
        for other, found in live.items():
            if guid and found == guid and other != name:
                raise Refused(
                    f'pool {name}: left alone: somebody imported it as "{other}"; export it, then clean again'
                )
        if guid and name in live and live[name] != guid:
            raise Refused(f"pool {name}: left alone: it has another guid than the pool that this trial made")

    def _import_to_look(self, thing: Thing, name: str, guid: str) -> bool:
        """Import, without mounting, a pool that is not imported; False when it is nowhere."""
        nodes = [str(node) for node in thing.facts.get("nodes", ())]
        found = None
        for node in nodes:
            label = _label_of(node)
            if label is not None and label.state != labels.POOL_DESTROYED and label.name:
                found = label
                break
        if found is None:
            return False
        if found.comment != self.token or (guid and found.guid != guid):
            # Whose it is gets decided when its disk is to be released.
            return False
        if found.name != name:
            raise Refused(
                f'pool {name}: left alone: somebody renamed it to "{found.name}" and exported it; import it '
                f'as "{name}", then clean again'
            )
        argv = ["zpool", "import", "-N", "-o", "cachefile=none"]
        for where in import_places(nodes):
            argv += ["-d", where]
        rc, _out, err = self.zfs.run.attempt([*argv, found.guid], timeout=300)
        if rc != 0:
            if not thing.made:
                # Its making was cut: nothing can be on it, and its disks are released by their labels.
                return False
            raise ZtuneError(f"pool {name}: can't be imported to be destroyed: {last_words(err)}")
        return True

    def _own_pool(self, thing: Thing) -> None:
        name = str(thing.facts["name"])
        values = self.zfs.pool_values(name, ("guid", "comment"))
        guid = values.get("guid", Value("", "")).value
        wanted = str(thing.facts.get("guid", ""))
        if wanted and guid != wanted:
            raise Refused(f"pool {name}: left alone: it has another guid than the pool that this trial made")
        comment = values.get("comment", Value("", "")).value
        if comment != self.token:
            raise Refused(
                f'pool {name}: left alone: its comment is "{comment}" and not the mark of this trial'
            )

    def require_pool(self, thing: Thing) -> None:
        """Raise Refused unless the imported pool and all that is in it are ours alone."""
        name = str(thing.facts["name"])
        self._own_pool(thing)
        tree = self.zfs.tree(name, _LOOK)
        self._own_tree(name, tree, thing.facts.get("datasets", ()), {})
        self.require_mounts(
            {str(k): str(v) for k, v in thing.facts.get("mountpoints", {}).items()}, set(tree)
        )

    # -- datasets --------------------------------------------------------------------------------------

    def destroy_datasets(self, thing: Thing) -> None:
        """Destroy the dataset that this trial made below the user's parent, and its children, one by one."""
        root = str(thing.facts["root"])
        tree = self.zfs.tree(root, _LOOK)
        if not tree:
            moved = [
                name
                for name, value in self.zfs.with_property(TRIAL).items()
                if value == self.trial
                and name.rpartition("/")[2] == root.rpartition("/")[2]
                and name not in thing.facts.get("elsewhere", ())
            ]
            if thing.made and moved:
                raise Refused(f'dataset {root}: left alone: somebody renamed it to "{moved[0]}"')
            return
        names = thing.facts.get("names", ())
        self._own_tree(root, tree, names, thing.facts.get("guids", {}))
        self.require_mounts(
            {str(k): str(v) for k, v in thing.facts.get("mountpoints", {}).items()}, set(tree)
        )
        for name in sorted(tree, key=lambda n: (-n.count("/"), n)):
            # Without -r: a snapshot or a child that somebody adds now makes it fail.
            self._until_free(["zfs", "destroy", name], f"dataset {name}")

    def _own_tree(
        self,
        root: str,
        tree: Mapping[str, Mapping[str, Value]],
        made: Collection[str],
        guids: Mapping[str, str],
    ) -> None:
        none = Value("-", "-")
        for name, values in tree.items():
            whose = f"dataset {name}: left alone"
            if "@" in name:
                held = values.get("userrefs", none).value
                clones = values.get("clones", none).value
                why = ", and it is held" if held not in ("-", "0") else ""
                why += f", and {clones} is a clone of it" if clones not in ("-", "") else ""
                raise Refused(
                    f"{root}: left alone: snapshot {name} is not ours{why}; destroy it, then clean again"
                )
            if "#" in name:
                raise Refused(
                    f"{root}: left alone: bookmark {name} is not ours; destroy it, then clean again"
                )
            if name not in made:
                raise Refused(f"{root}: left alone: this trial did not make {name}, which is below it")
            for property_, wanted in ((RUN, self.run), (TRIAL, self.trial)):
                value = values.get(property_, none)
                if value.value != wanted or value.source != "local":
                    how = f'"{value.value}" ({value.source})' if value.value != "-" else "not set"
                    raise Refused(f'{whose}: its property {property_} is {how}, not "{wanted}" set on itself')
            if name in guids and values.get("guid", none).value != guids[name]:
                raise Refused(f"{whose}: it has another guid than the dataset that this trial made")
            if values.get("origin", none).value not in ("-", ""):
                raise Refused(f"{whose}: it is a clone of {values['origin'].value}")

    # -- mounts ----------------------------------------------------------------------------------------

    def require_mounts(self, expected: Mapping[str, str], ours: Collection[str]) -> None:
        """Raise Refused when something foreign is mounted on or below our mount points, or ours elsewhere.

        Args:
            expected: dataset → its mount point.
            ours: all our datasets of this pool or tree.
        """
        table = self._table()
        points = {Path(point): name for name, point in expected.items()}
        for point, name in points.items():
            on = [m for m in table if m.point == point]
            for mount in mounts.below(point, table):
                if mount.point != point or mount.source != name:
                    raise Refused(
                        f"dataset {name}: left alone: {mount.source} ({mount.type}) is mounted on it or "
                        f"below, at {mount.point}; unmount it, then clean again"
                    )
            if len(on) > 1:
                raise Refused(f"dataset {name}: left alone: {len(on)} file systems are mounted at {point}")
        for mount in table:
            if mount.type == "zfs" and mount.source in ours and mount.point not in points:
                raise Refused(
                    f"dataset {mount.source}: left alone: somebody mounted it at {mount.point}; unmount it "
                    "there, then clean again"
                )

    def _unmount_thing(self, thing: Thing) -> None:
        self.unmount(Path(thing.facts["point"]), str(thing.facts.get("node", "")))

    def unmount(self, point: Path, source: str) -> None:
        """Unmount what we mounted: ``source`` is a device node or a dataset. Nothing there is fine."""
        here = mounts.below(point, self._table())
        if not here:
            return
        for mount in here:
            if mount.point != point or not _same_source(mount, source):
                raise Refused(
                    f"{point}: left mounted: {mount.source} ({mount.type}) at {mount.point} is not ours; "
                    "unmount it, then clean again"
                )
        if len(here) > 1:
            raise Refused(f"{point}: left mounted: {len(here)} file systems are mounted there")
        elsewhere = [m for m in self._table() if m.device == here[0].device and m.point != point]
        if elsewhere:
            raise Refused(
                f"{point}: left mounted: {source} is also mounted at {elsewhere[0].point}, not by us"
            )
        argv = ["zfs", "unmount", source] if here[0].type == "zfs" else ["umount", str(point)]
        self._until_free(argv, str(point))

    def _until_free(self, argv: list[str], what: str) -> None:
        deadline = time.monotonic() + min(BUSY_SECONDS * self._patience, BUSY_MOST)
        while True:
            rc, _out, err = self.zfs.run.attempt(argv, timeout=300)
            if rc == 0:
                return
            if "busy" not in err or time.monotonic() > deadline:
                by = mounts.users(self.directory) if "busy" in err else []
                who = f"; in use by {', '.join(by)}" if by else ""
                raise ZtuneError(
                    f"{what}: {' '.join(argv[:2])} failed: {last_words(err) or f'exit code {rc}'}{who}"
                )
            time.sleep(0.5)

    # -- disks and files -------------------------------------------------------------------------------

    def release_disk(self, thing: Thing) -> None:
        """Make a disk empty again: it was when the trial took it, and only our labels may be on it now."""
        facts = thing.facts
        try:
            disk = devices.Disk.of(str(facts["path"]))
        except InputError as error:
            raise Refused(f"disk {facts['path']}: left alone: {error}; attach it, then clean again") from None
        if (disk.size, disk.identity) != (facts["size"], facts["identity"]):
            raise Refused(
                f"disk {disk.path}: left alone: another disk has taken its name since the trial began"
            )
        if disk.identity == "" and thing.boot != boot_id():
            # Without any id of its own, its number in this boot was all that told it from another.
            raise Refused(
                f"disk {disk.path}: left alone: it has no serial number, and the host was started since"
            )
        try:
            fd = devices.open_exclusive(disk, write=True, seconds=BUSY_SECONDS)
        except InputError as error:
            raise Refused(f"{error}; it was left alone") from None
        try:
            self._own_content(fd, disk, facts)
            if labels.first_data(fd, disk.size) is not None:
                devices.wipe_edges(fd, disk.size)
        finally:
            os.close(fd)
        # A descriptor that was opened for writing makes udev look again; the kernel must look before.
        fd = devices.open_exclusive(disk, seconds=BUSY_SECONDS)
        try:
            devices.reread_partitions(fd)
        finally:
            os.close(fd)

    def _own_content(self, fd: int, disk: devices.Disk, facts: Mapping[str, Any]) -> None:
        whole, label = labels.whole_disk_pool(fd)
        if label is None:
            label = labels.pool_label(fd, 0, disk.size)
        if label is not None:
            # Cache and spare devices carry no name and no comment, only that they are one.
            nameless = not label.name and facts.get("class") == "cache"
            # The first labels of a new pool are written before its comment is.
            unfinished = label.comment == "" and label.name == facts.get("pool", "")
            ours = label.comment == self.token and label.name == facts.get("pool", label.name)
            if not (ours or nameless or unfinished):
                raise Refused(
                    f'disk {disk.path}: left alone: it carries a label of the ZFS pool "{label.name}"'
                )
            return
        if whole:
            return
        found = labels.filesystem(fd)
        if found is not None:
            if found.uuid == facts.get("uuid") and found.label == facts.get("label"):
                return
            raise Refused(
                f"disk {disk.path}: left alone: it holds an {found.type} file system that is not ours"
            )
        what = labels.signature(fd, disk.size)
        if what:
            raise Refused(f"disk {disk.path}: left alone: it holds {what}")

    def detach_loop(self, thing: Thing) -> None:
        """Detach the loop device of one of our files."""
        file = str(thing.facts["file"])
        for entry in sorted(Path("/sys/block").iterdir()):
            if _backing_file(entry) != file:
                continue
            node = f"/dev/{entry.name}"
            number = (entry / "dev").read_text().strip()
            for mount in self._table():
                if f"{mount.device[0]}:{mount.device[1]}" == number:
                    raise Refused(f"{node}: left alone: it is mounted at {mount.point}")
            self.zfs.run(["losetup", "-d", node])
            # While somebody looks at the device, the kernel only notes that it is to be detached.
            deadline = time.monotonic() + min(BUSY_SECONDS * self._patience, BUSY_MOST)
            while _backing_file(entry) == file:
                if time.monotonic() > deadline:
                    raise ZtuneError(f"{node}: still attached to {file}: something has it open")
                time.sleep(0.05)

    def remove_files(self, thing: Thing) -> None:
        """Remove the files that stand for disks, by name, and the directories made for them if empty."""
        folder = Path(thing.facts["dir"])
        try:
            found = folder.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode) or folder.resolve() != folder:
            raise Refused(f"{folder}: left alone: it is not the directory that this trial made")
        for name in thing.facts["names"]:
            path = folder / str(name)
            try:
                if not stat.S_ISREG(path.lstat().st_mode):
                    raise Refused(f"{path}: left alone: it is not the file that this trial made")
                path.unlink()
            except FileNotFoundError:
                continue
        try:
            folder.rmdir()
        except OSError as error:
            raise Refused(
                f"{folder}: left alone: it holds files that are not ours ({error.strerror})"
            ) from None
        # The run's own directory: other trials of the run may still have theirs in it.
        with contextlib.suppress(OSError):
            folder.parent.rmdir()

    def remove_saved(self, thing: Thing) -> None:
        """Remove a saved state that was cut while it was being copied; a finished one has its final name."""
        path = Path(thing.facts["path"])
        try:
            marker = json.loads((path / saved.MARKER).read_text(encoding="utf-8"))
        except FileNotFoundError:
            if path.exists() and any(path.iterdir()):
                raise Refused(f"{path}: left alone: it is not the copy that this trial began") from None
            if path.is_dir():
                path.rmdir()
            return
        except (OSError, ValueError):
            raise Refused(f"{path}: left alone: its mark {saved.MARKER} can't be read") from None
        if not isinstance(marker, dict) or marker.get("token") != self.token:
            raise Refused(f"{path}: left alone: it is not the copy that this trial began")
        self._remove_tree(path, last=saved.MARKER)

    def remove_directory(self) -> None:
        """Remove the trial's own directory, its journal last."""
        try:
            found = self.directory.lstat()
        except FileNotFoundError:
            return
        names = [entry.name for entry in os.scandir(self.directory)]
        if names and JOURNAL not in names:
            raise Refused(f"{self.directory}: left alone: it holds no journal of a trial")
        if not stat.S_ISDIR(found.st_mode):
            raise Refused(f"{self.directory}: left alone: it is no directory")
        self._remove_tree(self.directory, last=JOURNAL)

    def _remove_tree(self, path: Path, last: str) -> None:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise Refused(f"{path}: left alone: it is not a directory of ours")
        inside = mounts.below(path.resolve(), self._table())
        if inside:
            raise Refused(f"{path}: left alone: {inside[0].source} is mounted at {inside[0].point}")
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # By descriptor: a path that is swapped under us leads nowhere else.
            for name in [entry.name for entry in os.scandir(here) if entry.name != last]:
                if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    shutil.rmtree(name, dir_fd=here)
                else:
                    os.unlink(name, dir_fd=here)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(last, dir_fd=here)
        finally:
            os.close(here)
        path.rmdir()

    # -- mounts in user space --------------------------------------------------------------------------

    def end_mounts(self, thing: Thing) -> None:
        """Kill the ``ztune-mount`` of this trial, if it runs, and unmount what it left."""
        from ztune.trial import mounted

        places = {str(name): Path(point) for name, point in thing.facts["places"].items()}
        for dataset, point in places.items():
            for mount in mounts.below(point, self._table()):
                own = mounted.ours(mount) and mount.source == mounted.SOURCE + dataset
                if mount.point != point or not own:
                    raise Refused(
                        f"{point}: left mounted: {mount.source} ({mount.type}) at {mount.point} is not ours; "
                        "unmount it, then clean again"
                    )
        store = self._store(thing.facts["store"], thing.facts["token"])
        with contextlib.suppress(FileNotFoundError):
            store.check()
            if mounted.serving(store.disks) is not None:
                # What it holds goes with it: no need for an end in order.
                mounted.Mount.attach(store.disks, places).kill()
        deadline = time.monotonic() + BUSY_SECONDS
        for point in places.values():
            # One that was killed with its trial may still be on its way out.
            while mounted.on_top(point, self._table()) is not None:
                if mounted.dead(point):
                    mounted.detach(point)
                elif time.monotonic() > deadline:
                    raise Refused(
                        f"{point}: left mounted: a program that is not this trial's serves it; "
                        "unmount it, then clean again"
                    )
                else:
                    time.sleep(0.1)

    def remove_store(self, thing: Thing) -> None:
        """Delete the disks of a trial's mounts."""
        store = self._store(thing.facts["path"], thing.facts["token"])
        if not thing.made:
            store.remove_unfinished()
            return
        deadline = time.monotonic() + BUSY_SECONDS
        while store.locked() and time.monotonic() < deadline:
            time.sleep(0.1)
        store.remove()

    @staticmethod
    def _store(path: Any, token: Any) -> MountStore:
        from ztune.trial.mount_store import MountStore

        return MountStore(Path(path), str(token))

    # -- settings and processes ------------------------------------------------------------------------

    def restore_parameters(self, thing: Thing) -> None:
        """Put module parameters back, unless the host was started since or somebody else changed them."""
        if thing.boot != boot_id():
            return
        left = tunables.restore(thing.facts)
        if left:
            raise Refused("; ".join(left))

    def end_processes(self, thing: Thing) -> None:
        """Kill what is left of the job, by process id and start time.

        What those started is killed too, also when they themselves are gone already: a job's program leads a
        session of its own, and its children stay in it. Of those, only what works below the trial's directory
        is ours for certain.
        """
        from ztune.trial.jobs.process import Identity, descendants

        if thing.boot != boot_id():
            return
        noted = [Identity(int(pid), int(ticks)) for pid, ticks in thing.facts.get("pids", ())]
        deadline = time.monotonic() + 30 * self._patience
        while True:
            family = [one for one in noted if one.alive()]
            family += [below for one in list(family) for below in descendants(one.pid)]
            leaders = {one.pid for one in noted}
            family += [one for one in _of_sessions(leaders) if mounts.uses(one.pid, self.directory)]
            if not any(one.alive() for one in family):
                return
            for one in family:
                one.kill()
            if time.monotonic() > deadline:
                raise ZtuneError(
                    "processes of the job outlived SIGKILL: they wait for a disk that does not answer"
                )
            time.sleep(0.05)


def _of_sessions(leaders: set[int]) -> list[Identity]:
    """Return the processes whose session one of ``leaders`` began."""
    from ztune.trial.jobs.process import Identity, all_pids

    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in leaders and (one := Identity.of(pid)) is not None:
                found.append(one)
    return found


def _same_source(mount: mounts.Mount, source: str) -> bool:
    if mount.source == source:
        return True
    with contextlib.suppress(OSError):
        found = Path(source).stat()
        if stat.S_ISBLK(found.st_mode):
            return (os.major(found.st_rdev), os.minor(found.st_rdev)) == mount.device
    return False


def _backing_file(entry: Path) -> str:
    """Return the file behind a loop device of ``/sys/block``; empty for anything else."""
    try:
        return (entry / "loop/backing_file").read_text().strip().removesuffix(" (deleted)")
    except OSError:
        return ""


def _label_of(node: str) -> labels.PoolLabel | None:
    """Return the ZFS label on a device node or file, also inside a whole disk's first partition."""
    try:
        fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.lseek(fd, 0, os.SEEK_END)
        return labels.whole_disk_pool(fd)[1] or labels.pool_label(fd, 0, size)
    finally:
        os.close(fd)
