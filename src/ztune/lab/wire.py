"""The host's end of the guest's command port: frames over one stream, several commands at a time.

``lab/agent.c`` is the other end and lists the frames. Both directions of each command have a window of
``WINDOW`` bytes: a command that does not read its input, or a reader that does not take its output, holds up
nobody else.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum

from ztune.errors import ZtuneError

WINDOW = 256 * 1024
_HEADER = struct.Struct("<cBHII")
_PAYLOAD = 16 * 1024


class Frame(IntEnum):
    """Types of frames."""

    HELLO = 1
    SETUP = 2
    RUN = 3
    STDIN = 4
    EOF = 5
    CREDIT = 6
    SIGNAL = 7
    RESIZE = 8
    BOOTED = 16
    READY = 17
    FAILED = 18
    STDOUT = 19
    STDERR = 20
    EXIT = 21
    TAKEN = 22


RUN_PTY = 1
_ASK_S, _SILENT_S = 30.0, 600.0
"""How often a guest is asked whether it is there, and after how long without a word it counts as lost."""
_ASKED = 0xFFFFFFFF  # the number of no command


class GuestLost(ZtuneError):
    """The guest is gone, or never answered."""


def pack(frame: Frame, ident: int, payload: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    return _HEADER.pack(b"Z", frame, 0, ident, len(payload)) + payload


class Frames:
    """Reads frames from a stream of bytes; what is no frame is skipped."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Frame, int, bytes]]:
        """Yield the frames that ``data`` completes."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            magic, kind, _, ident, length = _HEADER.unpack_from(self._buffer, at)
            if magic != b"Z" or length > 1 << 20 or kind not in Frame._value2member_map_:
                at += 1
                continue
            if len(self._buffer) - at < _HEADER.size + length:
                break
            start = at + _HEADER.size
            payload = bytes(self._buffer[start : start + length])
            at = start + length
            yield Frame(kind), ident, payload
        del self._buffer[:at]


class GuestCommand:
    """One command in the guest. Its methods may be called from different threads."""

    def __init__(self, port: Port, ident: int) -> None:
        self._port = port
        self._ident = ident
        self._changed = threading.Condition()
        self._output: dict[Frame, deque[bytes]] = {Frame.STDOUT: deque(), Frame.STDERR: deque()}
        self._room = WINDOW
        self._status: int | None = None
        self._error = ""

    # --- called by the port's reader

    def receive(self, frame: Frame, payload: bytes) -> None:
        """Take a frame for this command."""
        with self._changed:
            if frame in self._output:
                self._output[frame].append(payload)
            elif frame is Frame.EXIT:
                self._status = struct.unpack("<I", payload)[0]
            elif frame is Frame.TAKEN:
                self._room += struct.unpack("<I", payload)[0]
            elif frame is Frame.FAILED:
                self._error = payload.decode(errors="replace")
            self._changed.notify_all()

    def lose(self, why: str) -> None:
        """The guest is gone."""
        with self._changed:
            if self._status is None and not self._error:
                self._error = why
            self._changed.notify_all()

    # --- for everybody

    def write(self, data: bytes, timeout: float | None = None) -> None:
        """Send ``data`` to its stdin; waits while the command doesn't read.

        What a command that has ended would have read is dropped. Raises Lost without a guest, TimeoutError
        after ``timeout`` seconds.
        """
        view = memoryview(data)
        while view:
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._room > 0 or self._status is not None or self._error, timeout
                ):
                    raise TimeoutError
                if self._status is not None:
                    return
                if self._error:
                    raise GuestLost(self._error)
                size = min(len(view), self._room, _PAYLOAD)
                self._room -= size
            self._port.send(Frame.STDIN, self._ident, bytes(view[:size]))
            view = view[size:]

    def end_of_input(self) -> None:
        """Close its stdin."""
        if self._status is None and not self._error:
            self._port.send(Frame.EOF, self._ident)

    def signal(self, number: int) -> None:
        """Send a signal to its process group; nothing if it has ended."""
        if self._status is None and not self._error:
            self._port.send(Frame.SIGNAL, self._ident, struct.pack("<I", number))

    def resize(self, rows: int, columns: int) -> None:
        """Tell the size of its terminal."""
        if self._status is None and not self._error:
            self._port.send(Frame.RESIZE, self._ident, struct.pack("<HH", rows, columns))

    def read(self, timeout: float | None = None) -> tuple[Frame, bytes] | None:
        """Return the next piece of output as (STDOUT or STDERR, bytes), None at its end.

        Raises Lost without a guest, TimeoutError after ``timeout`` seconds.
        """

        def ready() -> bool:
            return any(self._output.values()) or self._status is not None or bool(self._error)

        with self._changed:
            if not self._changed.wait_for(ready, timeout):
                raise TimeoutError
            frame = next((frame for frame, pieces in self._output.items() if pieces), None)
            if frame is None:
                if self._status is None:
                    raise GuestLost(self._error)
                return None
            data = self._output[frame].popleft()
        self._credit(len(data))
        return frame, data

    def read_stderr(self) -> bytes:
        """Return what stderr has now, without waiting."""
        with self._changed:
            data = b"".join(self._output[Frame.STDERR])
            self._output[Frame.STDERR].clear()
        self._credit(len(data))
        return data

    def _credit(self, size: int) -> None:
        if size and self._status is None and not self._error:
            # The command is over, or the guest: nobody waits for room.
            with contextlib.suppress(GuestLost):
                self._port.send(Frame.CREDIT, self._ident, struct.pack("<I", size))

    def poll(self) -> int | None:
        """Return the exit code (128 + signal if killed), None while it runs."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises Lost without a guest, TimeoutError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._status is not None or self._error, timeout):
                raise TimeoutError
            if self._status is None:
                raise GuestLost(self._error)
            return self._status


class Port:
    """The stream to the guest's agent. ``why`` words the loss of the guest, asked when it happens."""

    def __init__(self, stream: socket.socket, why: Callable[[], str] = lambda: "the guest is gone") -> None:
        self._stream = stream
        self._why = why
        self._sending = threading.Lock()
        self._lock = threading.Condition()
        self._commands: dict[int, GuestCommand] = {}
        self._next = 1
        self._said: list[tuple[Frame, bytes]] = []
        self.lost = ""
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="lab port", daemon=True)
        self._reader.start()

    def send(self, frame: Frame, ident: int = 0, payload: bytes = b"") -> None:
        """Send one frame. Raises Lost."""
        try:
            with self._sending:
                self._stream.sendall(pack(frame, ident, payload))
        except OSError:
            raise GuestLost(self.lost or self._why()) from None

    def expect(self, frame: Frame, timeout: float) -> bytes:
        """Wait for a frame that belongs to no command and return its payload.

        Raises Lost if the guest fails or dies, TimeoutError after ``timeout`` seconds.
        """

        def found() -> bool:
            return bool(self.lost) or any(kind in (frame, Frame.FAILED) for kind, _ in self._said)

        with self._lock:
            if not self._lock.wait_for(found, timeout):
                raise TimeoutError
            for index, (kind, payload) in enumerate(self._said):
                if kind is frame:
                    del self._said[index]
                    return payload
                if kind is Frame.FAILED:
                    raise GuestLost(payload.decode(errors="replace"))
            raise GuestLost(self.lost)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str = "/",
        terminal: tuple[int, int] | None = None,
    ) -> GuestCommand:
        """Start a command; with ``terminal`` = (rows, columns), on a terminal. Raises Lost."""
        if not argv:
            raise ValueError("no command")
        with self._lock:
            if self.lost:
                raise GuestLost(self.lost)
            ident = self._next
            self._next += 1
            command = self._commands[ident] = GuestCommand(self, ident)
        strings = [cwd, *argv, *(f"{key}={value}" for key, value in env.items())]
        if any("\0" in text for text in strings):
            raise ValueError("a command's words can't hold NUL")
        rows, columns = terminal or (0, 0)
        head = struct.pack("<IHHI", RUN_PTY if terminal else 0, rows, columns, len(argv))
        payload = head + b"".join(text.encode(errors="surrogateescape") + b"\0" for text in strings)
        if len(payload) > 1 << 19:
            raise ValueError("the command line is longer than 512 KiB")
        self.send(Frame.RUN, ident, payload)
        return command

    def watch(self) -> None:
        """From now on a guest that answers nothing for ten minutes counts as lost: its kernel is stuck."""
        threading.Thread(target=self._watch, name="lab watch", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(_ASK_S):
            if time.monotonic() - self._heard > _SILENT_S:
                self.lost = self.lost or (
                    f"the guest has not answered for {_SILENT_S / 60:g} minutes: its kernel is stuck"
                )
                with contextlib.suppress(OSError):
                    self._stream.shutdown(socket.SHUT_RDWR)
                return
            # Who sends for so long sends to one that does not read.
            if self._sending.acquire(timeout=_ASK_S):
                with contextlib.suppress(OSError):
                    self._stream.sendall(pack(Frame.HELLO, _ASKED))
                self._sending.release()

    def close(self) -> None:
        """End the reader; the guest ends itself when its host is gone."""
        self.lost = self.lost or "the guest was stopped"
        self._over.set()
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._stream.close()

    def _read(self) -> None:
        frames = Frames()
        while True:
            try:
                data = self._stream.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                break
            self._heard = time.monotonic()
            for frame, ident, payload in frames.feed(data):
                self._dispatch(frame, ident, payload)
        self._over.set()
        with self._lock:
            self.lost = self.lost or self._why()
            commands = list(self._commands.values())
            self._lock.notify_all()
        for command in commands:
            command.lose(self.lost)

    def _dispatch(self, frame: Frame, ident: int, payload: bytes) -> None:
        with self._lock:
            command = self._commands.get(ident) if ident else None
            if command is None:
                if ident == 0:
                    self._said.append((frame, payload))
                    self._lock.notify_all()
                return
            if frame in (Frame.EXIT, Frame.FAILED):
                del self._commands[ident]
        command.receive(frame, payload)
