"""A trial's pools in user space: one ``ztune-mount`` on a store of the trial's own, behind FUSE."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ztune.errors import InputError, MissingError
from ztune.onhost.events import Events
from ztune.onhost.fields import to_json
from ztune.onhost.host import mounted, own_directory
from ztune.onhost.host.mounted import Mount, MountOptions
from ztune.onhost.host.own_directory import NotOursError
from ztune.onhost.host.process import Identity, signal_name
from ztune.onhost.host.zfs import Upkeep
from ztune.onhost.jobs import registry
from ztune.onhost.layout import CLASSES, Pool
from ztune.onhost.probes.context import DatasetContext, DeviceContext, MountContext, PoolContext
from ztune.onhost.trial import saved
from ztune.onhost.trial.journal import Journal
from ztune.onhost.trial.mount_store import MountStore
from ztune.onhost.trial.pools import Filled, Made, Say
from ztune.onhost.trial.spec import Kept, Mounting, Spec
from ztune.onhost.trial.watching import LossWatch

STORE, MOUNTS = "store", "mounts"
_READY_S = 600.0
"""A pool on slow disks is made, or imported with its log replayed, within this."""
_STOP_S = 3600.0
"""The disks' caches, and all dirty data, are written on the way out."""
_PROBE_S, _DYING_S = 2.0, 60.0


@dataclass(slots=True)
class MountedPools:
    """``ztune.onhost.trial.pools.Pools`` by ``ztune-mount``, as the user that we are."""

    spec: Spec
    events: Events
    made: list[Made] = field(default_factory=list)
    loaded: bool = False
    journal: Journal = field(init=False)
    _store: MountStore | None = None
    _mount: Mount | None = None
    _watch: LossWatch | None = None
    _gone: str = ""
    _load: dict[str, Any] = field(default_factory=dict)

    @property
    def _mounting(self) -> Mounting:
        mounting = self.spec.place.mounting
        assert mounting is not None
        return mounting

    def check(self) -> None:
        """Raise InputError, MissingError if the layout can't be had here; nothing is made."""
        mounting, layout = self._mounting, self.spec.layout
        if not os.access(mounting.program, os.X_OK):
            raise MissingError(f"{mounting.program}: can't be run; `make setup` builds ztune-mount")
        if not mounting.stores.is_dir():
            raise InputError(f"place.stores: {mounting.stores} is no directory; make it first")
        for pool in layout.pools:
            if pool.filesystem != "zfs":
                raise InputError(f'layout: pool "{pool.name}" is {pool.filesystem}; a mount is OpenZFS alone')
        for dataset in layout.datasets:
            if dataset.volume is not None:
                raise InputError(f'layout: "{dataset.name}" is a volume; a mount has file systems only')

    def make(self, journal: Journal, say: Say, load: Mapping[str, Any]) -> None:
        """Make the pools and datasets of the layout. ``load``: what of the job decides what it loads."""
        self.journal = journal
        self._load = dict(load)
        mounting = self._mounting
        for note in mounting.notes:
            self.events.warning(note)
        path = own_directory.real(mounting.stores) / self.spec.trial
        token = secrets.token_hex(16)
        journal.make(STORE, STORE, path=str(path), token=token)
        self._store = MountStore.create(path, token)
        journal.made(STORE)
        kept = self._kept
        self.loaded = kept is not None and (kept / saved.MARKER).is_file()
        if kept is not None and self.loaded:
            say("copy the loaded pools", 0.1)
            self._begin_with(kept)
        root = self.spec.directory / "mnt"
        root.mkdir()
        root.chmod(0o711)
        points: dict[str, Path] = {}
        for dataset in self.spec.layout.datasets:
            # As with the kernel's: one directory below the pool's, whatever the dataset's depth.
            point = root / dataset.pool / (dataset.rest.replace("/", ".") or "_pool")
            for folder in (point.parent, point):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o711)  # whatever the umask: a database's own user passes here
            points[dataset.name] = point
        say("pools", 0.2)
        journal.make(
            MOUNTS,
            MOUNTS,
            store=str(path),
            token=token,
            places={name: str(point) for name, point in points.items()},
            uses=[STORE],
        )
        if kept is not None and not self.loaded:
            self._start(points, self._to_keep.engine, replace(mounting.options, disks="instant"))
        else:
            self._start(points, loaded=self.loaded)
        journal.made(MOUNTS)
        for dataset in self.spec.layout.datasets:
            self.made.append(Made(dataset, dataset.name, points[dataset.name], dataset.pool))

    def _start(
        self,
        points: Mapping[str, Path],
        engine: Mapping[str, Any] | None = None,
        options: MountOptions | None = None,
        *,
        loaded: bool = False,
    ) -> None:
        assert self._store is not None
        mounting = self._mounting
        self._mount = Mount.start(
            mounting.program,
            mounting.engine if engine is None else engine,
            self._store.disks,
            points,
            options or mounting.options,
            _READY_S * self.spec.patience,
            # Whatever ends this program ends the mount; what it leaves is in the journal.
            die_with_caller=True,
            loaded=loaded,
        )
        self.events.log(f"mounted by process {self._mount.pid}")
        alive = Identity.of(self._mount.pid)
        self._watch = LossWatch(lambda: alive is None or not alive.alive())

    # -- pools that are kept as loading left them ------------------------------------------------------

    @property
    def _to_keep(self) -> Kept:
        kept = self._mounting.kept
        assert kept is not None
        return kept

    @property
    def _kept(self) -> Path | None:
        """Return the folder of what this trial's load leaves, there or not; None where nothing is kept."""
        if self._mounting.kept is None:
            return None
        spec, kept = self.spec, self._to_keep
        parts = [
            *(saved.VERSION, registry.shown(spec.job), self._load),
            *(dict(spec.database), str(self._mounting.program), _without_profiles(kept.engine)),
            [[dataset.name, sorted(dataset.roles)] for dataset in spec.layout.datasets],
        ]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]
        return kept.folder / f"ztune-loaded-{key}"

    def _begin_with(self, kept: Path) -> None:
        assert self._store is not None
        try:
            own_directory.check(own_directory.real(kept))
            self._store.begin_with(kept)
        except NotOursError as error:
            raise InputError(f"place.kept.folder: {error}") from None
        except OSError as error:
            raise InputError(f"{kept}: the loaded pools can't be copied: {error.strerror}") from None

    def keep(self, say: Say) -> None:
        """Keep the pools for later trials, and go on with them as those do."""
        kept = self._kept
        if kept is None or self.loaded:
            return
        assert self._store is not None
        say("keep the loaded pools", 0.95)
        self._stop()
        partial = kept.with_name(f"{kept.name}.partial-{self.spec.trial}")
        try:
            saved.begin(
                self.journal,
                partial,
                job=registry.shown(self.spec.job),
                params=self._load,
                sizes={},
                environment="",
            )
            self._store.keep(partial)
            partial.rename(kept)
        except OSError as error:
            raise InputError(f"{kept}: the loaded pools can't be kept: {error.strerror}") from None
        self.journal.append("removed", id="saved")
        self._store.begin_anew()
        self._begin_with(kept)
        self._start({one.name: one.mountpoint for one in self.made}, loaded=True)
        self.journal.note(MOUNTS, mounted=True)

    def sync(self) -> None:
        """Return when all that was written is on the disks."""
        assert self._mount is not None
        self._mount.sync()

    def end_group(self) -> None:
        """Write the open transaction group of each pool."""
        self.sync()

    def upkeep(self) -> dict[str, Upkeep]:
        """Return nothing: nobody else works on a mount's pools."""
        return {}

    def as_made(self) -> dict[str, dict[str, str]]:
        """Return nothing, for the same reason."""
        return {}

    def filled(self) -> dict[str, Filled]:
        """Return how full each pool is, by the layout's name for it."""
        assert self._mount is not None
        stats = mounted.ask(self._mount.store, "stats", _STOP_S * self.spec.patience)
        return {
            str(pool["name"]): Filled(pool["size"], pool["allocated"], pool.get("fragmentation"))
            for pool in stats["pools"]
        }

    def snapshot(self, name: str) -> None:
        """Take a snapshot of each dataset but those that fill the pools."""
        assert self._mount is not None
        mounted.ask(self._mount.store, f"snapshot {name}", _STOP_S * self.spec.patience)

    def clone(self, snapshot: str, number: int) -> None:
        """Make clones of a snapshot that ``snapshot`` took, which nobody mounts."""
        assert self._mount is not None
        mounted.ask(self._mount.store, f"clone {snapshot} {number}", _STOP_S * self.spec.patience)

    def cool(self) -> None:
        """Empty the caches of what the pools hold. Nothing in them is in use."""
        self._stop()
        self._start({made.name: made.mountpoint for made in self.made})
        self.journal.note(MOUNTS, mounted=True)

    def _stop(self) -> None:
        assert self._mount is not None and self._watch is not None
        self.journal.note(MOUNTS, mounted=False)
        self._watch.end()
        self._mount.stop(_STOP_S * self.spec.patience)
        # It ended as it was asked to: should the next not start, that one's words are what counts.
        self._mount = self._watch = None

    def fills(self) -> list[Path]:
        """Return where the disks' contents are, which are sparse files."""
        return [self._mounting.stores]

    def gone(self) -> str:
        """Return why the pools are there no more, as a sentence; empty while they are."""
        if self._watch is not None and not self._gone and self._mount is not None:
            # Its files are gone before it is: the kernel first gives back its memory.
            dying = any(mounted.dead(point, _PROBE_S) for point in self._mount.places.values())
            if not self._mount.wait(_DYING_S if dying else 0.0):
                return ""
            how = _how(self._mount.code)
            said = mounted.last_words(self._mount.store)
            self._gone = f"ztune-mount, which holds the pools, {how}{f': {said}' if said else ''}"
        return self._gone

    def release(self) -> None:
        """The trial is over: nobody need be told any more when the pools go."""
        if self._watch is not None:
            self._watch.end()

    # -- what is known of them -------------------------------------------------------------------------

    def contexts(self) -> tuple[tuple[PoolContext, ...], tuple[DatasetContext, ...]]:
        """Return what probes may know of them."""
        pools = tuple(
            PoolContext(pool.name, pool.name, pool.filesystem, "", self._devices(pool), True)
            for pool in self.spec.layout.pools
        )
        datasets = tuple(
            DatasetContext(
                made.name, made.dataset.name, made.dataset.roles, made.mountpoint, made.pool, "zfs", False, ""
            )
            for made in self.made
            if made.dataset.roles
        )
        return pools, datasets

    def _devices(self, pool: Pool) -> tuple[DeviceContext, ...]:
        assert self._store is not None
        found = []
        for class_ in CLASSES:
            for i, vdev in enumerate(pool.of_class(class_)):
                for j in range(vdev.disks):
                    file = str(self._store.disks / f"disk-{pool.name}-{class_}-{i}-{j}.img")
                    found.append(DeviceContext(class_, i, file, file))
        return tuple(found)

    def mount(self) -> MountContext | None:
        """Return the mount, for probes."""
        assert self._mount is not None
        store, patience = self._mount.store, _STOP_S * self.spec.patience
        # It answers one at a time: during a sync of slow disks the answer takes as long as that.
        return MountContext(self._mount.pid, lambda: mounted.ask(store, "stats", patience))

    def environment(self) -> dict[str, Any]:
        """Return what belongs into the result's environment: OpenZFS, tunables, pools, devices."""
        assert self._mount is not None
        mounting = self._mounting
        return {
            "openzfs": {"library": str(self._mount.ready.get("openzfs", ""))},
            "mount": {
                **to_json(mounting.options),
                "profiles": mounting.engine.get("profiles", {}),
            },
            "tunables": dict(mounting.engine.get("tunables", {})),
            "pools": {
                pool.name: {"guid": "", "devices": [[d.class_, d.path] for d in self._devices(pool)]}
                for pool in self.spec.layout.pools
            },
        }


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended by itself with exit code {code}"
    return f"was killed by {signal_name(-code)}"


def _without_profiles(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a load without how fast its disks are: it does not wait for them."""
    pools = [
        {**pool, "vdevs": [{**v, "disks": [d["size"] for d in v["disks"]]} for v in pool["vdevs"]]}
        for pool in engine["pools"]
    ]
    return {**{key: value for key, value in engine.items() if key != "profiles"}, "pools": pools}
