"""The lab target: trials in a throw-away virtual machine, on disks with the times of their profiles."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztune import paths, temporary
from ztune.disk import server as shaped
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import accel as acceleration
from ztune.lab import guest as guests
from ztune.lab import image as images
from ztune.lab import qemu, wire
from ztune.lab.build import current
from ztune.lab.guest import Guest
from ztune.lab.uml import GuestDisk
from ztune.onhost.host import shared_files
from ztune.onhost.layout import CLASSES
from ztune.onhost.tunables import dirty_data_max
from ztune.places import bundle
from ztune.places.about import said_of_host
from ztune.places.channel import Channel, Lost, need_zfs
from ztune.study import Layout, Pool, Study
from ztune.study.profile import Profile
from ztune.temporary import Temporary
from ztune.units import format_size

DILATION = 20.0
"""How many times slower than real everything goes under emulation: about as much as the processors are, so
that disk and processor keep their proportion. docs/accuracy.md has what less does."""
PATIENCE = 50.0
"""What time limits are multiplied by under emulation."""
PATIENCE_IN_USER_MODE = 10.0
"""The same for a guest in user mode, where a process starts ten times as slowly."""
IN_USER_MODE = (
    "The lab's guest runs in user mode, with one processor: what the database does itself takes many times "
    "as long as on a host. Believe the differences that the disks make."
)
NOT_IN_USER_MODE = (
    "The lab has no guest in user mode with OpenZFS {}, so this run is emulated: its operations and bytes "
    "can be held against those of another version, its times can't."
)
ROOM = 4 << 30
"""Bytes that must be free for the disks' contents, which are sparse files."""
SCRATCH = 256 << 30
"""Bytes of the file system for journals and logs, sparse too."""
HIDDEN = ("/tmp", "/run", "/var/tmp", "/dev", "/proc", "/sys")
"""Where the guest has file systems of its own: what the host has there is seen below /host."""
WRITEBACK = ("vm/dirty_expire_centisecs", "vm/dirty_writeback_centisecs", "fs/xfs/xfssyncd_centisecs")
"""When Linux writes dirty pages back: vm.rst and xfs.rst of its documentation."""
SCRATCH_DISK = "scratch"
BY_ID = "/dev/disk/by-id/ztune-"
_MIB = 1 << 20


@dataclass(frozen=True)
class _Disk:
    """A disk that a layout needs."""

    serial: str
    profile: Profile
    size: int


class LabChannel(guests.GuestChannel):
    """A command in the guest, with the words of ``ztune.places.channel``."""

    def send(self, line: str) -> None:
        """Send one line. A program that no longer reads has said why, or ``wait`` tells."""
        with contextlib.suppress(wire.GuestLost):
            super().send(line)

    def lines(self) -> Iterator[str]:
        """Yield its lines. Raises Lost."""
        try:
            yield from super().lines()
        except wire.GuestLost as error:
            raise Lost(str(error)) from None

    def wait(self) -> int:
        """Return its exit code; negative: killed by that signal. Raises Lost."""
        try:
            code = super().wait()
        except wire.GuestLost as error:
            raise Lost(str(error)) from None
        return 128 - code if 128 < code <= 192 else code


class Lab:
    """A guest of its own, with one shaped disk for each disk of a layout."""

    name = "lab"

    def __init__(
        self,
        openzfs: str | None = None,
        *,
        memory: int = guests.MEMORY,
        accel: str | None = None,
        dilation: float | None = None,
    ) -> None:
        """Name the machine; nothing is started.

        ``openzfs``: version or its beginning. ``memory``: MiB. ``dilation``: how many times slower than real
        everything goes, ≥ 1; default 1 with KVM and ``DILATION`` under emulation.
        """
        self.openzfs = openzfs
        self.memory = memory
        self.state = "/scratch/ztune"
        self._accel = accel
        self._dilation = dilation
        self._guest: Guest | None = None
        self._folder: Path | None = None
        self._end = contextlib.ExitStack()
        self._sockets: Path | None = None
        self._servers: dict[str, shaped.DiskServer] = {}
        self._profiles: dict[str, Profile] = {}
        self._about: dict[str, Any] | None = None
        self._plugged: dict[str, Any] = {}

    # --- up and down

    def __enter__(self) -> Self:
        """Resume a guest.

        Raises MissingError without QEMU, image or room, ZtuneError if it does not start.
        """
        if self._guest is not None:
            raise ZtuneError("the lab is up already")
        free = shutil.disk_usage(paths.scratch()).free
        if free < ROOM:
            raise MissingError(
                f"no room for the lab's disks: {paths.scratch()} has {free / 2**30:.1f} GiB free, at least "
                f"{ROOM >> 30} GiB are needed; set ZTUNE_HOME to a roomier place"
            )
        try:
            disks = shared_files.temporary(paths.scratch(), f"{paths.GUEST}disks-")
            self._folder = self._end.enter_context(disks)
            self._folder.mkdir(mode=0o700)
            # Names of sockets may have 107 bytes only.
            self._sockets = self._end.enter_context(Temporary.make(temporary.GUEST, temporary.runtime())).path
            self._make_scratch()
            self._accel = self._accel or acceleration.in_user_mode(self.openzfs)
            if self._accel == "uml":
                self._boot([])
            else:
                self._guest = Guest.resume(self.openzfs, memory=self.memory, accel=self._accel)
                self._mount_scratch(self.guest.add_disk(self._scratch, SCRATCH_DISK, unsafe=True))
                self._slow_writeback()
        except wire.GuestLost as error:
            self._down()
            raise Lost(str(error)) from None
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Throw the guest and its disks away."""
        self._down()

    def _down(self) -> None:
        guest, self._guest = self._guest, None
        try:
            if guest is not None:
                guest.cut()  # nothing on its disks is kept
        finally:
            for server in self._servers.values():
                server.kill()
            self._servers.clear()
            self._plugged = {}
            self._end.close()

    def fills(self) -> list[Path]:
        """Return where the guest's disks are, which are sparse files."""
        return [paths.scratch()]

    @property
    def _scratch(self) -> Path:
        assert self._folder is not None
        return self._folder / "scratch.img"

    def _make_scratch(self) -> None:
        """Make room for journals and logs: the guest's own temporary file systems are its memory."""
        file = self._scratch
        with file.open("wb") as out:
            out.truncate(SCRATCH)
        mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
        if mkfs is None:
            raise MissingError(
                "the lab needs mkfs.ext4 (e2fsprogs) for the guest's scratch disk; `make lab` brings it"
            )
        options = "nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0"
        command = [mkfs, "-q", "-F", "-m", "0", "-O", "^has_journal,^metadata_csum", "-E", options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise ZtuneError(f"the lab's scratch disk can't be formatted: {done.stderr.strip()}")

    def _mount_scratch(self, path: str) -> None:
        script = f"mkdir -p /scratch && mount -o noatime {path} /scratch && mkdir -p {self.state}"
        self.guest.run(["sh", "-c", script], check=True, timeout=60 * self.patience)

    def _boot(self, disks: list[GuestDisk]) -> None:
        """Boot a guest in user mode with ``disks``, in place of the one that is up. Raises ZtuneError."""
        if self._guest is not None:
            guest, self._guest = self._guest, None
            try:
                guest.run(["umount", "/scratch"], check=True, timeout=60 * PATIENCE_IN_USER_MODE)
            finally:
                guest.cut()
        found = current(images.find(self.openzfs, user_mode=True))
        self._guest = Guest.in_user_mode(found, self.memory, [GuestDisk(SCRATCH_DISK, self._scratch), *disks])
        why = acceleration.known()
        self._guest.why_no_kvm = why.reason if why else ""
        self._mount_scratch(f"{BY_ID}{SCRATCH_DISK}")
        self._slow_writeback()

    def _slow_writeback(self) -> None:
        """Let Linux write back dirty pages (of ext4 and xfs) as much less often as the disks are slower.

        OpenZFS's own times are set by each trial, which puts them back; this is for the guest's whole life.
        """
        self._slow([f"/proc/sys/{name}" for name in WRITEBACK])

    def _slow_throttling(self, disks: Sequence[GuestDisk]) -> None:
        """Let Linux hold a disk's writes back for late reads as much later as the disk is slower.

        OpenZFS's writes are held back as any others: it asks for none to be sooner (wbt_lat_usec, of
        Documentation/ABI/stable/sysfs-block). A guest in user mode has no such throttling.
        """
        nodes = [f"$(basename $(readlink -f {BY_ID}{disk.serial}))" for disk in disks]
        self._slow([f"/sys/block/{node}/queue/wbt_lat_usec" for node in nodes])

    def _slow(self, times: Sequence[str]) -> None:
        """Make the guest's kernel's ``times``, files that the guest's shell finds, as much longer."""
        if self.dilation == 1:
            return
        script = "for f in {}; do [ -e $f ] && read n < $f && echo $((n * {} / 1000)) > $f; done; true"
        words = ["sh", "-c", script.format(" ".join(times), round(self.dilation * 1000))]
        self.guest.run(words, check=True, timeout=60 * self.patience)

    @property
    def guest(self) -> Guest:
        """The guest. Raises ZtuneError when the lab is not up."""
        if self._guest is None:
            raise ZtuneError("the lab is not up")
        return self._guest

    @property
    def dilation(self) -> float:
        """How many times slower than real time its disks run."""
        if self._dilation is not None:
            return self._dilation
        return DILATION if self.guest.machine.accel == "tcg" else 1.0

    @property
    def patience(self) -> float:
        """What time limits are multiplied by."""
        return {"tcg": PATIENCE, "uml": PATIENCE_IN_USER_MODE}.get(self.guest.machine.accel, 1.0)

    # --- what trials need

    def about_host(self) -> dict[str, Any]:
        """Return what the trial program says of the guest."""
        if self._about is None:
            self._about = said_of_host(self, "the lab", bundle.build())
        return self._about

    def put(self, local: Path) -> str:
        """Nothing to copy: the guest reads this host's files."""
        return f"/host{local.resolve()}"

    def shared(self, path: Path) -> str | None:
        """Every file of this host that we can read."""
        return f"/host{path.resolve()}"

    def open(self, argv: list[str]) -> Channel:
        """Start a command in the guest, as root. Raises Lost."""
        words = [_python(), *argv[1:]] if argv[0] == "python3" else argv
        try:
            return LabChannel(self.guest.start(words))
        except wire.GuestLost as error:
            raise Lost(str(error)) from None

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError if the layout can't be tried here; remembers the study's profiles."""
        self._profiles.update(study.profiles)
        need_zfs("the lab", self.about_host(), layout)
        for disks in _wanted(layout, study.profiles).values():
            for groups in disks.values():
                for disk in (disk for group in groups for disk in group):
                    if disk.size < 64 * _MIB:
                        raise InputError(
                            f'layout "{layout.name}": a disk of {format_size(disk.size)} holds no pool'
                        )
        if layout.arc > self.memory * _MIB // 2:
            raise InputError(
                f'layout "{layout.name}" has an ARC of {format_size(layout.arc)}, more than half of the '
                f"lab's memory of {format_size(self.memory * _MIB)}"
            )

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        """Plug in new, empty disks for ``layout`` and return the spec's place; those of the last trial go.

        Raises Lost, ZtuneError.
        """
        try:
            self._unplug()
            spec: dict[str, Any] = {}
            disks: list[GuestDisk] = []
            for pool, classes in _wanted(layout, self._profiles).items():
                spec[pool] = {
                    class_: [[self._serve(disk, disks) for disk in group] for group in groups]
                    for class_, groups in classes.items()
                }
            if self._accel == "uml":
                self._boot(disks)
            else:
                for disk in disks:
                    self.guest.add_disk(disk.source, disk.serial, disk.rotation)
                self._slow_throttling(disks)
            return {"kind": "disks", "disks": spec}
        except wire.GuestLost as error:
            raise Lost(str(error)) from None

    def describe(self) -> dict[str, Any]:
        """Return the environment record; as ``warnings``, what a run in it is to say."""
        machine = self.guest.machine
        warnings = [IN_USER_MODE] if machine.accel == "uml" else []
        if machine.accel == "tcg" and any(one.user_mode for one in images.built()):
            warnings.append(NOT_IN_USER_MODE.format(self.guest.image.openzfs))
        return {
            **({"warnings": warnings} if warnings else {}),
            "kind": "lab",
            "accel": machine.accel,
            "why_no_kvm": self.guest.why_no_kvm,
            "dilation": self.dilation,
            "patience": self.patience,
            "memory": machine.memory * _MIB,
            "cpus": machine.cpus,
            "openzfs": self.guest.image.openzfs,
            "kernel": self.guest.image.kernel,
            "qemu": qemu.version(),
            "disks": self._plugged,
        }

    def tunables(self, layout: Layout) -> dict[str, int]:
        """What follows from memory follows from that of the host that screening models, not the guest's."""
        return {"zfs_dirty_data_max": dirty_data_max(layout.arc)}

    def disks_worked(self) -> dict[str, float]:
        """Return the ms of head or channels. Those that don't answer are left out."""
        worked: dict[str, float] = {}
        for serial, server in self._servers.items():
            with contextlib.suppress(ZtuneError):
                worked[f"{BY_ID}{serial}"] = server.stats()["working_s"] * 1e3 * self.dilation
        return worked

    def measured(self) -> None:
        """Disks take no time any more: to read a database once may take minutes with slow ones."""
        for server in self._servers.values():
            with contextlib.suppress(ZtuneError):
                server.hurry()

    # --- disks

    def _serve(self, disk: _Disk, served: list[GuestDisk]) -> str:
        """Serve a disk, add it to ``served`` and return its path in the guest."""
        assert self._folder is not None and self._sockets is not None
        backing = self._folder / f"{disk.serial}.img"
        socket = self._sockets / disk.serial
        self._servers[disk.serial] = shaped.start(
            disk.profile, disk.size, backing, socket, dilation=self.dilation
        )
        rotation = round(disk.profile.rpm) if disk.profile.kind == "hdd" else 1
        source = shaped.guest_socket(socket) if self._accel == "uml" else socket
        served.append(GuestDisk(disk.serial, source, rotation))
        path = f"{BY_ID}{disk.serial}"
        self._plugged[path] = {"profile": disk.profile.model_dump(), "size": disk.size}
        return path

    def _unplug(self) -> None:
        if self._servers:
            pools = self.guest.run(["zpool", "list", "-H", "-o", "name"], timeout=60 * self.patience)
            left = pools.stdout.decode().split()
            if left:
                raise ZtuneError(f"in the lab's guest the pool {left[0]} of the last trial is still there")
        for serial, server in list(self._servers.items()):
            if self._accel != "uml":  # there the guest ends with its disks
                self.guest.remove_disk(serial)
            server.kill()
            del self._servers[serial]
            assert self._folder is not None
            (self._folder / f"{serial}.img").unlink(missing_ok=True)
        self._plugged = {}


def _wanted(layout: Layout, profiles: Mapping[str, Profile]) -> dict[str, dict[str, list[list[_Disk]]]]:
    """Return pool → class → vdevs → disks."""
    wanted: dict[str, dict[str, list[list[_Disk]]]] = {}
    for number, pool in enumerate(layout.used_pools()):
        wanted[pool.name] = {}
        for class_ in CLASSES:
            groups = _groups(pool, class_, number, profiles)
            if groups:
                wanted[pool.name][class_] = groups
    return wanted


def _groups(pool: Pool, class_: str, number: int, profiles: Mapping[str, Profile]) -> list[list[_Disk]]:
    groups: list[list[_Disk]] = []
    count = 0
    for vdev in pool.of_class(class_):
        group = []
        for _ in range(vdev.disks):
            # A serial has 20 letters; the pool's number keeps two long names apart.
            serial = f"{pool.name[:8]}{number if len(pool.name) > 8 else ''}-{class_}-{count}"
            profile = profiles[vdev.profile]
            group.append(_Disk(serial, profile, vdev.size or profile.size))
            count += 1
        groups.append(group)
    return groups


def _python() -> str:
    """Return this host's own Python as the guest sees it: known to be new enough."""
    path = str(Path(sys.executable).resolve())
    return f"/host{path}" if path.startswith(tuple(f"{place}/" for place in HIDDEN)) else path
