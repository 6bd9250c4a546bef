"""The one door for everything that destroys: pools, datasets, file systems, mounts, files, settings.

Each thing that a trial made is looked at again on the live system before it is removed: its name, its guid,
our properties with source "local", that no clone, snapshot, bookmark or dataset of somebody else hangs on it,
and that nothing foreign is mounted on it or below. What is not beyond doubt ours is left alone, with a
sentence (``Refused``). There is no option that turns this off, no ``-f`` and no ``-r``: what appears between
the look and the act makes the act fail.

A journal is not enough. Files and directories go only where a trial makes them, in directories that nobody
but us could have written (``own_directory``), by descriptor; a process only if it carries the trial's mark.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ztune.errors import InputError, Refused, ZtuneError
from ztune.onhost.host import devices, labels, mounted, mounts, own_directory, tunables
from ztune.onhost.host.about import boot_id
from ztune.onhost.host.own_directory import Inode, NotOursError, OwnDirectory
from ztune.onhost.host.process import Identity, all_pids, descendants, is_marked, real_user_of
from ztune.onhost.host.zfs import Value, Zfs, import_places, last_words
from ztune.onhost.trial import saved
from ztune.onhost.trial.journal import NAME as JOURNAL
from ztune.onhost.trial.journal import Thing
from ztune.onhost.trial.mount_store import MountStore

RUN, TRIAL, STATE = "ztune:run", "ztune:trial", "ztune:state"
_LOOK = ("type", "guid", "origin", "clones", "userrefs", RUN, TRIAL)
_MARKER_BYTES = 1 << 20
_EMPTY = "if nobody needs it, overwrite its first and last 16 MiB with zeros, then clean again"
BUSY_SECONDS, BUSY_MOST = 15.0, 60.0
"""How long something that is in use is tried again, and the most on a slow host: udev and the like let go
within a second."""


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
        home: Path | None = None,
        patience: float = 1.0,
        table: Callable[[], list[mounts.MountInfo]] = mounts.table,
    ) -> None:
        """``directory``: where the trial's mount points are; ``home``: where its journal is, if elsewhere."""
        self.zfs = zfs
        self.run, self.trial = run, trial
        self.directory = directory
        self.home = home or directory
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
        kind = self._kinds.get(thing.kind)
        if kind is None:
            raise Refused(f"{thing.id}: left alone: this version of ztune knows no {thing.kind}")
        try:
            kind(thing)
        except NotOursError as error:
            raise Refused(f"{thing.id}: left alone: {error}") from None
        except NotADirectoryError as error:
            raise Refused(f"{thing.id}: left alone: {error.filename} is not a directory") from None

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
        facts = thing.facts
        # Only pools of ours have a past, and so snapshots of ours, and clones.
        self._own_tree(
            name,
            self.zfs.tree(name, _LOOK),
            thing,
            facts.get("datasets", ()),
            facts.get("snapshots", ()),
            facts.get("clones", {}),
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
            pool = root.partition("/")[0]
            if thing.made and pool not in self.zfs.pools():
                # It says itself whose it is, so that nothing need be kept for a pool that may never come.
                self.zfs.run.warn(
                    f"dataset {root}: pool {pool} is not imported on this host; once it is, "
                    "`ztune clean` finds the dataset by its properties, and removes it with --yes"
                )
            return
        self._own_tree(root, tree, thing, thing.facts.get("names", ()))
        for name in sorted(tree, key=lambda n: (-n.count("/"), n)):
            # Without -r: a snapshot or a child that somebody adds now makes it fail.
            self._until_free(["zfs", "destroy", name], f"dataset {name}")

    def _own_tree(
        self,
        root: str,
        tree: Mapping[str, Mapping[str, Value]],
        thing: Thing,
        made: Collection[str],
        snapshots: Collection[str] = (),
        clones: Mapping[str, str] | None = None,
    ) -> None:
        """Raise Refused unless all of ``tree`` is ours: ``made``, ``snapshots`` of it, and ``clones`` of
        these, each with the snapshot that it was made of."""
        none = Value("-", "-")
        clones = clones or {}
        guids = thing.facts.get("guids", {})
        for name, values in tree.items():
            whose = f"dataset {name}: left alone"
            if "@" in name and not (
                name in snapshots
                and values.get("userrefs", none).value in ("-", "0")
                and not _strange_clones(name, values.get("clones", none).value, clones)
            ):
                held = values.get("userrefs", none).value
                strange = _strange_clones(name, values.get("clones", none).value, clones)
                why = ", and it is held" if held not in ("-", "0") else ""
                why += f", and {', '.join(strange)} is a clone of it" if strange else ""
                raise Refused(
                    f"{root}: left alone: snapshot {name} is not ours{why}; destroy it, then clean again"
                )
            if "#" in name:
                raise Refused(
                    f"{root}: left alone: bookmark {name} is not ours; destroy it, then clean again"
                )
            if name not in made and "@" not in name and name not in clones:
                raise Refused(f"{root}: left alone: this trial did not make {name}, which is below it")
            for property_, wanted in ((RUN, self.run), (TRIAL, self.trial)):
                value = values.get(property_, none)
                if value.value != wanted or value.source != "local":
                    how = f'"{value.value}" ({value.source})' if value.value != "-" else "not set"
                    raise Refused(f'{whose}: its property {property_} is {how}, not "{wanted}" set on itself')
            if name in guids and values.get("guid", none).value != guids[name]:
                raise Refused(f"{whose}: it has another guid than the dataset that this trial made")
            origin = values.get("origin", none).value
            if name in clones and origin != clones[name]:
                raise Refused(f"{whose}: it is not the clone of {clones[name]} that this trial made")
            if name not in clones and origin not in ("-", ""):
                raise Refused(f"{whose}: it is a clone of {origin}")
        self.require_mounts(
            {str(k): str(v) for k, v in thing.facts.get("mountpoints", {}).items()}, set(tree)
        )

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
        self._require_inside(point)
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
        told = False
        while True:
            rc, _out, err = self.zfs.run.attempt(argv, timeout=300)
            if rc == 0:
                return
            if "busy" not in err or time.monotonic() > deadline:
                who = self._users() if "busy" in err else ""
                raise ZtuneError(
                    f"{what}: {' '.join(argv[:2])} failed: {last_words(err) or f'exit code {rc}'}{who}"
                )
            if not told:
                told = True
                self.zfs.run.tell(f"{what} is busy, and tried again for a while{self._users()}")
            time.sleep(0.5)

    def _users(self) -> str:
        by = mounts.users(self.directory)
        return f"; in use by {', '.join(by)}" if by else ""

    # -- disks and files -------------------------------------------------------------------------------

    def release_disk(self, thing: Thing) -> None:
        """Make a disk empty again if a label of ours is on it; leave it alone if anything else is.

        It was empty when the trial took it. That its serial number is the same does not make it ours: a
        journal may lie for weeks, and the disk be given to somebody else meanwhile.
        """
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
            if self._own_content(fd, disk, facts):
                devices.wipe_edges(fd, disk.size)
        finally:
            os.close(fd)
        # A descriptor that was opened for writing makes udev look again; the kernel must look before.
        fd = devices.open_exclusive(disk, seconds=BUSY_SECONDS)
        try:
            devices.reread_partitions(fd)
        finally:
            os.close(fd)

    def _own_content(self, fd: int, disk: devices.Disk, facts: Mapping[str, Any]) -> bool:
        """Return whether what is on the disk is ours; False where it is empty. Raises Refused for all else,
        whether it is known what it is or not.
        """
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
            if labels.written_over(fd):
                # Who makes something else on a disk leaves some of the four copies of our label there.
                raise Refused(
                    f"disk {disk.path}: left alone: somebody wrote over what this trial made on it; {_EMPTY}"
                )
            return True
        found = labels.filesystem(fd)
        if found is not None:
            if found.uuid == facts.get("uuid") and found.label == facts.get("label"):
                return True
            raise Refused(
                f"disk {disk.path}: left alone: it holds an {found.type} file system that is not ours"
            )
        if whole and facts.get("pool_begun") and labels.bare_table(fd, disk.size):
            # ``zpool create`` was cut, or failed, between the partition table and the labels.
            return True
        what = labels.signature(fd, disk.size)
        if what:
            raise Refused(f"disk {disk.path}: left alone: it holds {what}; {_EMPTY}")
        at = labels.first_data(fd, disk.size)
        if at is not None:
            raise Refused(
                f"disk {disk.path}: left alone: it holds data that ztune does not know, at byte {at}; "
                f"{_EMPTY}"
            )
        return False

    def detach_loop(self, thing: Thing) -> None:
        """Detach the loop device of one of our files."""
        file = str(thing.facts["file"])
        self._require_folder(Path(file).parent)
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
        self._require_folder(folder)
        inodes = {
            str(name): _inode(found, thing.boot) for name, found in thing.facts.get("inodes", {}).items()
        }
        with own_directory.parent_of(folder) as parent:
            if parent is None:
                return
            try:
                here = parent.below(self.trial)
            except FileNotFoundError:
                pass
            except NotOursError as error:
                raise Refused(
                    f"{folder}: left alone: it is not the directory that this trial made: {error}"
                ) from None
            else:
                with here:
                    _unlink(here, [str(name) for name in thing.facts["names"]], inodes)
                try:
                    os.rmdir(self.trial, dir_fd=parent.fd)
                except OSError as error:
                    raise Refused(
                        f"{folder}: left alone: it holds files that are not ours ({error.strerror})"
                    ) from None
        if thing.facts.get("made_run", True):
            # The run's own directory: other trials of the run may still have theirs in it.
            with own_directory.parent_of(folder.parent) as base, contextlib.suppress(OSError):
                if base is not None:
                    os.rmdir(self.run, dir_fd=base.fd)

    def _require_folder(self, folder: Path) -> None:
        if not folder.is_absolute() or folder.parts[-2:] != (self.run, self.trial):
            raise Refused(f"{folder}: left alone: it is not where this trial makes files")

    def _require_inside(self, point: Path) -> None:
        """Raise Refused unless ``point`` is below the trial's own directory, which only we can write."""
        if self.directory not in point.parents or ".." in point.parts:
            raise Refused(f"{point}: left alone: it is not below {self.directory}, where this trial mounts")
        with contextlib.suppress(FileNotFoundError):
            own_directory.check(self.directory)

    def remove_saved(self, thing: Thing) -> None:
        """Remove a saved state that was cut while it was being copied; a finished one has its final name."""
        path = Path(thing.facts["path"])
        if not path.name.endswith(f".partial-{self.trial}"):
            raise Refused(f"{path}: left alone: it is not called as the copy that this trial began")
        with own_directory.parent_of(path) as parent:
            try:
                here = parent.below(path.name) if parent is not None else None
            except FileNotFoundError:
                here = None
            if here is None:
                return
            with here:
                try:
                    fd = here.open_file(saved.MARKER)
                except FileNotFoundError:
                    if here.names():
                        raise Refused(
                            f"{path}: left alone: it is not the copy that this trial began"
                        ) from None
                else:
                    try:
                        with os.fdopen(fd, "rb") as file:
                            marker = json.loads(file.read(_MARKER_BYTES))
                    except (OSError, ValueError, RecursionError):
                        raise Refused(f"{path}: left alone: its mark {saved.MARKER} can't be read") from None
                    if not isinstance(marker, dict) or marker.get("token") != self.token:
                        raise Refused(f"{path}: left alone: it is not the copy that this trial began")
        self._remove_tree(path, last=saved.MARKER, inode=_inode(thing.facts.get("inode"), thing.boot))

    def remove_directory(self) -> None:
        """Remove the trial's own directories, its journal last."""
        try:
            for path in dict.fromkeys((self.directory, self.home)):
                last = JOURNAL if path == self.home else ""
                if last:
                    with contextlib.suppress(FileNotFoundError), OwnDirectory.open(path) as here:
                        names = here.names()
                        if names and last not in names:
                            raise Refused(f"{path}: left alone: it holds no journal of a trial")
                self._remove_tree(path, last=last)
        except NotOursError as error:
            raise Refused(f"{self.directory}: left alone: {error}") from None

    def _remove_tree(self, path: Path, last: str, inode: Inode | None = None) -> None:
        inside = mounts.below(path, self._table())
        if inside:
            raise Refused(f"{path}: left alone: {inside[0].source} is mounted at {inside[0].point}")
        own_directory.remove(path, last, inode=inode)

    # -- mounts in user space --------------------------------------------------------------------------

    def end_mounts(self, thing: Thing) -> None:
        """Kill the ``ztune-mount`` of this trial, if it runs, and unmount what it left."""
        places = {str(name): Path(point) for name, point in thing.facts["places"].items()}
        for dataset, point in places.items():
            self._require_inside(point)
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
            self._end_program(store)
        for point in places.values():
            self._detach(point)

    def remove_store(self, thing: Thing) -> None:
        """Delete the disks of a trial's mounts."""
        store = self._store(thing.facts["path"], thing.facts["token"])
        if not thing.made:
            store.remove_unfinished()
            return
        with contextlib.suppress(FileNotFoundError):
            store.check()
            # One that the trial had only just started takes the store after its mounts were looked for.
            self._end_program(store)
            for mount in mounts.below(self.directory, self._table()):
                if mounted.ours(mount):
                    self._detach(mount.point)
        store.remove()

    def _end_program(self, store: MountStore) -> None:
        """Kill the ``ztune-mount`` that has the store, which is ours; wait for one on its way up or out."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            said = "a program has its lock"
            try:
                if mounted.serving(store.disks) is not None:
                    # What it holds goes with it: no need for an end in order.
                    mounted.Mount.attach(store.disks, {}).kill()
                # It has the lock before it listens, and a killed one until the kernel is done with it.
                if not store.locked():
                    return
            except mounted.MountError as error:
                # One that ends just now has let go of its files before its socket.
                said = str(error)
            if time.monotonic() > deadline:
                raise Refused(f"{store.disks}: left alone: {said}")
            time.sleep(0.1)

    def _detach(self, point: Path) -> None:
        """Unmount what a ``ztune-mount`` that was killed left on ``point``, on its way out or not."""
        deadline = time.monotonic() + BUSY_SECONDS
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

    def _store(self, path: Any, token: Any) -> MountStore:
        if Path(path).name != self.trial:
            raise Refused(f"{path}: left alone: it is not called as the store of this trial")
        return MountStore(Path(path), str(token))

    # -- settings and processes ------------------------------------------------------------------------

    def restore_parameters(self, thing: Thing) -> None:
        """Put module parameters back, unless the host was started since or somebody else changed them."""
        if thing.boot != boot_id():
            return
        for sentence in tunables.restore(thing.facts):
            # Theirs by now: to keep the trial's journal for it would refuse it for ever.
            self.zfs.run.warn(sentence)

    def end_processes(self, thing: Thing) -> None:
        """Kill what is left of the job: what was noted, by number and start time, and carries our mark.

        What those started is killed too, also when they themselves are gone already: a job's program leads a
        session of its own, and its children stay in it. Of those, what carries the mark is ours for certain.
        """
        if thing.boot != boot_id():
            return
        noted = [Identity(int(pid), int(ticks)) for pid, ticks in thing.facts.get("pids", ())]
        users = thing.facts.get("users")
        deadline = time.monotonic() + 30 * self._patience
        ours: set[Identity] = set()
        while True:
            for one in (*noted, *_of_sessions({one.pid for one in noted})):
                # Alive before and after the look: so it was this one that was looked at.
                if one.alive() and self._is_marked(one.pid, users) and one.alive():
                    ours.add(one)
            for one in [one for one in ours if one.alive()]:
                ours.update(descendants(one.pid))
            alive = [one for one in ours if one.alive()]
            strange = [one for one in noted if one not in ours and one.alive()]
            if not alive and not any(one.exiting() for one in strange):
                break
            for one in alive:
                one.kill()
            if time.monotonic() > deadline:
                raise ZtuneError(
                    "processes of the job outlived SIGKILL: they wait for a disk that does not answer"
                )
            time.sleep(0.05)
        if strange:
            raise Refused(
                f"process {strange[0].pid}: left alone: it does not carry the mark of trial {self.trial}; "
                "end it if it is the job's, then clean again"
            )

    def _is_marked(self, pid: int, users: Any) -> bool:
        """Whether a process is the trial's: by its environment, or, as some servers write over theirs, since
        it works below the trial's directory; and it runs as who the job ran as.
        """
        if users is not None and real_user_of(pid) not in (0, os.geteuid(), *users):
            return False
        return is_marked(pid, self.token) or mounts.uses(pid, self.directory)


def _inode(noted: Any, boot: str) -> Inode | None:
    """Return a noted device and inode; after a reboot the device may have another number."""
    if noted is None:
        return None
    device, number = (int(one) for one in noted)
    return (device if boot == boot_id() else None, number)


def _unlink(here: OwnDirectory, names: list[str], inodes: Mapping[str, Inode | None]) -> None:
    """Delete files of ours in a directory, all or none. Raises Refused."""
    there = []
    for name in names:
        path = here.path / name
        found = here.look(name) if name and "/" not in name else None
        if found is None and name and "/" not in name:
            continue
        try:
            if found is None:
                raise NotOursError(f"{name!r} is no name of a file")
            own_directory.require_file(path, found)
            if not own_directory.is_inode(found, inodes.get(name)):
                raise NotOursError("another file has taken its place")
        except NotOursError as error:
            raise Refused(f"{path}: left alone: it is not the file that this trial made: {error}") from None
        there.append(name)
    for name in there:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=here.fd)


def _strange_clones(snapshot: str, found: str, ours: Mapping[str, str]) -> list[str]:
    """Return the clones of a snapshot, as its property names them, that were not made of it by the trial."""
    names = [] if found in ("-", "") else found.split(",")
    return [name for name in names if ours.get(name) != snapshot]


def _of_sessions(leaders: set[int]) -> list[Identity]:
    """Return the processes whose session one of ``leaders`` began."""
    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in leaders and (one := Identity.of(pid)) is not None:
                found.append(one)
    return found


def _same_source(mount: mounts.MountInfo, source: str) -> bool:
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
