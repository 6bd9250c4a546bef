"""The live system that a recommendation is applied to: its datasets and pools, read with their own tools.

One class runs every command, here or over ssh. Reading changes nothing; the one command that writes is
``zfs set`` or ``zfs inherit``, given by ``advice.perform``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.interrupt import uninterrupted
from ztune.onhost.properties import FEATURES, PROPERTIES, parse_property, version_key
from ztune.onhost.tunables import PARAMETERS

_TIMEOUT_S, _KILLED_S = 60.0, 10.0
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # where zfs stands, and where a user's PATH often doesn't look
_ABOUT = (
    *("type", "guid", "used", "referenced", "available", "mountpoint", "mounted", "origin", "dedup"),
    *("readonly", "volsize", "encryptionroot", "keyformat", "keylocation"),
)
_TARGET = re.compile(
    r"(?:([A-Za-z0-9_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:]+\])(?::(\d+))?"
)
VDEV_PROPERTIES_SINCE = "2.2"  # vdevprops(7)


class CommandError(ZtuneError):
    """A command ran and failed; the text names it and quotes what it said."""


class Host:
    """Runs commands on this machine, or with ``on`` = "ssh://[user@]host[:port]" on another.

    ``via``: words put before each command there, such as ("sudo", "-n").
    """

    def __init__(self, on: str = "", via: Sequence[str] = ()) -> None:
        self.on = on
        self.via = tuple(via)
        self._ssh: tuple[str, ...] = ()
        if on not in {"", "local"}:
            match = _TARGET.fullmatch(on.removeprefix("ssh://").rstrip("/"))
            if not on.startswith("ssh://") or match is None:
                raise InputError(f'--on is "{on}"; it is local or ssh://[user@]host[:port]')
            user, host, port = match.groups()
            # BatchMode: a question for a password would never be seen.
            self._ssh = (
                *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
                *(("-p", port) if port else ()),
                *("--", f"{user}@{host.strip('[]')}" if user else host.strip("[]")),
            )

    @property
    def name(self) -> str:
        """Return how a sentence names the host: "this host" or "ssh://db1"."""
        return self.on if self._ssh else "this host"

    def argv(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` there."""
        words = [*self.via, *command]
        if not self._ssh:
            return words
        # Only ssh's own code is 255: zfs ends with that too.
        script = f'PATH="$PATH:{_SBIN}" {shlex.join(words)} || exit $(( $? == 255 ? 1 : $? ))'
        return [*self._ssh, f"sh -c {shlex.quote(script)}"]

    def run(self, command: Sequence[str]) -> str:
        """Return what ``command`` prints.

        Raises:
            MissingError: the program, or ssh, is not there.
            CommandError: it failed, or took longer than a minute.
        """
        argv = self.argv(command)
        shown = shlex.join(command)
        env = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:{_SBIN}"}
        try:
            done = _ended(argv, env)
        except FileNotFoundError:
            raise self._missing(argv[0]) from None
        except OSError as error:
            raise CommandError(f"`{shown}` on {self.name} can't be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise CommandError(f"`{shown}` on {self.name} did not end in {_TIMEOUT_S:.0f} s") from None
        if done.returncode == 0:
            return done.stdout
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        if self._ssh and done.returncode == 255:
            raise CommandError(f"{self.name} can't be reached: {words}")
        if done.returncode == 127:
            raise self._missing((*self.via, *command)[0])
        raise CommandError(f"`{shown}` on {self.name} failed: {words}")

    def _missing(self, program: str) -> MissingError:
        if program in self.via:
            return MissingError(f"there is no {program} on {self.name}, which --via names")
        return MissingError(
            f"there is no {program} on {self.name}, so nothing can be compared or changed there; install "
            f"OpenZFS (zfsutils-linux), name the host with --on ssh://HOST, or use --export, which needs none"
        )


def _ended(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Raises OSError, and TimeoutExpired after a minute: it is killed then.

    In a group of its own: Ctrl-C is for ztune, which ends it if it has to.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", env=env, process_group=0,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    except BaseException:
        process.kill()
        # What it does in the kernel may come to its end yet, but not for a suspended pool: that outlives all.
        with uninterrupted(), contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_S)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


@dataclass(frozen=True)
class HostProperty:
    """A property as ``zfs get`` shows it. ``source``: local, default, received, inherited from X, - …"""

    value: str
    source: str


@dataclass(frozen=True)
class LiveDataset:
    """A file system or volume, with the properties that a layout may set, and those below it."""

    name: str
    properties: Mapping[str, HostProperty]
    below: tuple[LiveDataset, ...] = ()

    def text(self, name: str) -> str:
        """Return the raw value of a property, empty where the dataset has no such property."""
        found = self.properties.get(name)
        return "" if found is None or found.value == "-" else found.value

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self.name.split("/")[0]

    @property
    def is_volume(self) -> bool:
        """Whether it is a volume, not a file system."""
        return self.text("type") == "volume"

    @property
    def has_key(self) -> bool:
        """Whether it is encrypted with a key of its own, which those below may inherit."""
        return self.text("encryptionroot") == self.name

    @property
    def locked(self) -> tuple[LiveDataset, ...]:
        """Those below it that inherit its key: ZFS does not move them elsewhere."""
        return tuple(d for d in self.below if self.has_key and d.text("encryptionroot") == self.name)

    def number(self, name: str) -> int:
        """Return a property that is a number of bytes; 0 where it has none."""
        text = self.text(name)
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class VdevSectors:
    """The ashift of a top-level vdev, and the largest physical sector of its disks, bytes; None where that is
    not known."""

    name: str
    class_: str
    ashift: int
    physical: int | None


@dataclass(frozen=True)
class LivePool:
    """A pool: some of its properties, and its vdevs by class, each "mirror 2" or "disk".

    ``sectors``: of the vdevs whose ashift can be read. The property ashift of the pool does not tell it: that
    is 0 where ZFS chose, and of the next vdev that is added.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    vdevs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sectors: tuple[VdevSectors, ...] = field(default=(), compare=False)

    def has(self, class_: str) -> bool:
        """Whether it has vdevs of this class."""
        return bool(self.vdevs.get(class_))

    def feature(self, name: str) -> str:
        """Return "enabled", "active", "disabled", or "" where it is not known."""
        return self.properties.get(f"feature@{name}", "")


@dataclass(frozen=True)
class Live:
    """What was read from a host."""

    host: str
    version: str  # of the kernel module, such as 2.3.2-1
    datasets: Mapping[str, LiveDataset]
    pools: Mapping[str, LivePool]
    parameters: Mapping[str, str]  # module parameters that were asked for and are there


def canonical(name: str, value: str) -> str:
    """Return a property's value, as `zfs get` prints it, as layouts write it ("131072" → "128K"); as it is if
    not known."""
    if (name, value) == ("xattr", "on"):  # 2.3 means sa by `on`, but prints sa: who prints `on` means dir
        return "dir"
    try:
        return parse_property(name, value)[1]
    except ValueError:
        return value


def read(host: Host, datasets: Iterable[str], parameters: Iterable[str] = ()) -> Live:
    """Return what ``datasets``, their pools and the module ``parameters`` are now.

    Raises MissingError without ZFS there, InputError for a dataset that does not exist, CommandError for
    anything else that fails.
    """
    version = kernel_version(host)
    found = {name: read_dataset(host, name, version) for name in dict.fromkeys(datasets)}
    pools = {name: read_pool(host, name, version) for name in dict.fromkeys(d.pool for d in found.values())}
    values = {}
    for name in parameters:
        try:
            values[name] = host.run(["cat", f"{PARAMETERS}/{name}"]).strip()
        except CommandError:
            continue  # an older module, or a system without /sys: the plan says that it is not known
    return Live(host.name, version, found, pools, values)


def kernel_version(host: Host) -> str:
    """Return the version of the ZFS kernel module in use, such as "2.3.2-1"; raises MissingError without."""
    text = host.run(["zfs", "version"])
    for start in ("zfs-kmod-", "zfs-"):
        for line in text.splitlines():
            if line.startswith(start) and line[len(start) :][:1].isdigit():
                return line[len(start) :].strip()
    raise MissingError(
        f"`zfs version` on {host.name} names no kernel module; load it (modprobe zfs), or use --export"
    )


def known_properties(version: str) -> list[str]:
    """Return the properties of layouts that OpenZFS ``version`` has."""
    return [n for n, p in PROPERTIES.items() if version_key(p.since) <= version_key(version)]


def read_dataset(host: Host, name: str, version: str) -> LiveDataset:
    """Return a dataset and all below it. Raises InputError where it does not exist.

    Properties are asked for by name: values of user properties, which may hold anything, never get here.
    """
    wanted = ",".join((*_ABOUT, *known_properties(version)))
    try:
        text = host.run(
            [
                "zfs",
                "get",
                "-Hp",
                "-r",
                "-t",
                "filesystem,volume",
                "-o",
                "name,property,value,source",
                wanted,
                name,
            ]
        )
    except CommandError as error:
        if "does not exist" in str(error):
            raise InputError(
                f"there is no dataset {name} on {host.name}; create it first, or let "
                f"`ztune apply RUN --export sh` write a script that does"
            ) from None
        raise
    rows: dict[str, dict[str, HostProperty]] = {}
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) == 4:
            rows.setdefault(parts[0], {})[parts[1]] = HostProperty(parts[2], parts[3])
    if name not in rows:
        raise CommandError(f"`zfs get` on {host.name} says nothing of {name}")
    below = tuple(LiveDataset(n, p) for n, p in sorted(rows.items()) if n.startswith(name + "/"))
    return LiveDataset(name, rows[name], below)


def read_pool(host: Host, name: str, version: str) -> LivePool:
    """Return a pool's properties and vdevs. Raises CommandError where these can't be read."""
    features = [f"feature@{f}" for f, since in FEATURES.items() if version_key(since) <= version_key(version)]
    wanted = ",".join(("ashift", "size", "free", "health", "readonly", *features))
    text = host.run(["zpool", "get", "-Hp", "-o", "property,value", wanted, name])
    properties = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    status = host.run(["zpool", "status", "-P", name])
    return LivePool(name, properties, vdevs_of(status, name), _sectors(host, name, version, status))


def _sectors(host: Host, pool: str, version: str, status: str) -> tuple[VdevSectors, ...]:
    """Return the sectors of a pool's vdevs; ``status``: of `zpool status -P`."""
    if version_key(version) < version_key(VDEV_PROPERTIES_SINCE):
        return ()
    command = ["zpool", "get", "-Hp", "-o", "name,property,value", "ashift,path", pool, "all-vdevs"]
    try:
        text = host.run(command)
    except CommandError:
        return ()
    rows: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) == 3:
            rows.setdefault(parts[0], {})[parts[1]] = parts[2]
    ashifts: dict[str, int] = {}  # of a vdev that is one disk by its path, as `zpool status -P` names it
    for name, row in rows.items():
        if row.get("ashift", "").isdigit():
            ashifts[name] = ashifts[row.get("path", name)] = int(row["ashift"])
    vdevs = [vdev for vdev in _listed(status, pool) if ashifts.get(vdev.name)]
    physical = _physical(host, pool, status) if vdevs else {}
    return tuple(
        VdevSectors(
            vdev.name,
            vdev.class_,
            ashifts[vdev.name],
            max((physical[disk] for disk in vdev.disks if disk in physical), default=None),
        )
        for vdev in vdevs
    )


def _physical(host: Host, pool: str, status: str) -> dict[str, int]:
    """Return the physical sector of each of a pool's disks, by the paths of ``status``, bytes; those that are
    not known are left out."""
    try:
        real = host.run(["zpool", "status", "-L", "-P", pool])
        rows = host.run(["lsblk", "-rnpo", "KNAME,PHY-SEC"]).splitlines()
    except ZtuneError:
        return {}
    sizes = {words[0]: int(words[1]) for words in map(str.split, rows) if len(words) == 2}
    named, found = ([d for v in _listed(text, pool) for d in v.disks] for text in (status, real))
    if len(named) != len(found):
        return {}  # a disk has come or gone between the two
    return {name: sizes[disk] for name, disk in zip(named, found, strict=True) if disk in sizes}


_HEADS = {"logs": "log", "cache": "cache", "special": "special", "dedup": "dedup", "spares": "spare"}


def vdevs_of(status: str, pool: str) -> dict[str, tuple[str, ...]]:
    """Return the vdevs by class from the text of ``zpool status``: {"data": ("mirror 2",), "log": …}."""
    found: dict[str, tuple[str, ...]] = {}
    for vdev in _listed(status, pool):
        kind = f"{vdev.name.split('-')[0]} {vdev.members}" if vdev.members else "disk"
        found[vdev.class_] = (*found.get(vdev.class_, ()), kind)
    return found


@dataclass
class _Listed:
    """A top-level vdev of ``zpool status -P``; ``members``: 0 of a single disk; ``disks``: their paths."""

    name: str
    class_: str
    members: int = 0
    disks: list[str] = field(default_factory=list)


def _listed(status: str, pool: str) -> list[_Listed]:
    """Return the vdevs from the text of ``zpool status``.

    Its config section indents by two spaces a level: the pool and the heads of classes stand at the first,
    top-level vdevs at the second, the disks of a mirror or RAID-Z at the third.
    """
    found: list[_Listed] = []
    class_, inside = "data", False
    for line in status.splitlines():
        if line.lstrip("\t").startswith("NAME ") and "STATE" in line:
            inside = True
            continue
        if not inside:
            continue
        if not line.startswith("\t"):
            break  # the blank line before "errors:"
        body = line[1:]
        words = body.split()
        if not words:
            continue
        depth = (len(body) - len(body.lstrip(" "))) // 2
        if depth == 0:
            class_ = "data" if words[0] == pool else _HEADS.get(words[0], words[0])
            continue
        if depth == 1:
            found.append(_Listed(words[0], class_))
        elif depth == 2 and found:
            found[-1].members += 1
        if found and words[0].startswith("/"):
            found[-1].disks.append(words[0])
    return found
