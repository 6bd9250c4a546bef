"""The program that loads a Valkey or Redis server: a process of its own, standard library only.

It speaks the server's protocol (RESP) over its unix socket and runs as the database's user. ``key_value.py``
beside it is the other end.

Why not ``valkey-benchmark``: its values are one letter over and over, or random bytes, and it knows no pace.
"""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Iterable
from typing import Any, Self

from ztune.onhost.jobs.client_program import Load, Values, Worker, run_all, say, serve, times_of

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
        load = Load(clients, seed, seconds=seconds, rate=rate)
        workers = [Caller(self, load, number, read_share, pipeline) for number in range(clients)]

        def tick(gone: float) -> float:
            nonlocal rewrite
            if rewrite and gone >= seconds / 2:
                rewrite = False
                with self.connect() as connection:
                    connection.do("BGREWRITEAOF")
            return min(0.5, max(0.0, seconds / 2 - gone)) if rewrite else 0.5

        spent = run_all(load, workers, tick)
        for worker in workers:
            self.written.update(worker.written)
        times = times_of(workers)
        return {
            "seconds": spent,
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


class Caller(Worker):
    """One client of the load: a connection, its share of the keys."""

    def __init__(self, client: Client, load: Load, number: int, read_share: int, pipeline: int) -> None:
        # A pipeline of operations becomes due at once.
        super().__init__(load, number, kinds=("read", "write"), at_once=pipeline)
        self.client, self.read_share, self.pipeline = client, read_share, pipeline
        self.own = range(number, client.keys, load.workers)
        self.written: dict[int, int] = {}

    def work(self) -> None:
        """Do operations until the time is over."""
        with self.client.connect() as connection:
            for due in self.starts():
                self._operations(connection, due)

    def _operations(self, connection: Connection, due: float) -> None:
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
        start = due if self.interval else time.monotonic()
        answers = connection.all(commands)
        end = time.monotonic()
        for kind, answer in zip(kinds, answers, strict=True):
            if answer is None:
                raise LookupError("a key is missing")
            self.note(kind, start, end)


if __name__ == "__main__":
    serve(Client())
