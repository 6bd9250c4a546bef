"""Starts and stops shaped disks: one ``ztune-disk`` process each, served as NBD on a unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket as sockets
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ztune import native
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.study.profile import FlashProfile, HddProfile, cache_bytes

_CONTROL, _GUEST = ".control", ".guest"
_PATH_MAX = 107 - len(_CONTROL)
_STOP_S = 120.0


def arguments(
    profile: HddProfile | FlashProfile,
    size: int,
    *,
    dilation: float = 1.0,
    cache: bool = True,
    lazy: bool = False,
) -> list[str]:
    """Return the server's KEY=VALUE arguments for a disk of ``size`` bytes."""
    keys = ["read_mb_s", "write_mb_s", "overhead_us"]
    if isinstance(profile, HddProfile):
        keys += ["rpm", "seek_track_ms", "seek_avg_ms", "seek_full_ms", "flush_ms"]
    else:
        if profile.channels > 256:
            raise InputError(
                f"profile {profile.name}: the lab's disks have at most 256 channels, not {profile.channels}"
            )
        keys += ["channels", "read_us", "write_us", "flush_us"]
    return [
        f"size={size}",
        f"hdd={int(profile.rotational)}",
        f"cache={cache_bytes(profile) if cache else 0}",
        f"dilation={dilation!r}",
        f"lazy={int(lazy)}",
        f"protected={int(profile.cache == 'protected')}",
        f"ignores_flushes={int(profile.cache == 'ignores-flushes')}",
        *(f"{key}={getattr(profile, key)!r}" for key in keys),
    ]


class DiskServer:
    """A disk that runs. Use as a context manager, or call ``stop``."""

    def __init__(
        self, process: subprocess.Popen[str], socket: Path, backing: Path, size: int, log: IO[bytes]
    ) -> None:
        self.socket = socket
        """Unix socket of the NBD server; its only export has the empty name."""
        self.backing = backing
        self.size = size
        self._process = process
        self._log = log
        self._gone = False

    @property
    def uri(self) -> str:
        """The NBD URI of the disk."""
        return f"nbd+unix:///?socket={self.socket}"

    @property
    def pid(self) -> int:
        """Process id of the server; SIGKILL is a power cut."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still serves."""
        return not self._gone and self._process.poll() is None

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start or the last ``reset``; docs/disks.md names them.

        Raises ZtuneError if the server is gone.
        """
        return self._ask("stats")

    def reset(self) -> None:
        """Set the counters to zero. Raises ZtuneError."""
        self._ask("reset")

    def hurry(self) -> None:
        """From now on take no time: what is counted from here on says nothing. Raises ZtuneError."""
        self._ask("hurry")

    def cut(self) -> None:
        """Cut the disk's power, and give it back: connections are closed, what was in the cache is gone.

        Raises ZtuneError.
        """
        self._ask("cut")

    def stop(self) -> None:
        """End it in order: the cache is written to the backing file. Raises ZtuneError if it can't be."""
        if self._gone:
            return
        self._gone = True
        with contextlib.suppress(OSError):
            self._process.terminate()
        try:
            code = self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = -9
        said = self._clean()
        if code:
            raise ZtuneError(f"the shaped disk on {self.backing} did not end in order: {said or code}")

    def kill(self) -> None:
        """Kill the process: a power cut that stays."""
        self._gone = True
        self._process.kill()
        self._process.wait()
        self._clean()

    def _clean(self) -> str:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        for path in (self.socket, _control(self.socket), guest_socket(self.socket)):
            path.unlink(missing_ok=True)
        with self._log as log:
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
        return said.splitlines()[-1].removeprefix(f"{native.DISK.name}: ") if said else ""

    def _ask(self, command: str) -> dict[str, Any]:
        with sockets.socket(sockets.AF_UNIX) as wire:
            wire.settimeout(30)
            try:
                wire.connect(str(_control(self.socket)))
                wire.sendall(command.encode() + b"\n")
                data = b""
                while piece := wire.recv(1 << 16):
                    data += piece
                answer: dict[str, Any] = json.loads(data)
            except (OSError, ValueError) as error:
                raise ZtuneError(f"the shaped disk at {self.socket} does not answer: {error}") from None
        if "error" in answer:
            raise ZtuneError(f"the shaped disk at {self.socket}: {answer['error']}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            with contextlib.suppress(ZtuneError):
                self.stop()


def _control(socket: Path) -> Path:
    return socket.with_name(socket.name + _CONTROL)


def guest_socket(socket: Path) -> Path:
    """Return where the disk whose NBD is at ``socket`` is served to a guest's kernel, over vhost-user."""
    return socket.with_name(socket.name + _GUEST)


def start(
    profile: HddProfile | FlashProfile,
    size: int | None,
    backing: Path,
    socket: Path,
    *,
    dilation: float = 1.0,
    cache: bool = True,
    lazy: bool = False,
    program: Path | None = None,
    preexec: Callable[[], object] | None = None,
) -> DiskServer:
    """Start a disk and return it when it accepts connections.

    ``size``: bytes, default the profile's; the head's way over them is that of the whole profile.
    ``backing``: a sparse file, made if missing; an existing one must have that size. ``socket``: made, must
    not exist. ``dilation``: every time of the disk × this. ``cache``: with its volatile write cache;
    else every write is on the medium when acknowledged. ``lazy``: the cache is written out only when flushed
    or full: the most that a power cut may lose. It ends with this process, in order; ``kill`` and SIGKILL are
    power cuts.

    Raises InputError, MissingError without the program, ZtuneError if it does not start.
    """
    size = profile.size if size is None else size
    if not dilation > 0:
        raise InputError(f"the dilation of a disk is more than 0, not {dilation:g}")
    if len(os.fsencode(socket)) > _PATH_MAX:
        raise InputError(f"the path of a socket has at most {_PATH_MAX} bytes: {socket}")
    if any(path.exists() for path in (socket, _control(socket), guest_socket(socket))):
        raise InputError(f"{socket} exists already; a disk needs a socket of its own")
    argv = [
        str(program or native.DISK.find()),
        f"socket={socket}",
        f"control={_control(socket)}",
        f"guest={guest_socket(socket)}",
        f"file={backing}",
        *arguments(profile, size, dilation=dilation, cache=cache, lazy=lazy),
    ]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the server's, until it ends; it has no name to leave behind
    try:
        # Its stdin is a pipe that only this process holds: when this process ends, so does the disk.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            preexec_fn=preexec,
        )
    except OSError as error:
        log.close()
        raise MissingError(f"{argv[0]} can't be run: {error.strerror}") from None
    server = DiskServer(process, socket, backing, size, log)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        process.wait()
        server._gone = True
        raise ZtuneError(f"the shaped disk does not start: {server._clean() or 'it says nothing'}")
    return server
