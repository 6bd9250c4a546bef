"""The program that loads a Valkey or Redis server: a process of its own, standard library only.

It speaks the server's protocol (RESP) over its unix socket and runs as the database's user. ``key_value.py``
beside it is the other end.

Why not ``valkey-benchmark``: its values are one letter over and over, or random bytes, and it knows no pace.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from array import array
from collections.abc import Iterable
from typing import Any, Self

from ztune.databases.rocksdb.onhost.client import Values
from ztune.onhost.jobs.client_program import say, serve

Reply = bytes | int | list[Any] | None
_AT_ONCE = 500
"""Commands that are sent before their answers are read, where nothing is timed."""
_SAMPLE = 2000
_VERSION = re.compile(rb"[0-9a-f]{16} ")
LEAST_VALUE = 32
"""Bytes of the smallest value: its version and something beside it."""


class RefusedError(RuntimeError):
    """The server's answer is an error."""


class Connection:
    """One connection: commands out, answers in."""

    def __init__(self, path: str, seconds: float) -> None:
        """Connect to the socket at ``path``; an answer may take ``seconds``. Raises OSError."""
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._answers.close()
        self._socket.close()

    def do(self, *words: str | int | bytes) -> Reply:
        """Return the answer to one command.

        Raises:
            RefusedError: it is an error. OSError: the server is gone.
        """
        [answer] = self.all([words])
        return answer

    def all(self, commands: Iterable[Iterable[str | int | bytes]]) -> list[Reply]:
        """Send all ``commands`` at once and return their answers; raises as ``do`` does."""
        sent = [_encoded(command) for command in commands]
        self._socket.sendall(b"".join(sent))
        answers = [self._answer() for _ in sent]
        for answer in answers:
            if isinstance(answer, RefusedError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, RefusedError)]

    def _answer(self) -> Reply | RefusedError:
        line = self._answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return RefusedError(rest.decode(errors="replace"))
        count = int(rest)
        if count < 0:
            return None
        if kind == b"*":
            return [self._answer() for _ in range(count)]
        if kind != b"$":
            raise RefusedError(f"an answer that can't be read: {line!r}")
        data = self._answers.read(count + 2)
        if len(data) != count + 2:
            raise ConnectionResetError("the server closed the connection")
        return data[:-2]


def _encoded(words: Iterable[str | int | bytes]) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def key_of(number: int) -> str:
    """Return a key, named as YCSB's are."""
    return f"user{number:012d}"


class Client:
    """What is known between commands."""

    def __init__(self) -> None:
        self.path = ""
        self.wait = 0.0
        self.keys = 0
        self.values: Values | None = None
        self.written: dict[int, int] = {}
        """Key → the version that was written last. Each key has one writer."""

    def open(self, path: str, wait: float, keys: int, values: dict[str, Any]) -> dict[str, Any]:
        """Note where the server is, and what the values are; say how many keys there are."""
        self.path, self.wait, self.keys, self.values = path, wait, keys, Values(**values)
        with self.connect() as connection:
            return {"keys": connection.do("DBSIZE")}

    def connect(self) -> Connection:
        """Return a new connection."""
        return Connection(self.path, self.wait)

    def value(self, key: int, version: int) -> bytes:
        """Return the value that ``version`` of a key has; it begins with that version."""
        assert self.values is not None
        return (b"%016x " % version + self.values.of(key, version))[: self.values.size]

    def whole(self, key: int, value: Reply) -> bool:
        """Say whether ``value`` is what was written last or, of a key that was not written here, as a whole
        what somebody once wrote.
        """
        if not isinstance(value, bytes):
            return False
        version = self.written.get(key, int(value[:16], 16) if _VERSION.match(value) else 0)
        return value == self.value(key, version)

    def fill(self) -> dict[str, Any]:
        """Write every key once."""
        with self.connect() as connection:
            for first in range(0, self.keys, _AT_ONCE):
                say(progress=first / self.keys)
                keys = range(first, min(first + _AT_ONCE, self.keys))
                connection.all(("SET", key_of(key), self.value(key, 0)) for key in keys)
        return {}

    def run(
        self,
        read_share: int,
        seconds: float,
        rate: float,
        clients: int,
        pipeline: int,
        rewrite: bool,
        seed: int,
    ) -> dict[str, Any]:
        """Read and write random keys for ``seconds``; return what was done, and the times in µs.

        ``rewrite``: at half of the time the server is told to write its append-only file anew.
        """
        began = time.monotonic()
        workers = [
            Worker(self, number, read_share, seconds, rate, clients, pipeline, seed, began)
            for number in range(clients)
        ]
        for worker in workers:
            worker.thread.start()
        for worker in workers:
            while worker.thread.is_alive():
                gone = time.monotonic() - began
                if rewrite and gone >= seconds / 2:
                    rewrite = False
                    with self.connect() as connection:
                        connection.do("BGREWRITEAOF")
                worker.thread.join(min(0.5, max(0.0, seconds / 2 - gone)) if rewrite else 0.5)
                say(progress=min(1.0, gone / seconds))
        for worker in workers:
            if worker.error is not None:
                raise worker.error
            self.written.update(worker.written)
        times = {kind: sorted(us for w in workers for us in w.times[kind]) for kind in ("read", "write")}
        return {
            "seconds": max(worker.last for worker in workers) - began,
            "reads": len(times["read"]),
            "writes": len(times["write"]),
            "times_us": times,
        }

    def verify(self, seed: int) -> dict[str, Any]:
        """Read back keys that were written and keys that were not; say how many hold what they should."""
        draw = random.Random(seed)
        sample = draw.sample(sorted(self.written), min(_SAMPLE, len(self.written)))
        sample += [draw.randrange(self.keys) for _ in range(_SAMPLE)]
        right = 0
        with self.connect() as connection:
            for first in range(0, len(sample), _AT_ONCE):
                keys = sample[first : first + _AT_ONCE]
                found = connection.all(("GET", key_of(key)) for key in keys)
                right += sum(map(self.whole, keys, found))
        return {"looked": len(sample), "right": right}

    def close(self) -> dict[str, Any]:
        """Do nothing: each step has closed its connections."""
        return {}


class Worker:
    """One client of the load: a connection, its share of the keys, its times."""

    def __init__(
        self,
        client: Client,
        number: int,
        read_share: int,
        seconds: float,
        rate: float,
        clients: int,
        pipeline: int,
        seed: int,
        began: float,
    ) -> None:
        self.client = client
        self.random = random.Random(seed * 1_000_003 + number)
        self.own = range(number, client.keys, clients)
        self.read_share, self.pipeline = read_share, pipeline
        self.until = began + seconds
        # The clients' operations become due in turn, a pipeline of them at once.
        self.interval = clients * pipeline / rate if rate else 0.0
        self.due = began + number * pipeline / rate if rate else began
        self.last = began
        self.times = {"read": array("Q"), "write": array("Q")}
        self.written: dict[int, int] = {}
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            with self.client.connect() as connection:
                while self._go_on():
                    self._operations(connection)
        except Exception as error:
            self.error = error

    def _go_on(self) -> bool:
        """Wait until the next operations are due; whether there is time for them."""
        if self.interval:
            if self.due > self.until:
                return False
            time.sleep(max(0.0, self.due - time.monotonic()))
        return time.monotonic() < self.until

    def _operations(self, connection: Connection) -> None:
        draw = self.random
        kinds: list[str] = []
        commands: list[tuple[str | bytes, ...]] = []
        for _ in range(self.pipeline):
            key = self.own[draw.randrange(len(self.own))]
            if draw.randrange(100) < self.read_share:
                kinds.append("read")
                commands.append(("GET", key_of(key)))
            else:
                version = 1 + draw.getrandbits(62)
                self.written[key] = version
                kinds.append("write")
                commands.append(("SET", key_of(key), self.client.value(key, version)))
        # A late one counts from when it was due, so waiting for a slow one before is included.
        start = self.due if self.interval else time.monotonic()
        self.due += self.interval
        answers = connection.all(commands)
        self.last = time.monotonic()
        for kind, answer in zip(kinds, answers, strict=True):
            if answer is None:
                raise LookupError("a key is missing")
            self.times[kind].append(max(0, round((self.last - start) * 1e6)))


if __name__ == "__main__":
    serve(Client())
