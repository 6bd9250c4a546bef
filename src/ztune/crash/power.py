"""What is cut: the layout's directories, which come and go with the power of their disks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.mounted import Mount, MountOptions, last_words
from ztune.places.engine_spec import mount_spec
from ztune.study import Layout, Study

CACHES = ("volatile", "lazy", "none")
"""How the disks keep what they acknowledged, in the order of the alternation.

``volatile``: the disk's cache, as the profile has it, is lost. ``lazy``: so is everything that no flush asked
for. ``none``: nothing; only the system's memory is, as when the system crashes and the power stays.
"""


class Power(Protocol):
    """Directories whose power can be cut."""

    @property
    def places(self) -> Mapping[str, Path]:
        """Role → directory, the same after each cut."""
        ...

    def up(self, cache: str) -> int:
        """Mount them; return how many records of the intent log were replayed. Raises ZtuneError."""
        ...

    @property
    def version(self) -> str:
        """Return what does it, such as ``OpenZFS 2.3.2``; known from the first ``up`` on."""
        ...

    def watch(self) -> None:
        """Raise ZtuneError if they went away by themselves."""
        ...

    def cut(self) -> None:
        """Cut the power; nothing is waited for."""
        ...

    def clear(self) -> None:
        """Take away what a cut has left; does nothing where nothing is."""
        ...

    def down(self) -> None:
        """Unmount in order: all is on the disks. Raises ZtuneError."""
        ...


class Mounted:
    """A layout in an ``ztune-mount``, whose end by SIGKILL is a power cut."""

    def __init__(
        self,
        program: Path,
        study: Study,
        layout: Layout,
        roles: tuple[str, ...],
        folder: Path,
        *,
        seed: int,
        disks: str,
    ) -> None:
        """Note what is to be mounted; nothing is made.

        Args:
            program: ``ztune-mount``. study: for the profiles. layout: what is mounted. roles: those that the
            database needs. folder: where store and mount points are made. seed: of the engine.
            disks: ``profile`` or ``instant``.

        Raises:
            InputError: a role has no dataset, or one that is not ZFS.
        """
        self._program = program
        self.store = folder / "store"
        self._disks = disks
        self._datasets: dict[str, Path] = {}
        self.places: dict[str, Path] = {}
        for role in roles:
            dataset = layout.dataset_of(role)
            if dataset is None:
                raise InputError(
                    f'role {role} has no dataset in layout "{layout.name}" of study "{study.name}"; '
                    f"add it to the roles of a dataset"
                )
            if dataset.volume is not None or layout.pool(dataset.pool).filesystem != "zfs":
                raise InputError(
                    f'layout "{layout.name}" of study "{study.name}": {dataset.name} is not a ZFS file '
                    f"system, and only those can be mounted for a crash test"
                )
            place = folder / "mnt" / dataset.name.replace("/", "-")
            self._datasets[dataset.name] = place
            self.places[role] = place
        self._spec: dict[str, Any] = mount_spec(study, layout, seed)
        self._mount: Mount | None = None
        self.version = ""

    def up(self, cache: str) -> int:
        """Mount; return how many records of the intent log were replayed."""
        for place in self._datasets.values():
            for folder in (place.parent, place):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    folder.chmod(0o711)  # whatever the umask: a database's own user passes here
        self._mount = Mount.start(
            self._program,
            self._spec,
            self.store,
            self._datasets,
            MountOptions(disks=self._disks, cache=cache),
            die_with_caller=True,
        )
        self.version = f"OpenZFS {self._mount.ready['openzfs']}"
        return int(self._mount.ready["replayed"])

    def watch(self) -> None:
        """Raise ZtuneError if the program died by itself."""
        if self._mount is None:
            return
        dead = not self._mount.alive()
        for place in self._datasets.values():
            # One that dies is alive until its last thread has ended, but answers no more.
            try:
                place.stat()
            except OSError:
                dead = True
        if dead:
            said = last_words(self.store)
            raise ZtuneError(f"{self.store}: ztune-mount died by itself{f': {said}' if said else ''}")

    def cut(self) -> None:
        """Kill the program at once."""
        if self._mount is not None:
            self._mount.cut()

    def clear(self) -> None:
        """Wait until it is gone, and unmount what it left."""
        if self._mount is not None:
            mount, self._mount = self._mount, None
            mount.kill()

    def down(self) -> None:
        """Export the pools."""
        if self._mount is not None:
            self._mount.stop()
            self._mount = None
