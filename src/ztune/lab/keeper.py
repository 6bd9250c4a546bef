"""Keeps a guest running between commands: the process behind ``ztune lab up``, and how the others reach it.

The keeper owns the guest and answers at a unix socket in the lab's folder, with the frames of the guest's own
port: to a client it looks like the guest. When it dies, the guest ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ztune import paths
from ztune.errors import InputError, ZtuneError
from ztune.lab.guest import ENVIRONMENT, Guest
from ztune.lab.image import matches
from ztune.lab.wire import RUN_PTY, WINDOW, Frame, Frames, GuestCommand, GuestLost, Port, pack

TERMINAL = {"TERM": os.environ.get("TERM", "linux"), "PS1": "lab:\\w# "}
_START_S = 600.0
_ANSWER_S = 90.0


@contextlib.contextmanager
def _address() -> Iterator[str]:
    """The socket's name by way of a descriptor: a path of a socket may have 107 bytes only."""
    folder = os.open(paths.lab(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/up.sock"
    finally:
        os.close(folder)


# --- for clients
# -----------------------------------------------------------------------------------------------------


class RunningGuest:
    """The guest that is up, as a client sees it."""

    def __init__(self, stream: socket.socket) -> None:
        self.port = Port(stream, lambda: "the guest that was up has ended")
        self.port.send(Frame.HELLO, 0, b"about")
        try:
            self.about: dict[str, Any] = json.loads(self.port.expect(Frame.HELLO, _ANSWER_S))
        except TimeoutError:
            raise ZtuneError("the guest that is up does not answer; `ztune lab down` ends it") from None

    def require(self, openzfs: str) -> None:
        """Raise InputError if its OpenZFS is not ``openzfs``."""
        if not matches(self.about["openzfs"], openzfs):
            raise InputError(
                f"the guest that is up has OpenZFS {self.about['openzfs']}, not {openzfs}; "
                f"end it with `ztune lab down`, or use --fresh"
            )

    def run(self, argv: Sequence[str], terminal: bool = False) -> int:
        """Run a command with this process's stdin, stdout, stderr; return its exit code."""
        if terminal:
            env = {**ENVIRONMENT, **TERMINAL}
            return relay_terminal(self.port.start(argv, env, terminal=terminal_size()))
        return relay(self.port.start(argv, ENVIRONMENT))


def connect() -> RunningGuest | None:
    """Return the guest that is up, None without one."""
    stream = socket.socket(socket.AF_UNIX)
    with _address() as address:
        try:
            stream.connect(address)
        except OSError:
            stream.close()
            return None
    return RunningGuest(stream)


def start(openzfs: str | None, memory: int, net: bool, progress: Callable[[str], None]) -> dict[str, Any]:
    """Start a keeper with a guest and return what it says of itself.

    Raises InputError if one is up, ZtuneError if the guest does not start.
    """
    running = connect()
    if running is not None:
        raise InputError(
            f"a guest with OpenZFS {running.about['openzfs']} is up already; `ztune lab down` ends it"
        )
    request = json.dumps({"openzfs": openzfs, "memory": memory, "net": net})
    process = subprocess.Popen(
        [sys.executable, "-m", "ztune.lab.keeper", request],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        cwd="/",
    )
    assert process.stdout is not None
    timer = threading.Timer(_START_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            said = json.loads(line)
            if "progress" in said:
                progress(said["progress"])
            elif "error" in said:
                error = ZtuneError(said["error"])
                error.exit_code = said["code"]
                raise error
            else:
                assert isinstance(said, dict)
                return said
    finally:
        timer.cancel()
        process.stdout.close()
    raise ZtuneError("the keeper of the guest ended without a message")


def stop() -> bool:
    """End the guest that is up, and return whether there was one. Nothing of it is there afterwards."""
    running = connect()
    if running is None:
        return False
    try:
        # Held while it is connected: its number can't become another's.
        keeper = os.pidfd_open(int(running.about["pid"]))
    except ProcessLookupError:
        running.port.close()
        return True
    patience = _ANSWER_S
    try:
        running.port.send(Frame.HELLO, 0, b"down")
        running.port.expect(Frame.READY, _ANSWER_S)
    except TimeoutError:
        patience = 0.0
    except GuestLost:
        pass
    running.port.close()
    # Until it has ended the next `up` would find a guest that is up.
    if not select.select([keeper], [], [], patience)[0]:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(keeper, signal.SIGKILL)
        select.select([keeper], [], [], _ANSWER_S)
    os.close(keeper)
    return True


def relay(command: GuestCommand) -> int:
    """Connect a command with this process's stdin, stdout and stderr; return its exit code. Raises Lost."""

    def feed() -> None:
        with contextlib.suppress(OSError, GuestLost):
            while data := os.read(0, 1 << 16):
                command.write(data)
            command.end_of_input()

    def forward(number: int, _: FrameType | None) -> None:
        command.signal(number)

    before = {
        number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    threading.Thread(target=feed, daemon=True).start()
    try:
        while (piece := command.read()) is not None:
            stream = sys.stderr.buffer if piece[0] is Frame.STDERR else sys.stdout.buffer
            stream.write(piece[1])
            stream.flush()
    except BrokenPipeError:
        command.signal(signal.SIGKILL)
        # Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return command.wait()


def terminal_size() -> tuple[int, int]:
    """Return (rows, columns) of this process's terminal."""
    size = shutil.get_terminal_size()
    return size.lines, size.columns


def relay_terminal(command: GuestCommand) -> int:
    """As ``relay`` for a command on a terminal: this process's is made raw meanwhile."""

    def resized(_: int, __: FrameType | None) -> None:
        command.resize(*terminal_size())

    saved = termios.tcgetattr(0)
    before = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
        return relay(command)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
        signal.signal(signal.SIGWINCH, before)


# --- the keeper
# --------------------------------------------------------------------------------------------------------


class _Client:
    """One connection to the keeper: its commands end with it."""

    def __init__(self, stream: socket.socket, guest: Guest, about: bytes, down: threading.Event) -> None:
        self._stream = stream
        self._guest = guest
        self._about = about
        self._down = down
        self._sending = threading.Lock()
        self._commands: dict[int, GuestCommand] = {}
        self._credit: dict[int, int] = {}
        self._input: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._changed = threading.Condition()

    def serve(self) -> None:
        frames = Frames()
        with contextlib.suppress(OSError):
            while data := self._stream.recv(1 << 18):
                for frame, ident, payload in frames.feed(data):
                    self._handle(frame, ident, payload)
        for command in list(self._commands.values()):
            with contextlib.suppress(GuestLost):
                command.signal(signal.SIGHUP)
                command.signal(signal.SIGKILL)
        with self._changed:
            self._credit.clear()
            self._changed.notify_all()
        self._stream.close()

    def _handle(self, frame: Frame, ident: int, payload: bytes) -> None:
        command = self._commands.get(ident)
        with contextlib.suppress(GuestLost):
            if frame is Frame.HELLO and payload == b"down":
                self._down.set()
                self._guest.close()
                self._send(Frame.READY, 0, b"down")
            elif frame is Frame.HELLO:
                self._send(Frame.HELLO, 0, self._about)
            elif frame is Frame.RUN:
                threading.Thread(target=self._run, args=(ident, payload), daemon=True).start()
                with self._changed:  # what follows belongs to a command that exists
                    self._changed.wait_for(lambda: ident in self._credit, 30)
            elif frame is Frame.CREDIT:
                with self._changed:
                    self._credit[ident] = self._credit.get(ident, 0) + struct.unpack("<I", payload)[0]
                    self._changed.notify_all()
            elif command is None:
                return
            elif frame is Frame.STDIN:
                # By a thread of its own, as it may wait; the client's window bounds the queue.
                self._input[ident].put(payload)
            elif frame is Frame.EOF:
                self._input[ident].put(None)
            elif frame is Frame.SIGNAL:
                command.signal(struct.unpack("<I", payload)[0])
            elif frame is Frame.RESIZE:
                command.resize(*struct.unpack("<HH", payload))

    def _run(self, ident: int, payload: bytes) -> None:
        flags, rows, columns, count = struct.unpack_from("<IHHI", payload)
        self._input[ident] = queue.SimpleQueue()
        strings = [text.decode(errors="surrogateescape") for text in payload[12:].split(b"\0")[:-1]]
        environment = dict(text.split("=", 1) for text in strings[1 + count :])
        terminal = (rows, columns) if flags & RUN_PTY else None
        try:
            command = self._guest.start(
                strings[1 : 1 + count], env=environment, cwd=strings[0], terminal=terminal
            )
            self._commands[ident] = command
            threading.Thread(target=self._feed, args=(ident, command), daemon=True).start()
            with self._changed:
                self._credit.setdefault(ident, WINDOW)
                self._changed.notify_all()
            while (piece := command.read()) is not None:
                frame, data = piece
                with self._changed:
                    self._changed.wait_for(lambda: self._credit.get(ident, 1) > 0)
                    if ident in self._credit:
                        self._credit[ident] -= len(data)
                self._send(frame, ident, data)
            self._send(Frame.EXIT, ident, struct.pack("<I", command.wait()))
        except ZtuneError as error:
            with contextlib.suppress(GuestLost):
                self._send(Frame.FAILED, ident, str(error).encode())
        finally:
            self._commands.pop(ident, None)
            self._input[ident].put(None)

    def _feed(self, ident: int, command: GuestCommand) -> None:
        with contextlib.suppress(GuestLost):
            while (data := self._input[ident].get()) is not None:
                command.write(data)
                self._send(Frame.TAKEN, ident, struct.pack("<I", len(data)))
            command.end_of_input()

    def _send(self, frame: Frame, ident: int, payload: bytes) -> None:
        try:
            with self._sending:
                self._stream.sendall(pack(frame, ident, payload))
        except OSError:
            raise GuestLost("the client is gone") from None


def main(request: str) -> None:
    """Keep a guest until it is told to end, or the guest ends. Speaks JSON lines on stdout until it is up."""
    import fcntl

    def tell(**what: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(what), flush=True)

    lock = (paths.lab() / "up.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell(error="a guest is coming up or going down at this moment; try again", code=1)
        return
    try:
        guest = Guest.resume(progress=lambda text: tell(progress=text), **json.loads(request))
    except ZtuneError as error:
        tell(error=str(error), code=error.exit_code)
        return
    down = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: down.set())
    about = {
        "pid": os.getpid(),
        "openzfs": guest.image.openzfs,
        "kernel": guest.image.kernel,
        "accel": guest.machine.accel,
        "reason": guest.why_no_kvm,
        "memory": guest.machine.memory,
        "ssh_port": guest.ssh_port,
    }
    server = socket.socket(socket.AF_UNIX)
    with _address() as address:
        Path(address).unlink(missing_ok=True)
        server.bind(address)
        Path(address).chmod(0o600)
    server.listen()
    server.settimeout(0.5)
    tell(**about)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    clients = []
    while not down.is_set() and guest.alive():
        with contextlib.suppress(TimeoutError):
            stream, _ = server.accept()
            stream.settimeout(None)
            client = threading.Thread(
                target=_Client(stream, guest, json.dumps(about).encode(), down).serve, daemon=True
            )
            client.start()
            clients.append(client)
    (paths.lab() / "up.sock").unlink(missing_ok=True)
    server.close()
    guest.close()
    for client in clients:
        client.join(1)


if __name__ == "__main__":
    main(sys.argv[1])
