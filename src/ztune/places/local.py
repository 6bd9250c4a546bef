"""The local target: trials on this host's own kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ztune.errors import MissingError
from ztune.places.channel import STATE, Channel, ProcessChannel
from ztune.places.placing import Placing
from ztune.places.users_host import UsersHost

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class Local(UsersHost):
    """This host. The trial program runs as root: directly, or by ``sudo`` where that asks for no password."""

    kind = "local"

    def __init__(self, placing: Placing, *, state: str = STATE) -> None:
        super().__init__("local", "this host", placing, state)

    def __enter__(self) -> Self:
        """Make sure that we are root, or can be. Raises MissingError."""
        if os.geteuid() != 0:
            if shutil.which("sudo") is None or not _quiet_sudo():
                raise MissingError(
                    "--on local needs root: run ztune as root, or allow sudo without a password; "
                    "--on mount and --on lab need neither"
                )
            self._before = ("sudo", "-n", "--")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays up."""

    def put(self, local: Path) -> str:
        """Nothing to copy."""
        return str(local)

    def open(self, argv: list[str]) -> Channel:
        """Start a command as root."""
        words = [sys.executable, *argv[1:]] if argv[0] == "python3" else argv
        path = os.pathsep.join(dict.fromkeys([*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SBIN]))
        return ProcessChannel([*self._before, *words], env={**os.environ, "PATH": path})

    def shared(self, path: Path) -> str | None:
        """Everything of this host can be read here."""
        return str(path)


def _quiet_sudo() -> bool:
    try:
        done = subprocess.run(
            ["sudo", "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
