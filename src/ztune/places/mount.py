"""The mount target: trials on this host with OpenZFS in user space, on disks that follow their profiles."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztune import paths
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.fields import to_json
from ztune.onhost.host import mounted, own_directory, room
from ztune.onhost.host.mounted import MountOptions
from ztune.onhost.properties import MOUNTED
from ztune.onhost.trial.mount_store import DISKS
from ztune.places import bundle, loaded, mount_points, mount_program
from ztune.places.about import said_of_host
from ztune.places.channel import STATE, Channel, ProcessChannel, require_known
from ztune.places.engine_spec import changed_in_vain, mount_spec
from ztune.places.mount_program import MountProgram
from ztune.study import Layout, Study
from ztune.units import format_size

ROOM = room.RESERVE + (1 << 30)
"""Bytes that must be free for the disks' contents, which are sparse files: some, and what stays free."""
_TRIAL = 16  # letters of a trial's id
_SOCKET = 107  # the longest path of a socket, without its final zero: unix(7)


class MountPlace:
    """This host, without its kernel's ZFS: a trial runs as the user that ztune runs as."""

    name = "mount"

    def __init__(self, options: MountOptions | None = None, openzfs: str | None = None) -> None:
        """Name how the disks behave, and which OpenZFS it is to be; nothing is started."""
        self.options = options or MountOptions()
        self.openzfs = openzfs
        # A database's own user must be able to pass, which it can't below root's home.
        # Everybody else's own is closed to others anyway.
        self.state = STATE if os.geteuid() == 0 else str(paths.home() / "trials")
        self._program: MountProgram | None = None
        self._about: dict[str, Any] | None = None
        self._specs: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        """Make sure that the program is there and may mount. Raises MissingError, InputError."""
        self.options.arguments()
        self._program = mount_program.ask(mount_program.check(self.openzfs))
        longest = self._stores() / ("x" * _TRIAL) / DISKS / mounted.CONTROL
        if len(os.fsencode(longest)) > _SOCKET:
            raise InputError(
                f"{self._stores()}: this path is too long for the socket of a mount; "
                "set ZTUNE_HOME to a shorter one"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays up: each trial has a mount of its own."""

    @staticmethod
    def _stores() -> Path:
        return paths.below(paths.scratch(), "stores", own_directory.PRIVATE)

    def about_host(self) -> dict[str, Any]:
        """Return what the trial program says of this host, with the OpenZFS of the mount."""
        program = self._up()
        if self._about is None:
            said_here = said_of_host(self, "this host", bundle.build())
            self._about = {
                **said_here,
                "openzfs": {"library": program.openzfs},
                "mount": program.version,
            }
        return self._about

    def _up(self) -> MountProgram:
        if self._program is None:
            raise ZtuneError("the target mount is not up")
        return self._program

    def put(self, local: Path) -> str:
        """Nothing to copy."""
        return str(local)

    def open(self, argv: list[str]) -> Channel:
        """Start a command as the user that we are."""
        return ProcessChannel([sys.executable, *argv[1:]] if argv[0] == "python3" else argv)

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        """Return the spec's place."""
        return {
            "kind": "mount",
            "program": str(self._up().path.absolute()),
            "stores": str(self._stores()),
            "engine": self._specs[layout.hash],
            **to_json(self.options),
            "notes": mount_points.unheeded(layout),
        }

    @staticmethod
    def check_keeping(folder: Path, *, cold: bool) -> None:
        """Raise InputError where loaded pools can't be kept in ``folder``, or trials don't begin cold."""
        if not cold:
            raise InputError(
                "--saved on a mount copies pools, which begin with empty caches; add --caches cold"
            )
        if not folder.is_dir():
            raise InputError(f"--saved: {folder} is no directory; make it first")
        try:
            own_directory.check(own_directory.real(folder))
        except own_directory.NotOursError as error:
            raise InputError(f"--saved: {error}") from None

    def keeping(self, layout: Layout, folder: str) -> dict[str, Any]:
        """Return what a spec's place has beside ``place_spec`` for loaded pools to be kept in ``folder``.

        What decides how a load lies on the disks is what an image of a replay goes by, but of the profiles,
        which a load on a mount doesn't wait for.
        """
        engine = loaded.load_spec(self._specs[layout.hash])
        return {"kept": {"folder": str(Path(folder).absolute()), "engine": engine}}

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError, MissingError if the layout can't be tried here; remembers what a mount of it is
        told.
        """
        # Not where the place is brought up: clean-up needs no room, and is needed most where there is none.
        free = shutil.disk_usage(self._stores()).free
        if free < ROOM:
            raise MissingError(
                f"no room for the mounts' disks: {self._stores()} has {format_size(free >> 20 << 20)} free, "
                f"at least {format_size(ROOM)} are needed; set ZTUNE_HOME to a roomier place"
            )
        mount_points.check_layout(layout)
        if self._program is not None:
            require_known("the mount", self._program.openzfs, layout)
        where = f'layout "{layout.name}" of study "{study.name}"'
        for changed in changed_in_vain(study, layout, MOUNTED):
            raise InputError(
                f"{where} changes {changed}, which a mount does not have; --on lab or --on local does"
            )
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if layout.arc > memory // 2:
            raise InputError(
                f"{where} has an ARC of {format_size(layout.arc)}, more than half of this host's memory of "
                f"{format_size(memory >> 20 << 20)}"
            )
        self._specs[layout.hash] = mount_spec(study, layout, study.seed)

    def describe(self) -> dict[str, Any]:
        """Return the environment record."""
        return {
            "kind": "mount",
            "accel": "none",
            "dilation": 1.0,
            "patience": 1.0,
            **to_json(self.options),
        }

    def tunables(self, layout: Layout) -> dict[str, int]:
        """None: what follows from memory follows from that of the host that the program models."""
        return {}

    def disks_worked(self) -> dict[str, float]:
        """Nothing: the trial asks the mount itself."""
        return {}

    def measured(self) -> None:
        """Nothing: its disks keep their times to the end."""

    def shared(self, path: Path) -> str | None:
        """Everything of this host can be read here."""
        return str(path)
