"""What is observed: a process tree, a systemd unit, a dataset, or a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ztune import output
from ztune.errors import InputError
from ztune.onhost.host import mounts
from ztune.onhost.host.process import Identity
from ztune.onhost.look import zfs
from ztune.onhost.probes import procfs
from ztune.onhost.probes.bpf import kernel_device
from ztune.units import counted

# Where systemd's groups of processes are: cgroup v2, v2 beside v1, v1 (systemd's own hierarchy).
CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
SYSTEMD = Path("/run/systemd/system")
"""Is there where systemd runs the host: sd_booted(3)."""
_UNIT_TYPES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")


@dataclass(frozen=True)
class Root:
    """A folder on one file system."""

    device: int
    """The kernel's dev_t."""
    inode: int


@dataclass(frozen=True)
class ObservedSubject:
    """What is observed.

    Either ``pids``: these processes and all that descends from them; or ``devices`` (the kernel's dev_t):
    every process, on files of these file systems, with ``roots`` only below these folders.
    """

    kind: Literal["pid", "unit", "dataset", "path"]
    name: str
    words: str
    """For a heading: "process 1234 (postgres) and its 12 children"."""
    pids: tuple[int, ...] = ()
    started: dict[int, int] = field(default_factory=dict)
    """Process → the clock tick it started at."""
    devices: tuple[int, ...] = ()
    roots: tuple[Root, ...] = ()
    folders: tuple[str, ...] = ()
    """The mount points or the folder."""

    @property
    def by_files(self) -> bool:
        """Whether files are chosen, not processes."""
        return bool(self.devices)

    def now(self) -> tuple[int, ...]:
        """Return the chosen processes that live now; for a unit also those that it started since."""
        if self.kind == "unit":
            return tuple(_unit_pids(Path(folder) for folder in self.folders))
        return tuple(pid for pid in self.pids if _started(pid) == self.started.get(pid))


def choose(
    pid: int | None = None,
    unit: str | None = None,
    dataset: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> ObservedSubject:
    """Return the subject that is asked for. Raises InputError unless exactly one is, and it is there."""
    asked = [
        flag
        for flag, value in (("--pid", pid), ("--unit", unit), ("--dataset", dataset), ("--path", path))
        if value is not None
    ]
    if len(asked) != 1:
        raise InputError(
            "say what to observe with one of --pid, --unit, --dataset and --path"
            + (f", not with {' and '.join(asked)} at once" if asked else "")
        )
    if pid is not None:
        return of_pid(pid)
    if unit is not None:
        return of_unit(unit)
    if dataset is not None:
        return of_dataset(dataset)
    assert path is not None
    return of_path(path)


def of_pid(pid: int) -> ObservedSubject:
    """Return a process and all that descends from it. Raises InputError if there is no such process."""
    started = _started(pid)
    if started is None:
        raise InputError(f"there is no process {pid}")
    children = len(procfs.descendants([pid])) - 1
    return ObservedSubject(
        "pid",
        str(pid),
        f"process {pid} ({_name(pid)}){_with_children(children)}",
        pids=(pid,),
        started={pid: started},
    )


def _with_children(n: int) -> str:
    return "" if n < 1 else " and its child" if n == 1 else f" and its {n} children"


def _name(pid: int) -> str:
    try:
        return output.line(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    except OSError:
        return "ended"


def _started(pid: int) -> int | None:
    """Return the tick a process started at; None if it is gone, or ended and not yet waited for."""
    found = Identity.of(pid)
    return found.ticks if found is not None and found.alive() else None


def of_unit(name: str) -> ObservedSubject:
    """Return the processes of a systemd unit; ``.service`` may be left out.

    Asks the kernel's control groups, not systemd. Raises InputError if there is no such unit or it has no
    processes.
    """
    unit = name if name.endswith(_UNIT_TYPES) else f"{name}.service"
    if "/" in unit or unit.startswith("."):
        raise InputError(f'"{name}" is no name of a systemd unit, for example postgresql@15-main.service')
    folders = list(_unit_folders(unit))
    pids = _unit_pids(folders)
    if not pids:
        state = "has no processes" if folders else "is not running here: it has no control group"
        if not folders and not SYSTEMD.exists():
            state += ", as systemd does not run this host; name the server's process by --pid"
        raise InputError(f"the unit {unit} {state}{_instances(unit)}")
    started = {pid: tick for pid in pids if (tick := _started(pid)) is not None}
    return ObservedSubject(
        "unit",
        unit,
        f"unit {unit} with {len(pids)} process{'es' if len(pids) != 1 else ''}",
        pids=tuple(pids),
        started=started,
        folders=tuple(map(str, folders)),
    )


def _unit_folders(pattern: str) -> Iterator[Path]:
    seen: set[str] = set()
    for place in CGROUPS:
        # /sys/fs/cgroup is cgroup v2's own root only where it says so; under v1 it holds the hierarchies.
        if not (Path(place) / "cgroup.procs").exists():
            continue
        for folder in sorted(Path(place).rglob(pattern)):
            if folder.is_dir() and str(folder) not in seen:
                seen.add(str(folder))
                yield folder


def _unit_pids(folders: Iterable[Path]) -> list[int]:
    found: set[int] = set()
    for folder in folders:
        # A unit may have made groups of its own below.
        for file in folder.rglob("cgroup.procs"):
            with suppress(OSError):
                found |= {int(word) for word in file.read_text().split() if word != "0"}
    return sorted(found)


def _instances(unit: str) -> str:
    """Name instances of a template: Debian's postgresql.service only starts postgresql@15-main.service."""
    stem, _, kind = unit.rpartition(".")
    running = sorted({f.name for f in _unit_folders(f"{stem}@*.{kind}") if _unit_pids([f])})
    return f"; these do: {', '.join(running[:3])}" if running else ""


def of_dataset(name: str) -> ObservedSubject:
    """Return all files of a dataset and of those below it. Raises InputError if none of them is mounted."""
    mine = [
        mount
        for mount in mounts.table()
        if mount.type == "zfs"
        and "@" not in mount.source
        and (mount.source == name or mount.source.startswith(name + "/"))
    ]
    if not mine:
        raise InputError(f"no dataset {name} is mounted on this host, nor one below it")
    names = {mount.source for mount in mine}
    below = len(names - {name})
    return ObservedSubject(
        "dataset",
        name,
        f"dataset {name}" + ("" if not below else f" and {counted(below, 'dataset')} below it"),
        devices=tuple(sorted({kernel_device(os.makedev(*mount.device)) for mount in mine})),
        folders=tuple(dict.fromkeys(str(mount.point) for mount in mine)),
    )


def of_path(path: str | os.PathLike[str]) -> ObservedSubject:
    """Return all files below a folder, also those of file systems mounted there.

    Raises InputError if there is no such folder, or it may not be looked into.
    """
    try:
        folder = Path(path).resolve(strict=True)
        if not folder.is_dir():
            raise InputError(f"{path} is no folder; name the folder that the file is in")
        place = os.open(folder, os.O_PATH)
    except FileNotFoundError:
        raise InputError(f"there is no folder {path}") from None
    except OSError as error:
        raise InputError(f"the folder {path} can't be looked at: {error.strerror}") from None
    try:
        roots = [Root(_device_of(place, folder), os.fstat(place).st_ino)]
    finally:
        os.close(place)
    for mount in mounts.below(folder, mounts.table()):
        with suppress(OSError):
            if mount.point != folder:
                device = kernel_device(os.makedev(*mount.device))
                roots.append(Root(device, mount.point.stat().st_ino))
    return ObservedSubject(
        "path",
        str(folder),
        f"folder {folder}",
        devices=tuple(sorted({root.device for root in roots})),
        roots=tuple(dict.fromkeys(roots)),
        folders=(str(folder),),
    )


def _device_of(descriptor: int, folder: Path) -> int:
    """Return the kernel's device number of a folder's file system: on Btrfs, stat gives another."""
    wanted = None
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            wanted = line.split()[1]
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        words = line.split(" ", 3)
        if words[0] == wanted:
            major, _, minor = words[2].partition(":")
            return kernel_device(os.makedev(int(major), int(minor)))
    return kernel_device(folder.stat().st_dev)


def record_sizes() -> dict[int, int]:
    """Return device (the kernel's dev_t) → recordsize, bytes, of every mounted dataset; empty without ZFS."""
    mine = [mount for mount in mounts.table() if mount.type == "zfs" and "@" not in mount.source]
    values = zfs.asked("recordsize", {mount.source for mount in mine})
    sizes = {name: int(value) for name, value in values.items() if value.isdigit()}
    return {
        kernel_device(os.makedev(*mount.device)): sizes[mount.source]
        for mount in mine
        if mount.source in sizes
    }
