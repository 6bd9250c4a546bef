"""A guest in user mode (UML): a kernel that runs as an ordinary process, with disks over vhost-user.

Its code, OpenZFS's included, runs on this host's processors as it is, without KVM and without emulation. Its
programs do too, but each system call and page fault of theirs is passed on by ptrace(2), which costs some
microseconds. It has one processor. Documentation/virt/uml/user_mode_linux_howto_v2.rst of the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import MissingError, ZtuneError
from ztune.lab import walled
from ztune.lab.wire import Port
from ztune.onhost.host.process import end_group, ends_with_us, ends_within
from ztune.packages import install_command

DAEMON = "qemu-storage-daemon"
_EXPORT_S = 30.0
_MAPPINGS = Path("/proc/sys/vm/max_map_count")
_VIRTIO_BLOCK = 2
"""What virtio calls a disk: 5.2 of its specification, version 1.2."""


@dataclass(frozen=True)
class GuestDisk:
    """A disk of a guest in user mode."""

    serial: str
    source: Path
    """Unix socket where it is served over vhost-user, or a plain file."""
    rotation: int = 1
    """Revolutions per minute, 1 for a disk without."""


def check_rights() -> None:
    """Raise MissingError for who may not have a guest in user mode."""
    if os.geteuid() != 0:
        raise MissingError(
            "a guest in user mode takes root, to be kept from writing this host's files: run ztune as root; "
            "without it the lab's guest is emulated"
        )


class Uml:
    """A running kernel in user mode, and the disks that it has from its beginning to its end."""

    def __init__(
        self,
        kernel: Path,
        initrd: Path,
        memory: int,
        console: Path,
        folder: Path,
        disks: Sequence[GuestDisk],
        parameters: Mapping[str, str],
    ) -> None:
        """Start it. ``memory``: MiB. ``console``: for what it says. ``folder``: for its sockets, its own.

        Raises MissingError where a program is not there, ZtuneError if a disk can't be served.
        """
        self.console = console
        self._disks: list[subprocess.Popen[bytes]] = []
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            words = [f"virtio_uml.device={self._serve(disk, folder)}:{_VIRTIO_BLOCK}" for disk in disks]
            argv = [
                *(sys.executable, "-I", "-B", walled.__file__, str(folder), "--"),
                *(str(kernel), f"mem={memory}M", f"initrd={initrd}", f"uml_dir={folder}/"),
                *("con=null", "con0=null,fd:1", "ztune.port=/dev/ttyS0", f"ssl0=fd:{theirs.fileno()}"),
                *(f"{key}={value}" for key, value in parameters.items()),
                *words,
            ]
            with self.console.open("wb") as out:
                self.process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, "TMPDIR": walled.MEMORY},
                )
        except BaseException:
            ours.close()
            self._end_disks()
            raise
        finally:
            theirs.close()
        self.port = Port(ours, self.last_words)

    def _serve(self, disk: GuestDisk, folder: Path) -> Path:
        """Return the socket of a disk that is served over vhost-user; a plain file is served so first."""
        if disk.source.is_socket():
            return disk.source
        program = shutil.which(DAEMON)
        if program is None:
            raise MissingError(f"a guest in user mode needs {DAEMON}: {install_command('qemu')}")
        path = folder / f"{len(self._disks)}"
        file = {"driver": "file", "filename": str(disk.source), "discard": "unmap"}
        node = {
            "node-name": "disk",
            "discard": "unmap",
            "driver": "raw",
            "file": file,
            "cache": {"no-flush": True},
        }
        export = {
            "type": "vhost-user-blk",
            "id": "export",
            "node-name": "disk",
            "writable": True,
            "addr": {"type": "unix", "path": str(path)},
        }
        words = [*ends_with_us(), program, "--blockdev", json.dumps(node), "--export", json.dumps(export)]
        with (folder / f"{len(self._disks)}.err").open("wb") as errors:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
            )
        self._disks.append(process)
        until = time.monotonic() + _EXPORT_S
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                said = (folder / f"{len(self._disks) - 1}.err").read_text(errors="replace").strip()
                raise ZtuneError(f"{DAEMON} does not serve the disk {disk.serial}: {said or 'no word'}")
            time.sleep(0.01)
        return path

    def last_words(self) -> str:
        """Return why the guest is gone."""
        ends_within(self.process, 2)
        with contextlib.suppress(OSError):
            lines = [line for line in self.console.read_text(errors="replace").splitlines() if line.strip()]
            panic = [line for line in lines if "panic" in line.lower() or "VERIFY" in line]
            if any("map_memory" in line and "err = -12" in line for line in panic):
                # Pieces of the guest's memory are mappings of a process here (arch/um/kernel/physmem.c).
                return (
                    "the guest in user mode has ended: its memory is in more pieces than this host maps for "
                    f"one process ({_MAPPINGS} is {_MAPPINGS.read_text().strip()}); raise that, for example "
                    "by `sysctl vm.max_map_count=1048576`"
                )
            if panic or lines:
                return f"the guest in user mode has ended: {(panic or lines[-1:])[0].strip()}"
        return "the guest in user mode has ended"

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        end_group(self.process)
        self._end_disks()
        self.port.close()

    def quit(self) -> None:
        """End it; what it has synced is on its disks."""
        self.kill()

    def _end_disks(self) -> None:
        for process in self._disks:
            end_group(process, 10.0)
        self._disks.clear()
