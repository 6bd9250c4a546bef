"""The local target: trials on this host's own kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztune.errors import MissingError
from ztune.places import bundle
from ztune.places.about import said_of_host
from ztune.places.channel import STATE, Channel, ProcessChannel, need_zfs
from ztune.places.placing import Placing
from ztune.study import Layout, Study

_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class Local:
    """This host. The trial program runs as root: directly, or by ``sudo`` where that asks for no password."""

    name = "local"

    def __init__(self, placing: Placing, *, state: str = STATE) -> None:
        self.placing = placing
        self.state = state
        self._before: tuple[str, ...] = ()
        self._hello: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        """Make sure that we are root, or can be. Raises MissingError."""
        if os.geteuid() != 0:
            if shutil.which("sudo") is None or not _quiet_sudo():
                raise MissingError(
                    "trials on this host need root: run ztune as root, or allow sudo without a password; "
                    "--on lab needs neither"
                )
            self._before = ("sudo", "-n", "--")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays up."""

    def hello(self) -> dict[str, Any]:
        """Return what the trial program says of this host."""
        if self._hello is None:
            self._hello = said_of_host(self, "this host", bundle.build())
        return self._hello

    def put(self, local: Path) -> str:
        """Nothing to copy."""
        return str(local)

    def open(self, argv: list[str]) -> Channel:
        """Start a command as root."""
        words = [sys.executable, *argv[1:]] if argv[0] == "python3" else argv
        path = os.pathsep.join(dict.fromkeys([*os.environ.get("PATH", os.defpath).split(os.pathsep), *_SBIN]))
        return ProcessChannel([*self._before, *words], env={**os.environ, "PATH": path})

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        """Return the spec's place."""
        return self.placing.spec(layout)

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError, MissingError if the layout can't be tried here."""
        self.placing.check(study, layout)
        need_zfs("this host", self.hello(), layout)

    def describe(self) -> dict[str, Any]:
        """Return the environment record."""
        return {
            "kind": "local",
            "accel": self.hello().get("accel", "none"),
            "dilation": 1.0,
            "patience": 1.0,
            "place": self.placing.to_json(),
        }

    def tunables(self, layout: Layout) -> dict[str, int]:
        """None: a real host has its own."""
        return {}

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
