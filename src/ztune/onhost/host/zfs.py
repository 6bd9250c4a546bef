"""Calls of ``zfs`` and ``zpool``, and of the few other programs a trial needs: logged, bounded, parsed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.events import Events
from ztune.onhost.host.process import ends_with_us

_STILL_S = 60.0
"""A command that runs for so long says that it does, and each time as long again: limits are hours on a slow
host, and who waits for a trial must see what it waits for."""
_IN_PROGRESS = re.compile(r"^ *(?:scan|remove|expand): (?P<work>.+) in progress\b", re.MULTILINE)
_LAST_SCAN = re.compile(r"^ *scan: (?P<said>.+)", re.MULTILINE)
_LEAF_WORK = re.compile(r"\((?P<work>initializing|trimming)\)")
"""As zpool_main.c prints them: "scan: scrub in progress since …", "sdb ONLINE 0 0 0  (trimming)"."""
_KSTAT = Path("/proc/spl/kstat/zfs")
_SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def which(program: str) -> str | None:
    """Return the path of a program, also where only root's PATH would find it; None without it."""
    for folder in [*os.environ.get("PATH", "").split(":"), *_SYSTEM]:
        path = Path(folder) / program
        if folder and os.access(path, os.X_OK) and path.is_file():
            return str(path)
    return None


class Commands:
    """Runs programs; every one is an event of the trial."""

    def __init__(self, events: Events, *, patience: float = 1.0, keep_fds: Sequence[int] = ()) -> None:
        """``keep_fds`` are handed down: a run's lock stays held while a command outlives us. Only one that
        works on pools does.
        """
        self._events = events
        self._patience = patience
        self._keep = tuple(keep_fds)
        self._paths: dict[str, str] = {}
        self.in_vain: Callable[[], bool] = lambda: False
        """Whether what works on pools won't come to its end, as they are lost."""

    def __call__(self, argv: Sequence[str], *, timeout: float = 120.0) -> str:
        """Run ``argv`` and return its standard output. Raises ZtuneError with its last words on failure."""
        rc, out, err = self.attempt(argv, timeout=timeout)
        if rc != 0:
            raise ZtuneError(
                f"{argv[0]} {' '.join(argv[1:3])} failed: {last_words(err or out) or f'exit code {rc}'}"
            )
        return out

    def attempt(
        self, argv: Sequence[str], *, timeout: float = 120.0, quiet: bool = False
    ) -> tuple[int, str, str]:
        """Run ``argv`` and return its exit code, standard output and standard error.

        Args:
            argv: program and arguments; no shell.
            timeout: seconds, times the patience.
            quiet: it is an event only where it fails.

        Raises:
            MissingError: there is no such program.
            ZtuneError: it took too long; it was killed.
        """
        path = self._paths.get(argv[0]) or which(argv[0])
        if path is None:
            raise MissingError(f"{argv[0]} is missing on {os.uname().nodename}; {_brings(argv[0])}")
        self._paths[argv[0]] = path
        began = time.monotonic()
        seconds = timeout * self._patience
        # What works on pools goes on to its end when we are killed; a copy of a database, say, does not.
        goes_on = argv[0] in ("zpool", "zfs")
        # In a session of its own: Ctrl-C is ours to handle, and must not cut a zpool create in half.
        with subprocess.Popen(
            [*([] if goes_on else ends_with_us()), path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": ":".join(_SYSTEM), "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,
            pass_fds=self._keep,
        ) as process:
            try:
                out, err = self._heard(process, argv, seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                # What waits in the kernel for a lost disk outlives even that; don't wait for it too.
                process.stdout = process.stderr = None
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.returncode = -9
                self._events.command(argv, -9, time.monotonic() - began, "took too long")
                raise ZtuneError(
                    f"{argv[0]} {' '.join(argv[1:3])} did not end within {seconds:.0f} s; "
                    "a disk may have stopped answering"
                ) from None
            except BaseException:
                # At KeyboardInterrupt Popen would leave it running: a pool could come in behind our back.
                if not goes_on:
                    process.kill()
                until = max(time.monotonic() + 1.0, began + seconds)
                while process.poll() is None and time.monotonic() < until and not self.in_vain():
                    time.sleep(0.1)
                raise
        text = err.decode("utf-8", errors="replace")
        if not quiet or process.returncode != 0:
            self._events.command(argv, process.returncode, time.monotonic() - began, last_words(text))
        return process.returncode, out.decode("utf-8", errors="replace"), text

    def warn(self, text: str) -> None:
        """Say what the reader must know of what a command could not do."""
        self._events.warning(text)

    def tell(self, text: str) -> None:
        """Say what is waited for."""
        self._events.log(text, waits=True)

    def _heard(
        self, process: subprocess.Popen[bytes], argv: Sequence[str], seconds: float
    ) -> tuple[bytes, bytes]:
        """Return its standard output and standard error. Raises TimeoutExpired after ``seconds``."""
        began = time.monotonic()
        while True:
            left = began + seconds - time.monotonic()
            try:
                return process.communicate(timeout=max(0.0, min(_STILL_S, left)))
            except subprocess.TimeoutExpired:
                if left <= _STILL_S:
                    raise
            gone = time.monotonic() - began
            said = f"{' '.join(argv[:3])} still runs, after {gone:.0f} s of at most {seconds:.0f}"
            self._events.log(said, waits=True)


def _brings(program: str) -> str:
    package = {
        "zfs": "zfsutils-linux",
        "zpool": "zfsutils-linux",
        "mkfs.ext4": "e2fsprogs",
        "mkfs.xfs": "xfsprogs",
        "losetup": "mount",
    }.get(program)
    return f"Debian's and Ubuntu's package {package} brings it" if package else "install it"


def last_words(text: str) -> str:
    """Return the last lines of an error, on one line."""
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[-400:]


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a property, and where it comes from."""

    value: str
    source: str
    """local, default, inherited from NAME, received, or "-"."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a pool does of itself, beside what is asked of it."""

    health: str
    works: tuple[str, ...]
    """What is in progress: "scrub", "resilver", "trimming"."""
    last: str
    """What ``zpool status`` says of its last scrub or resilver, which changes with each."""
    vdevs: tuple[str, ...]
    """What it is made of, as ``zpool status`` names it: "mirror-0", "sda", "logs"."""


def parse_status(text: str) -> Upkeep:
    """Return what ``zpool status POOL`` says of its upkeep."""
    health = re.search(r"^ *state: (\S+)", text, re.MULTILINE)
    last = _LAST_SCAN.search(text)
    works = [*_IN_PROGRESS.findall(text), *_LEAF_WORK.findall(text)]
    _, _, config = text.partition("\tNAME ")
    # A hot spare's line says more of its state; errors come after the blank line.
    rows = config.partition("\n\n")[0].splitlines()[1:]
    return Upkeep(
        health[1] if health else "",
        tuple(dict.fromkeys(works)),
        last["said"] if last else "",
        tuple(row.split()[0] for row in rows if row.strip()),
    )


def parse_get(text: str) -> dict[str, dict[str, Value]]:
    """Return name → property → value from ``zfs get -Hp -o name,property,value,source``, or ``zpool get``."""
    found: dict[str, dict[str, Value]] = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 4:
            found.setdefault(fields[0], {})[fields[1]] = Value(fields[2], fields[3])
    return found


def parse_table(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of ``zfs list -Hp -o …`` or ``zpool list -Hp -o …`` by column."""
    rows = []
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == len(columns):
            rows.append(dict(zip(columns, fields, strict=True)))
    return rows


def parse_version(text: str) -> tuple[int, ...]:
    """Return (2, 3, 2) for "2.3.2-2~bpo12+2"; empty when there is no number."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def import_places(paths: Sequence[str]) -> list[str]:
    """Return what ``zpool import -d`` shall look at for devices or files: folders, device nodes, partitions.

    ``zpool create`` puts the vdev into the first partition of a whole disk: sdb1, nvme0n1p1.
    """
    found: dict[str, None] = {}
    for path in paths:
        if not path.startswith("/dev/"):
            found[str(Path(path).parent)] = None
            continue
        node = os.path.realpath(path)
        part = node + ("p1" if node[-1].isdigit() else "1")
        found[part if Path(part).exists() else node] = None
    return list(found)


def module_version() -> str:
    """Return the loaded ZFS module's version as it says it; empty without the module."""
    try:
        return Path("/sys/module/zfs/version").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Zfs:
    """Questions to ZFS, and the calls that make things. Nothing here removes anything: that is the door's."""

    def __init__(self, commands: Commands) -> None:
        self.run = commands

    def pools(self) -> dict[str, str]:
        """Return name → guid of every imported pool."""
        rows = parse_table(self.run(["zpool", "list", "-Hp", "-o", "name,guid"]), ("name", "guid"))
        return {row["name"]: row["guid"] for row in rows}

    def pool_values(self, name: str, properties: Iterable[str]) -> dict[str, Value]:
        """Return properties of one pool; empty when there is no such pool."""
        rc, out, err = self.run.attempt(
            ["zpool", "get", "-Hp", "-o", "name,property,value,source", ",".join(properties), name]
        )
        if rc != 0:
            if "no such pool" in err:
                return {}
            raise ZtuneError(f"pool {name}: {last_words(err)}")
        return parse_get(out).get(name, {})

    def suspended(self, pool: str) -> bool:
        """Say whether a pool waits for its disks, without waiting for it: a command may."""
        try:
            return (_KSTAT / pool / "state").read_text(encoding="ascii").strip() == "SUSPENDED"
        except OSError:
            return False

    def upkeep(self, pool: str) -> Upkeep:
        """Return what a pool does of itself at the moment."""
        return parse_status(self.run(["zpool", "status", pool]))

    def tree(self, name: str, properties: Iterable[str]) -> dict[str, dict[str, Value]]:
        """Return the properties of a dataset and of everything below it: datasets, snapshots, bookmarks.

        Empty when there is no such dataset.
        """
        rc, out, err = self.run.attempt(
            [
                *("zfs", "get", "-r", "-Hp", "-t", "filesystem,volume,snapshot,bookmark"),
                *("-o", "name,property,value,source", ",".join(properties), name),
            ]
        )
        if rc != 0:
            if "does not exist" in err:
                return {}
            raise ZtuneError(f"dataset {name}: {last_words(err)}")
        return parse_get(out)

    def values(self, names: Sequence[str], properties: Iterable[str]) -> dict[str, dict[str, Value]]:
        """Return properties of the datasets in ``names`` that exist."""
        _rc, out, err = self.run.attempt(
            ["zfs", "get", "-Hp", "-o", "name,property,value,source", ",".join(properties), *names]
        )
        if err and "does not exist" not in err:
            raise ZtuneError(f"zfs get: {last_words(err)}")
        return parse_get(out)

    def with_property(self, name: str) -> dict[str, str]:
        """Return every dataset of every pool where a user property is set locally, and its value."""
        out = self.run(
            ["zfs", "get", "-Hp", "-s", "local", "-t", "filesystem,volume", "-o", "name,value", name]
        )
        rows = parse_table(out, ("name", "value"))
        return {row["name"]: row["value"] for row in rows}
