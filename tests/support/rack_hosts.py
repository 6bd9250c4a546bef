"""Hosts for trials on this one machine: each a real sshd in namespaces of its own (network, processes,
mounts, name), joined to a network that nobody else has. They share the kernel, and so its loop devices.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from sshd_hosts import SSHD
from sshd_hosts import WHY_NOT as NO_SSHD

_NEEDED = ("unshare", "nsenter", "ip", "mkfs.ext4", "losetup", "ssh-keygen")
_PARTS = ("lib", "root", "srv")
"""What a host has for itself below its directory here: /var/lib, /root and /srv there."""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _why_not() -> str | None:
    if NO_SSHD is not None:
        return NO_SSHD
    if missing := [name for name in _NEEDED if shutil.which(name, path=_PATH) is None]:
        return f"needs {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if subprocess.run(["unshare", "-numpf", "true"], capture_output=True, check=False).returncode != 0:
        return "needs namespaces of its own"
    return None


WHY_NOT = _why_not()
_SERVER = """
ListenAddress 0.0.0.0
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
"""
_CLIENT = """
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
# A kernel of another name, and disks and a home of its own, are what a host has beside its network.
_HOST = """
hostname {name}
mount --bind {own}/lib /var/lib
mount --bind {own}/root /root
mount --bind {own}/srv /srv
{more}
while ! ip address show dev eth0 2>/dev/null | grep -q inet; do sleep 0.02; done
exec {kernel} {sshd} -D -e -f {folder}/sshd_config
"""


class RackHost:
    """One host: ``own`` is what it has for itself."""

    def __init__(self, rack: RackHosts, name: str, number: int) -> None:
        self.rack, self.name, self.number = rack, name, number
        self.own = rack.folder / name
        self.process: subprocess.Popen[bytes] | None = None
        self._furnish()

    def _furnish(self) -> None:
        for part in _PARTS:
            (self.own / part).mkdir(parents=True, exist_ok=True)
            (self.own / part).chmod(0o755)
        (self.own / "root").chmod(0o700)
        (self.own / "srv" / "theirs").write_text("a file of the user's")

    def renew(self) -> None:
        """Switch it off if it is on, and on again with empty disks, whatever was on them."""
        if self.process is not None:
            self.kill()
        self.detach()
        for part in _PARTS:
            shutil.rmtree(self.own / part, ignore_errors=True)
        self._furnish()
        self.start()

    def start(self, more: str = "", kernel: str = "") -> None:
        """Start it. ``more``: commands in its namespaces first; ``kernel``: an option of setarch."""
        script = _HOST.format(
            name=self.name,
            own=self.own,
            folder=self.rack.folder,
            sshd=SSHD,
            kernel=f"setarch {os.uname().machine} {kernel}" if kernel else "",
            more=more,
        )
        with (self.own / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc",
                 "--kill-child=KILL", "sh", "-ec", script],
                env={**os.environ, "PATH": _PATH}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        pid = self.pid
        here, net = f"zt{self.number}", f"10.99.{self.number}"
        # The kernel takes its time to remove that of a host that was switched off just now.
        subprocess.run(
            ["nsenter", "-t", str(self.rack.client.pid), "-n", "ip", "link", "del", here],
            capture_output=True, env={**os.environ, "PATH": _PATH}, check=False,
        )  # fmt: skip
        run(["ip", "link", "add", here, "netns", str(self.rack.client.pid), "type", "veth",
             "peer", "name", "eth0", "netns", str(pid)])  # fmt: skip
        run(["nsenter", "-t", str(self.rack.client.pid), "-n", "sh", "-c",
             f"ip address add {net}.1/24 dev {here}; ip link set {here} up"])  # fmt: skip
        run(["nsenter", "-t", str(pid), "-n", "sh", "-c",
             f"ip link set lo up; ip link set eth0 up; ip address add {net}.2/24 dev eth0"])  # fmt: skip
        self._await()

    @property
    def pid(self) -> int:
        """The first process in its namespaces."""
        assert self.process is not None
        until = time.monotonic() + 30
        while time.monotonic() < until:
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error, OSError):
                    if Path(f"/proc/{child.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink():
                        return child.pid
            time.sleep(0.01)
        raise AssertionError(f"{self.name} did not start: {(self.own / 'log').read_text()}")

    def _await(self) -> None:
        for _ in range(200):
            if self.answers():
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} does not answer: {(self.own / 'log').read_text()}")

    def answers(self) -> bool:
        """Whether it can be reached, and runs what it is told to."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = [str(self.rack.bin / "ssh"), self.name, "true"]
            return subprocess.run(words, capture_output=True, timeout=10, check=False).returncode == 0
        return False

    def kill(self) -> None:
        """Switch it off: all its processes and mounts are gone at once, its disks stay."""
        assert self.process is not None
        with contextlib.suppress(psutil.Error, AssertionError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None

    def detach(self) -> None:
        """Take the loop devices away of a host that is off: on a file that is gone, one would stay."""
        for device in self._loops():
            run(["losetup", "-d", device])

    def cut(self) -> None:
        """Pull the cable."""
        run(
            [
                "nsenter",
                "-t",
                str(self.rack.client.pid),
                "-n",
                "ip",
                "link",
                "set",
                f"zt{self.number}",
                "down",
            ]
        )

    def mend(self) -> None:
        """Plug it in again."""
        run(["nsenter", "-t", str(self.rack.client.pid), "-n", "ip", "link", "set", f"zt{self.number}", "up"])

    def inside(self) -> list[psutil.Process]:
        """Return the processes on it that are not its sshd's."""
        found = []
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                same = Path(f"/proc/{process.pid}/ns/pid").readlink() == space
                if same and "sshd" not in process.name():
                    found.append(process)
        return found

    def running(self) -> list[psutil.Process]:
        """Return the trial programs on it, also one that is being copied there."""
        return [
            p for p in self.inside() if "ztune-trial" in words_of(p) and not words_of(p).startswith("sh ")
        ]

    def hang(self, *, whole: bool = True, on: bool = True) -> None:
        """Stop all of its processes, or its trial alone; or let them go on."""
        found = psutil.Process(self.pid).children(recursive=True) if whole else self.running()
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend() if on else process.resume()

    def left(self) -> list[str]:
        """Return what is there of ztune's: files, processes, loop devices."""
        found = [str(path) for part in _PARTS for path in (self.own / part).rglob("*")]
        found = [path for path in found if not path.endswith(("/srv/theirs", "/root/.cache"))]
        found += self._loops().values()
        # Whose it was can't be told once its file is gone; no host may leave such a device.
        found += [
            file for _, _, file in _devices() if file.startswith("/srv/") and file.endswith("(deleted)")
        ]
        if self.process is not None:
            found += [words for p in self.inside() if "ztune" in (words := words_of(p))]
        return found

    def _loops(self) -> dict[str, str]:
        """Return the loop devices on files of its disks: device → file.

        A file's path says nothing, since all hosts have a ``/srv``: by its numbers it is one of this host's.
        """
        mine = set()
        for path in (self.own / "srv").rglob("*"):
            with contextlib.suppress(OSError):
                mine.add(_numbers(path.stat()))
        return {name: file for name, numbers, file in _devices() if numbers in mine}


def _numbers(status: os.stat_result) -> tuple[str, int]:
    """Return what tells a file from all others: its file system's number, and its own."""
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}", status.st_ino


def _devices() -> list[tuple[str, tuple[str, int], str]]:
    """Return each loop device of this machine: its name, and the numbers and the path of its file."""
    asked = ["losetup", "--list", "--json", "--output", "NAME,BACK-MAJ:MIN,BACK-INO,BACK-FILE"]
    text = subprocess.run(asked, capture_output=True, text=True, check=True, env={"PATH": _PATH}).stdout
    found = json.loads(text)["loopdevices"] if text else []
    return [
        (one["name"], (str(one["back-maj:min"]).strip(), int(one["back-ino"] or 0)), one["back-file"] or "")
        for one in found
    ]


class RackHosts:
    """A network of hosts ``db1``, ``db2`` …, and an ``ssh`` that reaches them, first in ``bin``."""

    def __init__(self, folder: Path, stack: ExitStack, count: int) -> None:
        self.folder = folder
        for name in ("host_key", "user_key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
        (folder / "sshd_config").write_text(_SERVER.format(folder=folder))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.client = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        stack.callback(_end, self.client)
        self.hosts = [RackHost(self, f"db{n}", n) for n in range(1, count + 1)]
        lines = [f"Host {h.name}\n  HostName 10.99.{h.number}.2\n" for h in self.hosts]
        (folder / "config").write_text("".join(lines) + _CLIENT.format(folder=folder))
        self.bin = folder / "bin"
        self.bin.mkdir()
        client = self.bin / "ssh"
        # A lost host is noticed in seconds instead of a minute: what is given first counts.
        client.write_text(
            f"#!/bin/sh\nexec nsenter -t {self.client.pid} -n {shutil.which('ssh')} -F {folder}/config "
            '-o ServerAliveInterval=1 -o ServerAliveCountMax=3 -o ConnectTimeout=3 "$@"\n'
        )
        client.chmod(0o755)
        for host in self.hosts:
            stack.callback(self._off, host)
            host.start()

    @staticmethod
    def _off(host: RackHost) -> None:
        if host.process is not None:
            host.kill()
        host.detach()

    def file(self, path: Path) -> Path:
        """Write a file for ``--on`` with all hosts, whose disks are files below /srv there."""
        path.write_text(
            "".join(f'[[host]]\non = "ssh://{h.name}"\nfiles = "/srv"\nsize = "400M"\n\n' for h in self.hosts)
        )
        return path


def words_of(process: psutil.Process) -> str:
    """Return its command line; empty if it has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except (psutil.Error, OSError):
        return ""


def run(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PATH": _PATH})


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def rack_hosts(folder: Path, count: int = 3) -> Iterator[RackHosts]:
    with ExitStack() as stack:
        yield RackHosts(folder, stack, count)
