"""Real sshd on ports of this machine, each a host: well, hanging, without Python."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
WHY_NOT = None if SSHD and os.geteuid() == 0 else "needs sshd (openssh-server) and root"
_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 400
{more}
"""
_CLIENT = """
Host *
  HostName 127.0.0.1
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class SshdHosts:
    """Starts sshd, and has a client that knows its key first in PATH."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
            )
        (folder / "config").write_text(_CLIENT.format(folder=folder))
        self.bin = folder / "bin"
        self.bin.mkdir()
        client = self.bin / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        client.chmod(0o755)

    def start(self, more: str = "") -> int:
        """Start one sshd and return its port. ``more``: further lines of its configuration."""
        port = free_port()
        config = self.folder / f"sshd-{port}"
        config.write_text(_CONFIG.format(port=port, folder=self.folder, more=more))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        assert SSHD is not None
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        for _ in range(200):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return port
            time.sleep(0.05)
        raise AssertionError("sshd did not start")

    def script(self, name: str, text: str) -> Path:
        """Write a program for the other side."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def deaf(self) -> int:
        """Return a port that takes connections and says nothing."""
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.listen(64)
        self._stack.callback(one.close)
        return int(one.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait()


@contextmanager
def sshd_hosts(folder: Path) -> Iterator[SshdHosts]:
    with ExitStack() as stack:
        yield SshdHosts(folder, stack)
