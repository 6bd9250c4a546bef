"""A small NBD client, enough to test a server: requests may overlap, answers are matched by cookie."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from types import TracebackType

READ, WRITE, DISC, FLUSH, TRIM, ZEROES = 0, 1, 2, 3, 4, 6
FUA = 1


class NbdError(Exception):
    """The server answered with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(f"errno {number}")
        self.number = number


class Client:
    def __init__(self, path: Path, *, handshake: bool = True) -> None:
        self.wire = socket.socket(socket.AF_UNIX)
        self.wire.settimeout(60)
        self.wire.connect(str(path))
        self._cookie = 0
        self._asked: dict[int, int] = {}
        self._answers: dict[int, bytes | NbdError] = {}
        self.size = self.flags = 0
        if handshake:
            magic, option, flags = struct.unpack(">8sQH", self.receive(18))
            assert (magic, option, flags) == (b"NBDMAGIC", 0x49484156454F5054, 3)
            self.wire.sendall(struct.pack(">I", 3))
            self.size, self.flags = self.go()

    def receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.wire.recv(count - len(data))
            if not piece:
                raise ConnectionError("the server closed the connection")
            data += piece
        return bytes(data)

    def option(self, number: int, data: bytes = b"") -> list[tuple[int, bytes]]:
        """Send an option and return the replies to it, up to an acknowledgement or an error."""
        self.wire.sendall(struct.pack(">QII", 0x49484156454F5054, number, len(data)) + data)
        replies = []
        while True:
            magic, asked, kind, length = struct.unpack(">QIII", self.receive(20))
            assert magic == 0x3E889045565A9 and asked == number
            replies.append((kind, self.receive(length)))
            if kind == 1 or kind >= 1 << 31:
                return replies

    def go(self) -> tuple[int, int]:
        replies = self.option(7, struct.pack(">IH", 0, 0))
        assert replies[-1][0] == 1
        export = next(data for kind, data in replies if kind == 3 and data[:2] == b"\0\0")
        size, flags = struct.unpack(">QH", export[2:])
        return int(size), int(flags)

    def send(self, kind: int, offset: int = 0, length: int = 0, data: bytes = b"", flags: int = 0) -> int:
        self._cookie += 1
        self._asked[self._cookie] = length if kind == READ else 0
        head = struct.pack(">IHHQQI", 0x25609513, flags, kind, self._cookie, offset, length or len(data))
        self.wire.sendall(head + data)
        return self._cookie

    def wait(self, cookie: int) -> bytes:
        """Return the answer to ``cookie``. Raises NbdError."""
        while cookie not in self._answers:
            magic, error, found = struct.unpack(">IIQ", self.receive(16))
            assert magic == 0x67446698
            length = self._asked.pop(found)
            self._answers[found] = NbdError(error) if error else self.receive(length)
        answer = self._answers.pop(cookie)
        if isinstance(answer, NbdError):
            raise answer
        return answer

    def read(self, offset: int, length: int) -> bytes:
        return self.wait(self.send(READ, offset, length))

    def write(self, offset: int, data: bytes, *, fua: bool = False) -> None:
        self.wait(self.send(WRITE, offset, data=data, flags=FUA if fua else 0))

    def flush(self) -> None:
        self.wait(self.send(FLUSH))

    def trim(self, offset: int, length: int) -> None:
        self.wait(self.send(TRIM, offset, length))

    def zero(self, offset: int, length: int) -> None:
        self.wait(self.send(ZEROES, offset, length))

    def close(self) -> None:
        """Say goodbye; a connection that just ends is a power cut."""
        self.send(DISC)
        self.wire.close()

    def drop(self) -> None:
        self.wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.drop()
