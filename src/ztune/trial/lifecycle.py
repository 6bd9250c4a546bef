"""The life of a trial: prepare → load → settle → measure → collect → destroy.

Whatever happens on the way — a fault, a lost reader, a signal — the trial ends with ``destroy``, which
removes through the door what the journal says was made. A trial that was killed leaves its journal, and the
next trial of its run, or ``clean``, does the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.trial import devices, filesystems, saved, since, tunables
from ztune.trial.context import Context, DatasetContext, DeviceContext, PoolContext
from ztune.trial.door import RUN, STATE, TRIAL, Door, token
from ztune.trial.events import Events
from ztune.trial.hello import environment
from ztune.trial.jobs.base import Job, WorkloadResult
from ztune.trial.jobs.interrupt import uninterrupted
from ztune.trial.jobs.places import room_for
from ztune.trial.jobs.workdir import WorkDir
from ztune.trial.journal import NAME as JOURNAL
from ztune.trial.journal import Journal, sync_directory
from ztune.trial.lock import RunLock
from ztune.trial.spec import CLASSES, Dataset, Pool, Spec
from ztune.trial.zfs import Commands, Zfs, import_places, last_words, module_version, parse_version
from ztune.units import format_size

RESULT_FORMAT, RESULT_VERSION = "ztune-result", 1


class Window(Protocol):
    """The measure window, from ``begin``."""

    def close(self) -> None:
        """Take the last reading, and nothing else."""
        ...

    def end(self) -> dict[str, Any]:
        """Return the result's "measure", once the window is closed."""
        ...


class Probe(Protocol):
    """The running probes, from ``start``."""

    def freeze(self) -> None:
        """Take the last readings, and nothing else."""
        ...

    def stop(self) -> dict[str, Any]:
        """End the probes and return what each found, by name."""
        ...

    def abandon(self) -> None:
        """End the probes, for no result."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a trial is made of besides its core, so that tests may put others in their place."""

    job: Callable[[str], type[Job]]
    """A job's class by name."""
    start_probes: Callable[[Context], Probe]
    begin_measure: Callable[[Context], Window]

    @classmethod
    def standard(cls) -> Parts:
        """Return ztune's own jobs, probes and measure."""
        import ztune.trial.probes as probes
        import ztune.trial.probes.measure as measure
        from ztune.trial.jobs import registry

        return cls(registry.get, probes.start, measure.begin)


def teardown(journal: Journal, door: Door, progress: Callable[[float, str], None]) -> list[str]:
    """Remove all that the journal says was made, the latest first; return a sentence for each thing left.

    A thing that something left still uses, such as the files of a pool, is left too.
    """
    problems: list[str] = []
    things = list(reversed(journal.things.values()))
    for i, thing in enumerate(things):
        progress(i / len(things), thing.id)
        user = next((t for t in journal.things.values() if thing.id in t.facts.get("uses", ())), None)
        if user is not None:
            problems.append(f"{thing.id}: left alone, as {user.id} still uses it")
            journal.append("refused", id=thing.id, text=problems[-1])
            continue
        journal.append("remove", id=thing.id)
        try:
            door.remove(thing)
        except Exception as error:
            # Whatever it was, the other things can still go.
            known = isinstance(error, ZtuneError | OSError)
            problems.append(str(error) if known else f"{thing.id}: {type(error).__name__}: {error}")
            journal.append("refused", id=thing.id, text=problems[-1])
        else:
            journal.append("removed", id=thing.id)
    if not journal.things:
        journal.append("close")
        try:
            door.remove_directory()
        except (ZtuneError, OSError) as error:
            problems.append(str(error))
    return problems


def undo(
    directory: Path, state: Path, zfs: Zfs, *, patience: float, progress: Callable[[float, str], None]
) -> list[str]:
    """Remove what an earlier, dead trial left in STATE/RUN/TRIAL; return a sentence for each thing left.

    Its run's lock must be held. Raises ZtuneError when the journal is damaged.
    """
    path = directory / JOURNAL
    run, trial = directory.parent.name, directory.name
    door = Door(zfs, run=run, trial=trial, state=state, directory=directory, patience=patience)
    if not path.exists():
        # Killed between the directory and the journal: nothing else was begun.
        if any(directory.iterdir()):
            return [f"{directory}: left alone: it holds no journal of a trial"]
        directory.rmdir()
        return []
    journal = Journal.open(path)
    try:
        if journal.empty:
            door.remove_directory()
            return []
        if journal.token != token(run, trial, state) or (journal.run, journal.trial) != (run, trial):
            return [f"{directory}: left alone: its journal is another trial's, or was moved here"]
        return teardown(journal, door, progress)
    finally:
        journal.close()


def dead_trials(state: Path, run: str) -> list[Path]:
    """Return the directories of trials in STATE/RUN, oldest name first."""
    with contextlib.suppress(OSError):
        return sorted(p for p in (state / run).iterdir() if p.is_dir() and not p.is_symlink())
    return []


def pool_name(run: str, layout_pool: str) -> str:
    """Return the name of a trial's pool: "zt", the run's id, the layout's name for it."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in layout_pool)
    return f"zt{run.removeprefix('r-')[:24].lower()}-{plain}"


@dataclass(slots=True)
class _Made:
    """A dataset of the layout as it was made here."""

    dataset: Dataset
    name: str
    mountpoint: Path
    pool: str
    node: str = ""

    @property
    def own_filesystem(self) -> bool:
        """Whether ext4 or xfs is mounted for it alone: it is a volume."""
        return self.dataset.volume is not None


@dataclass(slots=True)
class Trial:
    """One trial. ``run`` does it all."""

    spec: Spec
    events: Events
    parts: Parts
    lock: RunLock
    commands: Commands = field(init=False)
    zfs: Zfs = field(init=False)
    journal: Journal = field(init=False)
    door: Door = field(init=False)
    version: tuple[int, ...] = field(init=False)
    seconds: dict[str, float] = field(default_factory=dict)
    step: str = "prepare"
    job: Job | None = None
    work: WorkDir | None = None
    roles: dict[str, Path] = field(default_factory=dict)
    _made: list[_Made] = field(default_factory=list)
    _devices: dict[str, list[DeviceContext]] = field(default_factory=dict)
    _guids: dict[str, str] = field(default_factory=dict)
    _fs_mounts: dict[str, tuple[str, str, Path]] = field(default_factory=dict)
    """Thing id → file system, node, mount point of each ext4 and xfs."""
    _environment: dict[str, Any] = field(default_factory=dict)
    _probe: Probe | None = None
    _begun: bool = False

    def __post_init__(self) -> None:
        spec = self.spec
        self.commands = Commands(self.events, patience=spec.patience, keep_fds=[self.lock.fd])
        self.zfs = Zfs(self.commands)
        self.version = parse_version(module_version())
        self.door = Door(
            self.zfs,
            run=spec.run,
            trial=spec.trial,
            state=spec.state,
            directory=spec.directory,
            patience=spec.patience,
        )

    # -- the whole -------------------------------------------------------------------------------------

    def run(self) -> str:
        """Do the trial and return "ok", "failed" or "stopped"; the events say the rest.

        What was made is destroyed in every case, except what the door refuses: then the status is "failed".

        Raises:
            InputError, MissingError: found before anything was made.
        """
        self._check()
        status = "failed"
        result: dict[str, Any] | None = None
        try:
            try:
                with uninterrupted():
                    self._begin()
                result = self._work()
                status = "ok"
            except KeyboardInterrupt:
                self.events.error("stopped before its end, as was asked for", self.step)
                status = "stopped"
            except Exception as error:
                self.events.error(self._sentence(error), self.step)
        finally:
            # A second Ctrl-C must not stop the clean-up half-way.
            with uninterrupted():
                if result is not None:
                    self.events.send("result", result=result)
                if self._begun and not self._destroy():
                    status = "failed"
        return status

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, ZtuneError):
            return str(error)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            return f"{self.step}: {where}{error.strerror or error}"
        import traceback

        self.events.log("".join(traceback.format_exception(error))[-4000:])
        return f"{self.step}: a fault in ztune or a job of another's: {type(error).__name__}: {error}"

    def _work(self) -> dict[str, Any]:
        with self._in("prepare"):
            self._prepare()
        with self._in("load"):
            self._load()
        with self._in("settle"):
            self._settle()
        with self._in("measure"):
            outcome, measured = self._measure()
        with self._in("collect"):
            return self._collect(outcome, measured)

    @contextmanager
    def _in(self, step: str) -> Iterator[None]:
        self.step = step
        self.journal.step(step, "begin")
        self.events.step(step, "begin")
        began = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - began, 3)
        self.journal.step(step, "end")
        self.events.step(step, "end")

    def _progress(self, text: str, share: float) -> None:
        self.events.step(self.step, "progress", share, text)

    # -- before anything is made -----------------------------------------------------------------------

    def _check(self) -> None:
        spec, layout = self.spec, self.spec.layout
        if os.geteuid() != 0:
            raise MissingError("a trial makes pools and mounts; run it as root")
        if layout.uses_zfs and not self.version:
            raise MissingError(
                "the ZFS module is not loaded on this host; install OpenZFS, then: modprobe zfs"
            )
        kind = self.parts.job(spec.job)
        self.job = kind(spec.params, spec.database, patience=spec.patience, dilation=spec.dilation)
        needed = set(self.job.roles())
        have = {role for d in layout.datasets for role in d.roles}
        if needed - have:
            raise InputError(
                f"job {spec.job} uses the role {', '.join(sorted(needed - have))}, which no dataset of the "
                "layout has"
            )
        self._check_versions()
        self._environment = {**environment(ask_tools=False), "job": self.job.check()}

    def _check_versions(self) -> None:
        text = tunables.read("zfs_max_recordsize")
        largest = self.spec.layout.tunables.get("zfs_max_recordsize", int(text) if text else None)
        for dataset in self.spec.layout.datasets:
            for name, value in self._properties(dataset).items():
                since.check_property(name, value, self.version, largest)
        for pool in self.spec.layout.pools:
            for vdev in pool.vdevs:
                version = since.VDEV_CLASSES.get(vdev.class_)
                if pool.filesystem == "zfs" and version and self.version < since.number(version):
                    raise InputError(f"a {vdev.class_} vdev needs OpenZFS {version} or later")

    def _begin(self) -> None:
        spec = self.spec
        for directory in dead_trials(spec.state, spec.run):
            self.events.log(f"an earlier trial of this run, {directory.name}, was cut; it is undone first")
            left = undo(
                directory, spec.state, self.zfs, patience=spec.patience, progress=lambda share, text: None
            )
            if left:
                raise ZtuneError(f"what an earlier trial of this run left can't be removed: {left[0]}")
        spec.directory.mkdir(mode=0o711)
        spec.directory.chmod(0o711)
        sync_directory(spec.directory.parent)
        self.journal = Journal.create(
            spec.directory / JOURNAL,
            run=spec.run,
            trial=spec.trial,
            token=self.door.token,
            about={"layout": spec.layout.name, "place": spec.place.kind, "job": spec.job},
        )
        self._begun = True

    # -- prepare ---------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        spec = self.spec
        plan = (
            tunables.plan(spec.layout.arc, spec.layout.tunables, self.version, spec.dilation)
            if spec.layout.uses_zfs
            else None
        )
        if spec.place.kind == "parent":
            self._check_parents()
        elif spec.layout.uses_zfs:
            self._check_names()
        if plan is not None:
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
                self._progress(f"pool {pool.name}", 0.2 + 0.6 * i / len(spec.layout.pools))
                if pool.filesystem == "zfs":
                    self._make_pool(pool, nodes[pool.name])
                else:
                    self._make_baseline(pool, nodes[pool.name]["data"][0][0])
        for made in self._made:
            for role in made.dataset.roles:
                path = made.mountpoint / role
                path.mkdir(mode=0o755)
                path.chmod(0o755)
                self.roles[role] = path
        assert self.job is not None
        self.work = WorkDir.create("trial", parent=spec.directory)
        self.job.prepare(self.work, {role: self.roles[role] for role in self.job.roles()})

    def _check_names(self) -> None:
        live = self.zfs.pools()
        for pool in self.spec.layout.pools:
            name = pool_name(self.spec.run, pool.name)
            if pool.filesystem == "zfs" and name in live:
                raise InputError(
                    f'pool name "{name}" is taken on this host, by a pool that this run did not leave; '
                    "export or rename that pool"
                )
        if live:
            self.events.warning(
                f"the trial shares the ARC with other pools that are imported on this host: "
                f"{', '.join(sorted(live))}"
            )

    def _make_key(self) -> None:
        # 32 bytes: the length of a raw key whatever the cipher, zfs-load-key(8).
        fd = os.open(self._key, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(os.urandom(32))

    @property
    def _key(self) -> Path:
        return self.spec.directory / "key"

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
                            f"disk:{disk.node}", "disk", **{**disk.facts(), **extra, "class": class_}
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
        base = base.resolve()
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
        self.journal.make("files", "files", dir=str(folder), names=listed)
        (base / spec.run).mkdir(exist_ok=True, mode=0o711)
        try:
            folder.mkdir(mode=0o711)
        except FileExistsError:
            # Not ours by this journal: leave it, and do not claim it later either.
            self.journal.append("removed", id="files")
            raise InputError(f"{folder} exists already; remove it or name another directory") from None
        for name, size in names.values():
            fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)
        sync_directory(folder)
        self.journal.made("files")
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
        rc, out, _err = self.commands.attempt(argv)
        node = out.strip() if rc == 0 else self.commands([a for a in argv if "direct" not in a]).strip()
        self.journal.made(id, device=node)
        return node

    def _properties(self, dataset: Dataset) -> dict[str, str]:
        """Return the properties to set: a volume takes fewer, and default ones that are off limits go."""
        values = dict(dataset.properties)
        if values.get("encryption", "off") == "off":
            values.pop("encryption", None)
        # ZFS knows no special_small_blocks without the allocation-classes feature, and 0 is what it is then.
        for name in ("special_small_blocks", "prefetch", "direct"):
            if values.get(name) in ("0", "all", "standard") and self.version < since.number(
                since.PROPERTIES[name]
            ):
                values.pop(name)
        if dataset.volume is None:
            values.pop("volblocksize", None)
        else:
            allowed = since.VOLUME_PROPERTIES | (
                {"special_small_blocks"} if self.version >= (2, 4) else set()
            )
            values = {name: value for name, value in values.items() if name in allowed}
        return values

    def _options(self, dataset: Dataset, letter: str, mountpoint: Path | None) -> list[str]:
        words: dict[str, str] = {RUN: self.spec.run, TRIAL: self.spec.trial, STATE: str(self.spec.state)}
        words["com.sun:auto-snapshot"] = "false"
        words |= self._properties(dataset)
        if "encryption" in words:
            words |= {"keyformat": "raw", "keylocation": f"file://{self._key}"}
        if mountpoint is not None and dataset.volume is None:
            words |= {"mountpoint": str(mountpoint), "canmount": "on"}
        return [part for name, value in words.items() for part in (letter, f"{name}={value}")]

    def _own_options(self, letter: str) -> list[str]:
        plain = Dataset("", (), {}, None, "zfs")
        return [*self._options(plain, letter, None), letter, "mountpoint=none", letter, "canmount=off"]

    def _make_pool(self, pool: Pool, nodes: dict[str, list[list[str]]]) -> None:
        spec = self.spec
        name = pool_name(spec.run, pool.name)
        root = spec.directory / "mnt"
        root.mkdir(mode=0o711, exist_ok=True)
        here = [d for d in spec.layout.datasets if d.pool == pool.name]
        below = sorted((d for d in here if d.rest), key=lambda d: d.name.count("/"))
        top = next((d for d in here if not d.rest), None)
        if top is not None and top.volume is not None:
            raise InputError(f"layout: {top.name} is a pool's own dataset, which can't be a volume")
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
        self.commands(argv, timeout=300)
        guid = self.zfs.pools().get(name, "")
        self.journal.made(id, guid=guid)
        self._guids[pool.name] = guid
        for rest in between:
            self.commands(["zfs", "create", *self._own_options("-o"), f"{name}/{rest}"])
        if top is not None:
            self._made.append(_Made(top, name, Path(thing.facts["mountpoints"][name]), name))
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
        rc, _out, err = self.commands.attempt([*argv, full])
        if rc != 0:
            if "out of space" in err or "greater than available" in err:
                size = f"{format_size(dataset.volume)} " if dataset.volume else ""
                raise InputError(f"dataset {dataset.name}: {size}does not fit on its pool; take larger disks")
            raise ZtuneError(f"dataset {dataset.name}: {last_words(err)}")

    def _finish_dataset(self, dataset: Dataset, full: str, point: Path, pool: str, owner: str) -> None:
        made = _Made(dataset, full, point, pool)
        if dataset.volume is not None:
            made.node = devices.volume_node(full, 30 * self.spec.patience)
            own, label = filesystems.new_identity()
            filesystems.check_size(dataset.filesystem, dataset.volume, f"volume {dataset.name}")
            filesystems.make(self.commands, dataset.filesystem, made.node, own, label)
            point.mkdir(mode=0o711, parents=True)
            self._mount(dataset.filesystem, made.node, point, owner)
        self._made.append(made)

    def _mount(self, type: str, node: str, point: Path, user_of: str) -> None:
        id = f"mount:{point}"
        self.journal.make(id, "mount", point=str(point), node=node, type=type, uses=[user_of])
        filesystems.mount(self.commands, type, node, point, self.spec.dilation)
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
        filesystems.make(self.commands, pool.filesystem, node, str(own), str(label))
        root = self.spec.directory / "mnt"
        point = root / name
        root.mkdir(mode=0o711, exist_ok=True)
        point.mkdir(mode=0o711)
        self._mount(pool.filesystem, node, point, owner.id)
        for dataset in self.spec.layout.datasets:
            if dataset.pool == pool.name:
                folder = point / (dataset.rest.replace("/", ".") or "_pool")
                folder.mkdir(mode=0o755)
                self._made.append(_Made(dataset, f"{name}/{dataset.rest}".rstrip("/"), folder, name, node))

    def _check_parents(self) -> None:
        parents = sorted(set(self.spec.place.parents.values()))
        wanted = (
            "type",
            "available",
            "mountpoint",
            "encryption",
            "atime",
            "xattr",
            "dnodesize",
            "acltype",
            "quota",
        )
        found = self.zfs.values(parents, wanted)
        for parent in parents:
            if parent not in found:
                raise InputError(
                    f'parent "{parent}" does not exist on this host; make it: zfs create {parent}'
                )
            values = found[parent]
            if values["type"].value != "filesystem":
                raise InputError(f'parent "{parent}" is a {values["type"].value}; name a file system dataset')
            room = int(values["available"].value)
            if room < 64 << 20:
                raise InputError(f'parent "{parent}" is full: {format_size(room // 1024 * 1024)} is left')
            for name in ("atime", "xattr", "dnodesize", "acltype"):
                if values[name].source not in ("default", "-"):
                    self.events.warning(
                        f"the trial's datasets inherit {name}={values[name].value} from {parent} where the "
                        "layout does not set it"
                    )

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
            self.commands(["zfs", "create", *self._own_options("-o"), root])
            for rest in between:
                self.commands(["zfs", "create", *self._own_options("-o"), f"{root}/{rest}"])
            for d in here:
                self._create(d, full[d.name], Path(points[full[d.name]]))
            guids = {name: v["guid"].value for name, v in self.zfs.values(names, ("guid",)).items()}
            self.journal.made(id, guids=guids)
            for d in here:
                self._finish_dataset(d, full[d.name], Path(points[full[d.name]]), root.partition("/")[0], id)

    # -- load ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        job, spec = self.job, self.spec
        assert job is not None
        places = {role: self.roles[role] for role in job.roles()}
        with room_for(self.roles):
            if spec.start == "copy":
                assert spec.start_path is not None
                self._copy_from(spec.start_path, places)
                job.adopt(places)
            else:
                self._watch_room(self._needs(job), places)
                job.load(lambda text, share: self._progress(text, share * 0.9))
                self._note_pids()
            self._stop_job()
            if spec.start == "keep":
                assert spec.start_path is not None
                self._save_to(spec.start_path, places)

    @staticmethod
    def _needs(job: Job) -> dict[str, int]:
        """Return the bytes that each role will take, where the job can tell; most can't."""
        needs = getattr(job, "expected_bytes", None)
        return dict(needs()) if callable(needs) else {}

    def _watch_room(self, needs: dict[str, int], places: dict[str, Path]) -> None:
        """Raise InputError when the data of the roles of one file system will not fit on it."""
        rooms: dict[int, tuple[int, int, list[str]]] = {}
        for role, size in needs.items():
            if role in places:
                found = places[role].stat().st_dev
                free = shutil.disk_usage(places[role]).free
                _, total, roles = rooms.get(found, (0, 0, []))
                rooms[found] = (free, total + size, [*roles, role])
        for free, total, roles in rooms.values():
            if total > free:
                raise InputError(
                    f"role {' and '.join(sorted(roles))} is larger than the disk: {format_size(total)} of "
                    f"data, {format_size(free // 1024 * 1024)} free; take a larger disk or less data"
                )

    def _copy_from(self, source: Path, places: dict[str, Path]) -> None:
        job = self.job
        assert job is not None
        try:
            about = json.loads((source / saved.MARKER).read_text(encoding="utf-8"))
            sizes = {role: int(about["bytes"][role]) for role in places}
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"start.from: {source} is no saved state with the roles {', '.join(sorted(places))}; save "
                'one with start "keep"'
            ) from None
        if about.get("version") != saved.VERSION:
            raise InputError(f"start.from: {source} was saved by another version of ztune; save it anew")
        if about.get("job") != self.spec.job or about.get("params") != dict(self.spec.params):
            raise InputError(f"start.from: {source} was saved by another job or with other parameters")
        self._watch_room(sizes, places)
        for role, place in places.items():
            # Real writes, not clones of blocks: a clone would have the source's layout.
            self._copy(saved.unpack(source, role, place), place, f"copy {role}", sizes[role])

    def _copy(self, command: list[str], target: Path, text: str, size: int) -> None:
        """Run a command that writes about ``size`` bytes into the directory ``target``, with progress."""
        stop = threading.Event()
        before = shutil.disk_usage(target).used

        def watch() -> None:
            while not stop.wait(1.0):
                with contextlib.suppress(OSError):
                    self._progress(text, 0.9 * (shutil.disk_usage(target).used - before) / max(1, size))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            self.commands(command, timeout=6 * 3600)
        finally:
            stop.set()
            thread.join()

    def _save_to(self, target: Path, places: dict[str, Path]) -> None:
        """Copy the loaded state to ``target``, whole or not at all."""
        if target.exists():
            raise InputError(f"start.save: {target} exists already; name a new directory")
        if not target.parent.is_dir():
            raise InputError(f"start.save: {target.parent} is no directory")
        sizes = {role: _tree_bytes(path) for role, path in places.items()}
        free = shutil.disk_usage(target.parent).free
        if sum(sizes.values()) > free:
            raise InputError(
                f"start.save: the loaded state has {format_size(sum(sizes.values()) // 1024 * 1024)}, "
                f"{target.parent} has {format_size(free // 1024 * 1024)} free"
            )
        partial = target.parent / f"{target.name}.partial-{self.spec.trial}"
        self.journal.make("saved", "saved", path=str(partial))
        partial.mkdir(mode=0o711)
        saved.mark(
            partial,
            token=self.door.token,
            job=self.spec.job,
            params=self.spec.params,
            sizes=sizes,
            environment=self._environment.get("job", ""),
        )
        for role, place in places.items():
            self._copy(saved.pack(place, partial, role), partial, f"save {role}", sizes[role])
        partial.rename(target)
        self.journal.append("removed", id="saved")

    def _note_pids(self) -> None:
        """Journal the job's processes, so that a dead trial's can be ended."""
        from ztune.trial.jobs.process import Identity

        assert self.job is not None
        found = [one for pid in self.job.pids() if (one := Identity.of(pid)) is not None]
        if found:
            self.journal.make("processes", "processes", pids=[[one.pid, one.ticks] for one in found])

    def _stop_job(self) -> None:
        assert self.job is not None
        self.job.stop()
        if "processes" in self.journal.things:
            self.journal.append("removed", id="processes")

    # -- settle ----------------------------------------------------------------------------------------

    def _sync(self) -> None:
        names = [pool_name(self.spec.run, p.name) for p in self.spec.layout.pools if p.filesystem == "zfs"]
        if self.spec.place.kind == "parent":
            names = sorted({parent.partition("/")[0] for parent in self.spec.place.parents.values()})
        # A file system on a volume first, or the pool's sync would come before its writes.
        for _type, _node, point in self._fs_mounts.values():
            filesystems.sync(point)
        if names:
            self.commands(["zpool", "sync", *names], timeout=1800)

    def _settle(self) -> None:
        spec = self.spec
        self._progress("sync", 0.1)
        self._sync()
        if spec.settle == "cold":
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
                made = next((m for m in self._made if m.own_filesystem and m.node == node), None)
                if made is not None:
                    node = made.node = devices.volume_node(made.name, 30 * spec.patience)
                    self._fs_mounts[id] = (type, node, point)
                self.journal.note(id, mounted=True, node=node)
                filesystems.mount(self.commands, type, node, point, self.spec.dilation)
        assert self.job is not None
        self._progress("start", 0.6)
        with room_for(self.roles):
            self.job.start(lambda text, share: self._progress(text, 0.6 + 0.4 * share))
        self._note_pids()

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
            self.commands([*argv, self._guids[pool.name]], timeout=600)
            self.journal.note(id, imported=True)

    def _remount(self) -> None:
        self.events.warning(
            "on a parent dataset the ARC is not emptied before the measure: only unmounted and mounted"
        )
        for made in self._made:
            if not made.own_filesystem:
                self.door.unmount(made.mountpoint, made.name)
        for made in self._made:
            if not made.own_filesystem:
                self.commands(["zfs", "mount", made.name])

    # -- measure and collect ---------------------------------------------------------------------------

    def context(self) -> Context:
        """Return what probes may know."""
        spec = self.spec
        assert self.job is not None
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
                made.dataset.filesystem if made.own_filesystem else filesystem[made.dataset.pool],
                made.own_filesystem,
                made.node,
            )
            for made in self._made
        )
        return Context(
            run=spec.run,
            trial=spec.trial,
            seed=spec.seed,
            state=spec.directory,
            options=spec.probes,
            pools=tuple(pools),
            datasets=datasets,
            role_dirs=dict(self.roles),
            command=self.commands,
            pids=self.job.pids,
            page_sizes=self.job.page_sizes(),
            warn=self.events.warning,
            series=self.events.series,
            zfs_version=self.version,
            dilation=spec.dilation,
            patience=spec.patience,
        )

    def _measure(self) -> tuple[WorkloadResult, dict[str, Any]]:
        job = self.job
        assert job is not None
        context = self.context()
        # What start and warm-up left unwritten is no part of the job: the window has a sync at both ends.
        self._sync()
        self._probe = self.parts.start_probes(context)
        window = self.parts.begin_measure(context)
        with room_for(self.roles):
            outcome = job.run(self._progress)
        # The closing sync belongs to the job: what it wrote is only done when it is on the disks.
        self._sync()
        window.close()
        self._probe.freeze()
        measured = window.end()
        # As long as it would have taken on disks that are not slowed down.
        measured["seconds"] = round(measured["seconds"] / self.spec.dilation, 6)
        measured["operations"] = outcome.operations
        return outcome, measured

    def _collect(self, outcome: WorkloadResult, measured: dict[str, Any]) -> dict[str, Any]:
        assert self.job is not None and self._probe is not None
        probes = self._probe.stop()
        self._probe = None
        self._progress("verify", 0.5)
        with room_for(self.roles):
            outcome = self.job.verify(outcome)
        self._stop_job()
        self._environment["openzfs"] = environment()["openzfs"]
        return {
            "format": RESULT_FORMAT,
            "version": RESULT_VERSION,
            "run": self.spec.run,
            "trial": self.spec.trial,
            "environment": {
                **self._environment,
                "arc": self.spec.layout.arc,
                "tunables": {name: tunables.read(name) for name in self.spec.layout.tunables},
                "dilation": self.spec.dilation,
                "patience": self.spec.patience,
                "place": self.spec.place.kind,
                "start": self.spec.start,
                "settle": self.spec.settle,
                "seed": self.spec.seed,
                "pools": {
                    pool: {"guid": self._guids.get(pool, ""), "devices": [[d.class_, d.path] for d in found]}
                    for pool, found in self._devices.items()
                },
                "datasets": {made.dataset.name: made.name for made in self._made},
            },
            "commands": list(self.events.commands),
            "steps": dict(self.seconds),
            "job": {**outcome.to_json(), "info": self.job.info(outcome)},
            "measure": measured,
            "probes": probes,
            "warnings": list(self.events.warnings),
        }

    # -- destroy ---------------------------------------------------------------------------------------

    def _destroy(self) -> bool:
        """Remove everything that was made; True if nothing is left."""
        self.step = "destroy"
        began = time.monotonic()
        self.events.step("destroy", "begin")
        try:
            self.journal.step("destroy", "begin")
            if self._probe is not None:
                self._probe.abandon()
            if self.job is not None:
                try:
                    self.job.cleanup()
                    if self.work is not None and not self.work.keep:
                        self.work.remove()
                except (ZtuneError, OSError) as error:
                    self.events.warning(self._sentence(error))
            problems = teardown(self.journal, self.door, lambda share, text: self._progress(text, share))
        except (ZtuneError, OSError) as error:
            problems = [self._sentence(error)]
        finally:
            self.journal.close()
        for problem in problems:
            self.events.error(problem, "destroy")
        self.seconds["destroy"] = round(time.monotonic() - began, 3)
        self.events.step("destroy", "end", text=f"{len(problems)} things left" if problems else "")
        return not problems


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


def _tree_bytes(path: Path) -> int:
    """Return the bytes that the files below ``path`` take."""
    total = 0
    for folder, _folders, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total
