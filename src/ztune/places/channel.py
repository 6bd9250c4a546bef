"""How a target gets bytes to and from the trial program: a place, and a running command there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host.process import ends_within
from ztune.onhost.properties import PROPERTIES
from ztune.study import Layout, Study

STATE = "/var/lib/ztune"
"""Where root's trials keep their journals on a host: nobody else can make it, or write on the way to it."""
OLD_STATE = "/var/tmp/ztune"
"""Where older versions kept them, in a directory that all may write: what is left there is still cleaned, as
far as nobody but root could have written it.
"""
CLOSE_S = 60.0
_MOST_LINE = 64 << 20
"""Bytes of a line: a result has its series beside it, so that it is far shorter."""
_SAID = 2000
"""Bytes of a line of stderr."""


class Lost(ZtuneError):
    """The connection, or the machine at its other end, is gone."""


class Channel(Protocol):
    """One running command at a target."""

    def send(self, line: str) -> None:
        """Send one line to its standard input. Raises Lost."""
        ...

    def lines(self) -> Iterator[str]:
        """Yield the lines of its standard output until it ends. Raises Lost if the other end is gone."""
        ...

    def stderr_tail(self) -> str:
        """Return the last of what it said to people."""
        ...

    def wait(self) -> int:
        """Return its exit code; negative: killed by that signal. Raises Lost."""
        ...

    def close(self) -> None:
        """End its standard input, wait up to a minute, then kill it."""
        ...


class Place(Protocol):
    """A target that runs trials."""

    name: str
    """As users type it: lab, local, ssh://host."""
    state: str
    """The directory there for journals and work directories."""

    def __enter__(self) -> Self:
        """Bring it up. Raises MissingError, InputError, ZtuneError."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Bring it down. It can be brought up again."""
        ...

    def about_host(self) -> dict[str, Any]:
        """Return what the trial program says of the host: versions, memory, tools."""
        ...

    def put(self, local: Path) -> str:
        """Copy a file there, unless it is there already, and return its path there."""
        ...

    def open(self, argv: list[str]) -> Channel:
        """Start a command there, with the rights that a trial needs. ``python3`` means one that is new
        enough.
        """
        ...

    def place_spec(self, layout: Layout) -> dict[str, Any]:
        """Return the spec's ``place`` for this layout. Called once before each trial of it."""
        ...

    def check(self, study: Study, layout: Layout) -> None:
        """Raise InputError if this layout can't be tried there."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the environment record: ``kind``, ``accel``, ``dilation``, ``patience``, profiles of disks
        …
        """
        ...

    def tunables(self, layout: Layout) -> dict[str, int]:
        """Return module parameters that a layout gets there unless it sets them itself."""
        ...

    def disks_worked(self) -> dict[str, float]:
        """Return for how many ms each disk has been at work by its own count, by its path there.

        As slowed down as the disk is; its beginning is any. Empty where the disks are none of ztune's.
        """
        return {}

    def measured(self) -> None:
        """The trial has measured: what is left, such as to prove the job, may be quicker than its disks."""
        ...

    def shared(self, path: Path) -> str | None:
        """Return where ``path`` of this host can be read there, or None if it can't."""
        ...


class ProcessChannel:
    """A channel to a child process of ours."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        lost: Callable[[int, str], str | None] = lambda _code, _said: None,
    ) -> None:
        """Start ``argv``. ``lost``: from exit code and stderr, a sentence if that means a lost connection."""
        self._lost = lost
        try:
            # A session of its own: Ctrl-C is ours to hand on, as a "stop" that lets it tidy up.
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=None if env is None else dict(env),
            )
        except OSError as error:
            raise MissingError(f"{argv[0]} can't be run: {error.strerror}") from None
        self._said: deque[str] = deque(maxlen=40)
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError):  # closed under us, at the end
            while raw := self._process.stderr.readline(_SAID):
                self._said.append(raw.decode(errors="replace").rstrip("\n"))

    def send(self, line: str) -> None:
        """Send one line. A program that no longer reads has said why, or ``wait`` tells."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line.removesuffix("\n").encode() + b"\n")
            self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """Yield its lines. Raises Lost."""
        assert self._process.stdout is not None
        while raw := self._process.stdout.readline(_MOST_LINE):
            if len(raw) == _MOST_LINE:
                raise Lost(f"a line of its answer is longer than {_MOST_LINE >> 20} MiB")
            yield raw.decode(errors="replace").rstrip("\n")
        self.wait()

    def stderr_tail(self) -> str:
        """Return its last lines of stderr."""
        if self._process.poll() is not None:
            self._reader.join(2.0)
        return "\n".join(self._said)

    def wait(self) -> int:
        """Return its exit code. Raises Lost."""
        code = self._process.wait()
        sentence = self._lost(code, self.stderr_tail())
        if sentence is not None:
            raise Lost(sentence)
        return code

    def close(self) -> None:
        """End its stdin, wait, kill."""
        with contextlib.suppress(BrokenPipeError, ValueError, OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        # What it still says must be read, or it would wait for us while we wait for it.
        drain = threading.Thread(target=self._drain, daemon=True)
        drain.start()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            ends_within(self._process, 5.0)
        drain.join(2.0)

    def _drain(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            while self._process.stdout.read1(65536):  # type: ignore[attr-defined]
                pass


def states(place: Place) -> list[str]:
    """Return where trials at ``place`` may have left something, its own state directory last."""
    return [OLD_STATE, place.state] if place.state == STATE else [place.state]


def ask(place: Place, argv: list[str]) -> tuple[int, str, str]:
    """Run a short command at ``place`` and return exit code, stdout and the end of stderr. Raises Lost."""
    channel = place.open(argv)
    try:
        out = "\n".join(channel.lines())
        return channel.wait(), out, channel.stderr_tail().strip()
    finally:
        channel.close()


def require_known(where: str, version: str, layout: Layout) -> None:
    """Raise InputError if OpenZFS ``version``, which ``where`` has, lacks a property or a value of ``layout``
    and does not act by it."""
    of_zfs = {pool.name for pool in layout.pools if pool.filesystem == "zfs"}
    for dataset in layout.datasets:
        for name, value in dataset.properties.items() if dataset.pool in of_zfs else ():
            known = PROPERTIES.get(name)
            if known is None or (dataset.volume is not None and not known.volumes):
                continue
            if since := known.lacking(value, version):
                raise InputError(
                    f'layout "{layout.name}": {name}={value} needs OpenZFS {since} or later; {where} has '
                    f"{version}"
                )


def need_zfs(where: str, host: Mapping[str, Any], layout: Layout) -> None:
    """Raise MissingError, InputError if ``layout`` needs something that ``host`` does not have.

    ``host``: what the trial program says of it.
    """
    tools = host.get("tools") or {}
    kinds = {pool.filesystem for pool in layout.used_pools()}
    if "zfs" in kinds:
        if not host.get("openzfs"):
            raise MissingError(
                f"{where} has no OpenZFS kernel module loaded; load it (modprobe zfs) or use --on lab"
            )
        for tool in ("zfs", "zpool"):
            if not tools.get(tool):
                raise MissingError(f"{where} has no {tool} command; install OpenZFS's tools there")
        require_known(where, str(host["openzfs"].get("kernel") or ""), layout)
    for kind in sorted(kinds - {"zfs"}):
        if not tools.get(f"mkfs.{kind}"):
            raise InputError(f'layout "{layout.name}" needs mkfs.{kind}, which {where} does not have')
