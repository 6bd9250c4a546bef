"""A trial's pools in this host's kernel: on disks, in files, or below a dataset of the user's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.age import CLONE
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import devices, filesystems, own_directory, tunables, zfs_versions
from ztune.onhost.host.about import environment
from ztune.onhost.host.own_directory import NotOursError, OwnDirectory
from ztune.onhost.host.zfs import Upkeep, Zfs, import_places, last_words, module_version, parse_version
from ztune.onhost.layout import CLASSES, Dataset, Pool
from ztune.onhost.probes.context import DatasetContext, DeviceContext, MountContext, PoolContext
from ztune.onhost.properties import PROPERTIES, version_key
from ztune.onhost.trial import parents
from ztune.onhost.trial.door import RUN, STATE, TRIAL, Door
from ztune.onhost.trial.journal import Journal
from ztune.onhost.trial.pools import Filled, Made, Say
from ztune.onhost.trial.spec import Spec
from ztune.onhost.trial.watching import LossWatch
from ztune.onhost.tunables import NO_FLUSHES
from ztune.units import format_size


def pool_name(run: str, layout_pool: str) -> str:
    """Return the name of a trial's pool: "zt", the run's id, the layout's name for it."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in layout_pool)
    return f"zt{run.removeprefix('r-')[:24].lower()}-{plain}"


@dataclass(slots=True)
class KernelPools:
    """``ztune.onhost.trial.pools.Pools`` by ``zpool`` and ``zfs``, as root."""

    spec: Spec
    events: Events
    zfs: Zfs
    door: Door
    made: list[Made] = field(default_factory=list)
    loaded: bool = False
    journal: Journal = field(init=False)
    version: tuple[int, ...] = field(init=False)
    _devices: dict[str, list[DeviceContext]] = field(default_factory=dict)
    _guids: dict[str, str] = field(default_factory=dict)
    _lacks: dict[str, frozenset[str]] = field(default_factory=dict)
    """Pool of the layout → what features a pool of the user's in its place has disabled."""
    _watch: LossWatch | None = None
    _gone: str = ""
    _fs_mounts: dict[str, tuple[str, str, Path]] = field(default_factory=dict)
    """Thing id → file system, node, mount point of each ext4 and xfs."""

    def __post_init__(self) -> None:
        self.version = parse_version(module_version())

    def check(self) -> None:
        """Raise InputError, MissingError if the layout can't be had here; nothing is made."""
        if os.geteuid() != 0:
            raise MissingError("a trial makes pools and mounts; run it as root")
        if self.spec.layout.uses_zfs and not self.version:
            raise MissingError(
                "the ZFS module is not loaded on this host; install OpenZFS, then: modprobe zfs"
            )
        if self.spec.layout.age is not None and self.spec.place.kind == "parent":
            raise InputError(
                "an age fills pools and rewrites what is on them, which ztune does to its own alone; "
                "name disks or a directory for files, or take --on mount or --on lab"
            )
        text = tunables.read("zfs_max_recordsize")
        largest = self.spec.layout.tunables.get("zfs_max_recordsize", int(text) if text else None)
        for dataset in self.spec.layout.datasets:
            for name, value in self._properties(dataset).items():
                zfs_versions.check_property(name, value, self.version, largest)
        for pool in self.spec.layout.pools:
            for vdev in pool.vdevs:
                version = zfs_versions.VDEV_CLASSES.get(vdev.class_)
                if pool.filesystem == "zfs" and version and self.version < zfs_versions.number(version):
                    raise InputError(f"a {vdev.class_} vdev needs OpenZFS {version} or later")

    # -- making ----------------------------------------------------------------------------------------

    def make(self, journal: Journal, say: Say, load: Mapping[str, Any]) -> None:
        """Make the pools and datasets of the layout."""
        self.journal = journal
        # Not all of them are there yet: what is not there is not suspended.
        self._watch = LossWatch(lambda: bool(self.gone()))
        spec = self.spec
        plan = (
            tunables.plan(spec.layout.arc, spec.layout.tunables, self.version, spec.dilation)
            if spec.layout.uses_zfs
            else None
        )
        if spec.place.kind == "parent":
            for sentence in parents.check(self.zfs, spec.place.parents.values()):
                self.events.warning(sentence)
            self._lacks = {pool: parents.lacks(self.zfs, name) for pool, name in spec.place.parents.items()}
        elif spec.layout.uses_zfs:
            self._check_names()
        if plan is not None:
            self._check_others()
            self.journal.make("parameters", "parameters", **plan)
            tunables.apply(plan)
            self.journal.made("parameters")
        if any(d.properties.get("encryption", "off") != "off" for d in spec.layout.datasets):
            self._make_key()
        if spec.place.kind == "parent":
            self._make_below_parents()
        else:
            nodes = self._take_disks() if spec.place.kind == "disks" else self._make_files()
            for i, pool in enumerate(spec.layout.pools):
                say(f"pool {pool.name}", 0.2 + 0.6 * i / len(spec.layout.pools))
                if pool.filesystem == "zfs":
                    self._make_pool(pool, nodes[pool.name])
                else:
                    self._make_baseline(pool, nodes[pool.name]["data"][0][0])

    def _check_names(self) -> None:
        live = self.zfs.pools()
        for pool in self.spec.layout.pools:
            name = pool_name(self.spec.run, pool.name)
            if pool.filesystem == "zfs" and name in live:
                raise InputError(
                    f'pool name "{name}" is taken on this host, by a pool that this run did not leave; '
                    "export or rename that pool"
                )

    def _check_others(self) -> None:
        """Raise InputError where the trial would leave out flushes of pools that it does not own, and say
        what else of it acts on them: module parameters are the whole host's."""
        others = ", ".join(sorted(self.zfs.pools()))
        if not others:
            return
        layout = self.spec.layout
        for name in NO_FLUSHES:
            if layout.tunables.get(name):
                raise InputError(
                    f"tunable {name}: it would leave out the flushes of all pools that are imported on this "
                    f"host, {others}, and a power cut meanwhile may corrupt them; take --on mount or --on lab"
                )
        what = [f"the ARC is {format_size(layout.arc)}", *(f"{k} is {v}" for k, v in layout.tunables.items())]
        self.events.warning(
            f"during a trial {', '.join(what)} for all pools of this host, these among them: {others}"
        )

    def _make_key(self) -> None:
        # 32 bytes: the length of a raw key whatever the cipher, zfs-load-key(8).
        fd = os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(os.urandom(32))

    @property
    def _key(self) -> Path:
        return self.spec.home / "key"

    def _take_disks(self) -> dict[str, dict[str, list[list[str]]]]:
        """Check every disk of the layout, journal it, and return pool → class → vdevs → device nodes."""
        found: dict[str, dict[str, list[list[devices.Disk]]]] = {}
        for pool in self.spec.layout.pools:
            given = self.spec.place.disks[pool.name]
            found[pool.name] = {
                class_: [[devices.require_free(path) for path in vdev] for vdev in vdevs]
                for class_, vdevs in given.items()
            }
        devices.require_different([d for c in found.values() for vs in c.values() for v in vs for d in v])
        for pool in self.spec.layout.pools:
            extra: dict[str, Any] = {"pool": pool_name(self.spec.run, pool.name)}
            if pool.filesystem != "zfs":
                extra["uuid"], extra["label"] = filesystems.new_identity()
                disk = found[pool.name]["data"][0][0]
                filesystems.check_size(pool.filesystem, disk.size, f"disk {disk.path}")
            for class_, vdevs in found[pool.name].items():
                for i, vdev in enumerate(vdevs):
                    for disk in vdev:
                        self.journal.make(
                            f"disk:{disk.node}", "disk", **{**to_json(disk), **extra, "class": class_}
                        )
                        self.journal.made(f"disk:{disk.node}")
                        self._devices.setdefault(pool.name, []).append(
                            DeviceContext(class_, i, disk.path, disk.node)
                        )
        return {
            pool: {class_: [[d.node for d in v] for v in vdevs] for class_, vdevs in classes.items()}
            for pool, classes in found.items()
        }

    def _make_files(self) -> dict[str, dict[str, list[list[str]]]]:
        """Make the files that stand for disks, sparse; loop devices for ext4 and xfs."""
        spec = self.spec
        base = spec.place.dir
        assert base is not None
        if not base.is_dir():
            raise InputError(f"place.dir: {base} is no directory; make it first")
        try:
            base = own_directory.real(base)
            own_directory.check(base)
        except NotOursError as error:
            raise InputError(f"place.dir: {error}") from None
        folder = base / spec.run / spec.trial
        names: dict[tuple[str, str, int, int], tuple[str, int]] = {}
        for pool, classes in spec.place.sizes.items():
            for class_, vdevs in classes.items():
                for i, vdev in enumerate(vdevs):
                    for j, size in enumerate(vdev):
                        plain = pool_name("", pool).removeprefix("zt-")
                        names[pool, class_, i, j] = (f"{plain}-{class_}-{i}-{j}", size)
        total, room = sum(size for _, size in names.values()), shutil.disk_usage(base).free
        if total > room:
            self.events.warning(
                f"the files in {base} may grow to {format_size(total)}, but "
                f"{format_size(room // 1024 * 1024)} is free there"
            )
        listed = [name for name, _ in names.values()]
        run = folder.parent
        self.journal.make("files", "files", dir=str(folder), names=listed, made_run=not os.path.lexists(run))
        try:
            OwnDirectory.open(run, make=own_directory.PRIVATE).close()
            with own_directory.parent_of(folder) as parent:
                assert parent is not None
                here = parent.below(folder.name, make=own_directory.PRIVATE, new=True)
        except FileExistsError:
            # Not ours by this journal: leave it, and do not claim it later either.
            self.journal.append("removed", id="files")
            raise InputError(f"{folder} exists already; remove it or name another directory") from None
        except NotOursError as error:
            self.journal.append("removed", id="files")
            raise InputError(f"place.dir: {error}") from None
        inodes = {}
        with here:
            for name, size in names.values():
                fd = here.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                try:
                    os.ftruncate(fd, size)
                    made = os.fstat(fd)
                    inodes[name] = [made.st_dev, made.st_ino]
                finally:
                    os.close(fd)
            here.sync()
        self.journal.made("files", inodes=inodes)
        nodes: dict[str, dict[str, list[list[str]]]] = {}
        for pool_ in spec.layout.pools:
            nodes[pool_.name] = {}
            for class_, vdevs in spec.place.sizes[pool_.name].items():
                groups = nodes[pool_.name][class_] = []
                for i, vdev in enumerate(vdevs):
                    group = []
                    for j, size in enumerate(vdev):
                        path = str(folder / names[pool_.name, class_, i, j][0])
                        node = path
                        if pool_.filesystem != "zfs":
                            filesystems.check_size(pool_.filesystem, size, f"file {path}")
                            node = self._make_loop(path)
                        group.append(node)
                        self._devices.setdefault(pool_.name, []).append(DeviceContext(class_, i, path, node))
                    groups.append(group)
        return nodes

    def _make_loop(self, path: str) -> str:
        id = f"loop:{path}"
        self.journal.make(id, "loop", file=path, uses=["files"])
        # Direct I/O: the file's own page cache below would be a second cache. Not every file system can.
        argv = ["losetup", "--find", "--show", "--direct-io=on", path]
        rc, out, _err = self.zfs.run.attempt(argv)
        node = out.strip() if rc == 0 else self.zfs.run([a for a in argv if "direct" not in a]).strip()
        self.journal.made(id, device=node)
        return node

    def _properties(self, dataset: Dataset) -> dict[str, str]:
        """Return the properties to set: a volume takes fewer, and default ones that are off limits go."""
        values = dict(dataset.properties)
        if values.get("encryption", "off") == "off":
            values.pop("encryption", None)
        # ZFS knows no special_small_blocks without the allocation-classes feature, and 0 is what it is then.
        for name in ("special_small_blocks", "prefetch", "direct"):
            known = self.version >= version_key(PROPERTIES[name].since) and not (
                name == "special_small_blocks" and "allocation_classes" in self._lacks.get(dataset.pool, ())
            )
            if name in values and PROPERTIES[name].needless(values[name]) and not known:
                values.pop(name)
        if dataset.volume is not None:
            allowed = zfs_versions.VOLUME_PROPERTIES | (
                {"special_small_blocks"} if self.version >= (2, 4) else set()
            )
            values = {name: value for name, value in values.items() if name in allowed}
        else:
            values.setdefault("atime", PROPERTIES["atime"].default)
        return values

    def _options(self, dataset: Dataset | None, letter: str, mountpoint: Path | None) -> list[str]:
        """Return the options that make ``dataset``; without one, those of a dataset that no role lives on."""
        words: dict[str, str] = {RUN: self.spec.run, TRIAL: self.spec.trial, STATE: str(self.spec.state)}
        words["com.sun:auto-snapshot"] = "false"
        if dataset is not None:
            words |= self._properties(dataset)
        if "encryption" in words:
            words |= {"keyformat": "raw", "keylocation": f"file://{self._key}"}
        if mountpoint is not None and (dataset is None or dataset.volume is None):
            words |= {"mountpoint": str(mountpoint), "canmount": "on"}
        return [part for name, value in words.items() for part in (letter, f"{name}={value}")]

    def _own_options(self, letter: str) -> list[str]:
        return [*self._options(None, letter, None), letter, "mountpoint=none", letter, "canmount=off"]

    def _make_pool(self, pool: Pool, nodes: dict[str, list[list[str]]]) -> None:
        spec = self.spec
        name = pool_name(spec.run, pool.name)
        root = spec.directory / "mnt"
        root.mkdir(mode=0o711, exist_ok=True)
        here = [d for d in spec.layout.datasets if d.pool == pool.name]
        below = sorted((d for d in here if d.rest), key=lambda d: d.name.count("/"))
        top = next((d for d in here if not d.rest), None)
        between = _between(below)
        points = {
            f"{name}/{d.rest}": f"/{name}/{d.rest.replace('/', '.')}" for d in below if d.volume is None
        }
        if top is not None:
            points[name] = f"/{name}/_pool"
        devices_ = self._devices[pool.name]
        argv = ["zpool", "create"]
        if _uneven(pool):
            # ZFS asks for -f when a special vdev has another redundancy than the data. The disks were
            # checked.
            argv.append("-f")
        argv += ["-o", f"ashift={pool.ashift}", "-o", "cachefile=none", "-o", "failmode=continue"]
        argv += ["-o", f"comment={self.door.token}", "-R", str(root)]
        argv += self._options(top, "-O", Path(points[name])) if top is not None else self._own_options("-O")
        argv.append(name)
        for class_ in CLASSES:
            for vdev, group in zip(pool.of_class(class_), nodes.get(class_, []), strict=True):
                argv += [
                    *([class_] if class_ != "data" else []),
                    *([vdev.kind] if vdev.kind != "stripe" else []),
                    *group,
                ]
        id = f"pool:{pool.name}"
        uses = [t.id for t in self.journal.things.values() if t.kind == "files"] + [
            f"disk:{d.node}" for d in devices_ if f"disk:{d.node}" in self.journal.things
        ]
        thing = self.journal.make(
            id,
            "pool",
            name=name,
            nodes=[d.path for d in devices_],
            datasets=[name, *(f"{name}/{rest}" for rest in between), *(f"{name}/{d.rest}" for d in below)],
            mountpoints={ds: f"{root}{point}" for ds, point in points.items()},
            uses=uses,
        )
        # By this the door knows a partition table of ours that no label follows.
        disks = [use for use in uses if use.startswith("disk:")]
        for disk in disks:
            self.journal.note(disk, pool_begun=True)
        self.zfs.run(argv, timeout=300)
        guid = self.zfs.pools().get(name, "")
        self.journal.made(id, guid=guid)
        for disk in disks:
            self.journal.note(disk, pool_begun=False)
        self._guids[pool.name] = guid
        for rest in between:
            self.zfs.run(["zfs", "create", *self._own_options("-o"), f"{name}/{rest}"])
        if top is not None:
            self.made.append(Made(top, name, Path(thing.facts["mountpoints"][name]), name))
        for dataset in below:
            full = f"{name}/{dataset.rest}"
            point = Path(points[full]) if full in points else None
            self._create(dataset, full, point)
            at = Path(thing.facts["mountpoints"].get(full, root / name / dataset.rest.replace("/", ".")))
            self._finish_dataset(dataset, full, at, name, id)

    def _create(self, dataset: Dataset, full: str, point: Path | None) -> None:
        argv = ["zfs", "create", *self._options(dataset, "-o", point)]
        if dataset.volume is not None:
            argv += ["-V", str(dataset.volume)]
        rc, _out, err = self.zfs.run.attempt([*argv, full])
        if rc != 0:
            if "out of space" in err or "greater than available" in err:
                size = f"{format_size(dataset.volume)} " if dataset.volume else ""
                raise InputError(f"dataset {dataset.name}: {size}does not fit on its pool; take larger disks")
            raise ZtuneError(f"dataset {dataset.name}: {last_words(err)}")

    def _finish_dataset(self, dataset: Dataset, full: str, point: Path, pool: str, owner: str) -> None:
        made = Made(dataset, full, point, pool)
        if dataset.volume is not None and dataset.filesystem is not None:
            made.node = devices.volume_node(full, 30 * self.spec.patience)
            own, label = filesystems.new_identity()
            filesystems.check_size(dataset.filesystem, dataset.volume, f"volume {dataset.name}")
            filesystems.make(self.zfs.run, dataset.filesystem, made.node, own, label)
            point.mkdir(mode=0o711, parents=True)
            self._mount(dataset.filesystem, made.node, point, owner)
        self.made.append(made)

    def _mount(self, type: str, node: str, point: Path, user_of: str) -> None:
        id = f"mount:{point}"
        self.journal.make(id, "mount", point=str(point), node=node, type=type, uses=[user_of])
        filesystems.mount(self.zfs.run, type, node, point, self.spec.dilation)
        self.journal.made(id)
        self._fs_mounts[id] = (type, node, point)

    def _make_baseline(self, pool: Pool, node: str) -> None:
        """Make ext4 or xfs on a pool's one disk; its datasets are directories."""
        name = pool_name(self.spec.run, pool.name)
        owner = next(
            t
            for t in self.journal.things.values()
            if t.id in (f"disk:{node}",) or t.facts.get("device") == node
        )
        own, label = owner.facts.get("uuid"), owner.facts.get("label")
        if own is None or label is None:
            own, label = filesystems.new_identity()
        filesystems.make(self.zfs.run, pool.filesystem, node, str(own), str(label))
        root = self.spec.directory / "mnt"
        point = root / name
        root.mkdir(mode=0o711, exist_ok=True)
        point.mkdir(mode=0o711)
        self._mount(pool.filesystem, node, point, owner.id)
        for dataset in self.spec.layout.datasets:
            if dataset.pool == pool.name:
                folder = point / (dataset.rest.replace("/", ".") or "_pool")
                folder.mkdir(mode=0o755)
                self.made.append(Made(dataset, f"{name}/{dataset.rest}".rstrip("/"), folder, name, node))

    def _below(self, parent: str) -> str:
        spec = self.spec
        own = spec.trial if spec.trial.startswith(spec.run) else f"{spec.run}-{spec.trial}"
        return f"{parent}/ztune-{own}"

    def _make_below_parents(self) -> None:
        spec = self.spec
        base = spec.directory / "mnt"
        base.mkdir(mode=0o711, exist_ok=True)
        roots: dict[str, str] = {}
        for pool in spec.layout.pools:
            root = self._below(spec.place.parents[pool.name])
            if root in roots.values():
                # Two pools of the layout on one parent: told apart by their names below it.
                root += f".{pool_name('', pool.name).removeprefix('zt-')}"
            roots[pool.name] = root
        if self.zfs.values(list(roots.values()), ("type",)):
            raise InputError(f'dataset "{next(iter(roots.values()))}" exists already; rename or destroy it')
        for pool in spec.layout.pools:
            root = roots[pool.name]
            here = sorted(
                (d for d in spec.layout.datasets if d.pool == pool.name), key=lambda d: d.name.count("/")
            )
            between = _between([d for d in here if d.rest])
            # The pool's own dataset becomes one below ours, so that ours can stay unmounted and unencrypted.
            full = {d.name: f"{root}/{d.rest or '_pool'}" for d in here}
            points = {
                full[d.name]: str(base / pool_name("", pool.name) / (d.rest or "_pool").replace("/", "."))
                for d in here
            }
            id = f"datasets:{pool.name}"
            names = [root, *(f"{root}/{rest}" for rest in between), *full.values()]
            self.journal.make(
                id,
                "datasets",
                root=root,
                names=names,
                mountpoints={full[d.name]: points[full[d.name]] for d in here if d.volume is None},
            )
            alone = parents.alone(self.zfs, spec.place.parents[pool.name], self.version)
            words = [part for name, value in alone.items() for part in ("-o", f"{name}={value}")]
            self.zfs.run(["zfs", "create", *self._own_options("-o"), *words, root])
            for rest in between:
                self.zfs.run(["zfs", "create", *self._own_options("-o"), f"{root}/{rest}"])
            for d in here:
                self._create(d, full[d.name], Path(points[full[d.name]]))
            guids = {name: v["guid"].value for name, v in self.zfs.values(names, ("guid",)).items()}
            self.journal.made(id, guids=guids)
            for d in here:
                self._finish_dataset(d, full[d.name], Path(points[full[d.name]]), root.partition("/")[0], id)

    # -- settling --------------------------------------------------------------------------------------

    def keep(self, say: Say) -> None:
        """Nothing: what the kernel has can't be copied aside."""

    def sync(self) -> None:
        """Return when all that was written is on the disks."""
        names = self._live_names()
        # A file system on a volume first, or the pool's sync would come before its writes.
        for _type, _node, point in self._fs_mounts.values():
            filesystems.sync(point)
        if names:
            self.zfs.run(["zpool", "sync", *names], timeout=1800)

    def _live_names(self) -> list[str]:
        """Return what the pools are called on this host."""
        if self.spec.place.kind == "parent":
            return sorted({parent.partition("/")[0] for parent in self.spec.place.parents.values()})
        return [pool_name(self.spec.run, p.name) for p in self.spec.layout.pools if p.filesystem == "zfs"]

    def upkeep(self) -> dict[str, Upkeep]:
        """Return what each pool does of itself: a timer of the host may scrub ours, too."""
        return {name: self.zfs.upkeep(name) for name in self._live_names()}

    def as_made(self) -> dict[str, dict[str, str]]:
        """Return the datasets' properties, the devices of pools that the trial made, and the module's
        parameters that it has set."""
        wanted = ["guid", *(n for n, p in PROPERTIES.items() if version_key(p.since) <= self.version)]
        of_zfs = {pool.name for pool in self.spec.layout.pools if pool.filesystem == "zfs"}
        names = [made.name for made in self.made if made.dataset.pool in of_zfs]
        values = self.zfs.values(names, wanted) if names else {}
        found = {name: {key: said.value for key, said in of.items()} for name, of in values.items()}
        for name in self._live_names() if self.spec.place.kind != "parent" else ():
            found[f"pool {name}"] = {"devices": ", ".join(self.zfs.upkeep(name).vdevs[1:])}
        if "parameters" in self.journal.things:
            set_ = self.journal.things["parameters"].facts["new"]
            found["the ZFS module"] = {name: tunables.read(name) or "" for name in set_}
        return found

    def end_group(self) -> None:
        """Write the open transaction group of each pool."""
        names = [pool_name(self.spec.run, p.name) for p in self.spec.layout.pools]
        rc, _out, err = self.zfs.run.attempt(["zpool", "sync", *names], timeout=1800, quiet=True)
        if rc != 0:
            raise ZtuneError(f"zpool sync failed: {last_words(err)}")

    def filled(self) -> dict[str, Filled]:
        """Return how full each pool is, by the layout's name for it."""
        found = {}
        for pool in self.spec.layout.pools:
            argv = [
                "zpool",
                "list",
                "-Hp",
                "-o",
                "size,allocated,fragmentation",
                pool_name(self.spec.run, pool.name),
            ]
            rc, out, err = self.zfs.run.attempt(argv, quiet=True)
            if rc != 0:
                raise ZtuneError(f"zpool list failed: {last_words(err)}")
            size, allocated, fragmentation = out.split()
            known = fragmentation.rstrip("%")
            found[pool.name] = Filled(int(size), int(allocated), int(known) if known.isdecimal() else None)
        return found

    def snapshot(self, name: str) -> None:
        """Take a snapshot of each dataset but those that fill the pools."""
        spec = self.spec
        for pool in spec.layout.pools:
            mine = [m for m in self.made if m.dataset.pool == pool.name and m.dataset.roles]
            names = [f"{made.name}@{name}" for made in mine]
            thing = self.journal.things[f"pool:{pool.name}"]
            self.journal.note(thing.id, snapshots=[*thing.facts.get("snapshots", ()), *names])
            words = {RUN: spec.run, TRIAL: spec.trial}
            options = [part for key, value in words.items() for part in ("-o", f"{key}={value}")]
            self.zfs.run(["zfs", "snapshot", *options, *names])

    def clone(self, snapshot: str, number: int) -> None:
        """Make clones of a snapshot that ``snapshot`` took, which nobody mounts."""
        words = {RUN: self.spec.run, TRIAL: self.spec.trial}
        for index, made in enumerate(m for m in self.made if m.dataset.roles):
            name = f"{made.name.partition('/')[0]}/{CLONE}-{number}-{index}"
            thing = self.journal.things[f"pool:{made.dataset.pool}"]
            noted = {**thing.facts.get("clones", {}), name: f"{made.name}@{snapshot}"}
            self.journal.note(thing.id, clones=noted)
            kept = {**words, **({"volmode": "none"} if made.dataset.volume else {"canmount": "off"})}
            options = [part for key, value in kept.items() for part in ("-o", f"{key}={value}")]
            self.zfs.run(["zfs", "clone", *options, noted[name], name])

    def cool(self) -> None:
        """Empty the caches of what the pools hold. Nothing in them is in use."""
        spec = self.spec
        for id, (_type, node, point) in self._fs_mounts.items():
            self.journal.note(id, mounted=False)
            self.door.unmount(point, node)
        if spec.place.kind == "parent":
            self._remount()
        else:
            self._reimport()
        if self._fs_mounts:
            filesystems.drop_caches()
        for id, (type, node, point) in list(self._fs_mounts.items()):
            made = next((m for m in self.made if m.own_filesystem and m.node == node), None)
            if made is not None:
                node = made.node = devices.volume_node(made.name, 30 * spec.patience)
                self._fs_mounts[id] = (type, node, point)
            self.journal.note(id, mounted=True, node=node)
            filesystems.mount(self.zfs.run, type, node, point, self.spec.dilation)

    def _reimport(self) -> None:
        """Export and import each pool: the only way to empty the ARC of what belongs to it."""
        for pool in self.spec.layout.pools:
            if pool.filesystem != "zfs":
                continue
            id = f"pool:{pool.name}"
            self.journal.note(id, imported=False)
            self.door.export_pool(self.journal.things[id])
            argv = ["zpool", "import", "-o", "cachefile=none", "-R", str(self.spec.directory / "mnt")]
            if any(d.properties.get("encryption", "off") != "off" for d in self.spec.layout.datasets):
                argv.append("-l")
            for where in import_places([d.path for d in self._devices[pool.name]]):
                argv += ["-d", where]
            self.zfs.run([*argv, self._guids[pool.name]], timeout=600)
            self.journal.note(id, imported=True)

    def _remount(self) -> None:
        self.events.warning(
            "on a parent dataset the ARC is not emptied before the measure: only unmounted and mounted"
        )
        for made in self.made:
            if not made.own_filesystem:
                self.door.unmount(made.mountpoint, made.name)
        for made in self.made:
            if not made.own_filesystem:
                self.zfs.run(["zfs", "mount", made.name])

    def fills(self) -> list[Path]:
        """Return where the files are that stand for disks, or the datasets on a pool of the user's."""
        place = self.spec.place
        if place.kind == "files" and place.dir is not None:
            return [place.dir]
        return [made.mountpoint for made in list(self.made)] if place.kind == "parent" else []

    def gone(self) -> str:
        """Return which pool waits for its disks, as a sentence; empty while they all work."""
        for name in self._live_names() if not self._gone else ():
            if self.zfs.suspended(name):
                self._gone = (
                    f'pool "{name}" is suspended since the trial began: it waits for its disks; '
                    f"`zpool status {name}` says why"
                )
        return self._gone

    def release(self) -> None:
        """The trial is over: nobody need be told any more when they wait."""
        if self._watch is not None:
            self._watch.end()

    # -- what is known of them -------------------------------------------------------------------------

    def contexts(self) -> tuple[tuple[PoolContext, ...], tuple[DatasetContext, ...]]:
        """Return what probes may know of them."""
        spec = self.spec
        by_pool: dict[str, str] = {}
        pools = []
        for pool in spec.layout.pools:
            ours = spec.place.kind != "parent"
            name = pool_name(spec.run, pool.name) if ours else spec.place.parents[pool.name].partition("/")[0]
            by_pool[pool.name] = name
            pools.append(
                PoolContext(
                    name,
                    pool.name,
                    pool.filesystem,
                    self._guids.get(pool.name, ""),
                    tuple(self._devices.get(pool.name, ())),
                    ours,
                )
            )
        filesystem = {p.name: p.filesystem for p in spec.layout.pools}
        datasets = tuple(
            DatasetContext(
                made.name,
                made.dataset.name,
                made.dataset.roles,
                made.mountpoint,
                by_pool[made.dataset.pool],
                made.dataset.filesystem or filesystem[made.dataset.pool],
                made.own_filesystem,
                made.node,
            )
            for made in self.made
            if made.dataset.roles
        )
        return tuple(pools), datasets

    def mount(self) -> MountContext | None:
        """Return None: they are the kernel's."""
        return None

    def environment(self) -> dict[str, Any]:
        """Return what belongs into the result's environment: OpenZFS, tunables, pools, devices."""
        return {
            "openzfs": environment()["openzfs"],
            "tunables": {name: tunables.read(name) for name in self.spec.layout.tunables},
            "pools": {
                pool: {"guid": self._guids.get(pool, ""), "devices": [[d.class_, d.path] for d in found]}
                for pool, found in self._devices.items()
            },
            **(
                {"parents": {name: list(self.zfs.upkeep(name).vdevs[1:]) for name in self._live_names()}}
                if self.spec.place.kind == "parent"
                else {}
            ),
        }


def _between(datasets: list[Dataset]) -> list[str]:
    """Return the datasets that ZFS needs above those of the layout and that the layout does not name."""
    named = {d.rest for d in datasets}
    found: dict[str, None] = {}
    for dataset in datasets:
        parts = dataset.rest.split("/")
        for i in range(1, len(parts)):
            above = "/".join(parts[:i])
            if above not in named:
                found[above] = None
    return sorted(found, key=lambda name: name.count("/"))


def _uneven(pool: Pool) -> bool:
    """Whether ``zpool create`` would ask for -f: data and special vdevs of different kinds."""
    shapes = {
        (v.kind, v.disks if v.kind != "stripe" else 1) for v in pool.vdevs if v.class_ in ("data", "special")
    }
    return len(shapes) > 1
