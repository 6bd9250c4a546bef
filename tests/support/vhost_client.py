"""A small driver of a virtio disk over vhost-user, enough to test a server: one ring in shared memory."""

from __future__ import annotations

import array
import mmap
import os
import select
import socket
import struct
import time
from pathlib import Path

NEXT, WRITES, INDIRECT = 1, 2, 4
IN, OUT, FLUSH, ID, DISCARD, ZEROES = 0, 1, 4, 8, 11, 13
OK, IOERR, UNSUPP = 0, 1, 2
NUMBER = 64
MEMORY = 4 << 20
GUEST, USER = 0x10_0000, 0x7000_0000
"""Where the guest has its memory, and where the program has it that the guest runs in."""
DESC, AVAIL, USED, TABLES, DATA = 0, 4096, 8192, 16384, 65536
ROOM = 32768
"""Of a request: its data, with what comes before and after."""
Piece = tuple[int, int, int]
"""Of a descriptor: its address in the guest, its length, its flags."""


class Driver:
    def __init__(self, path: Path, *, number: int = NUMBER) -> None:
        self.wire = socket.socket(socket.AF_UNIX)
        self.wire.settimeout(20)
        self.wire.connect(str(path))
        self.memory_file = os.memfd_create("guest")
        os.ftruncate(self.memory_file, MEMORY)
        self.memory = mmap.mmap(self.memory_file, MEMORY)
        self.kick, self.call = os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
        self.message(3)
        features = struct.unpack("<Q", self.ask(1))[0]
        assert features >> 30 & 1 and features >> 32 & 1
        self.message(2, struct.pack("<Q", features))
        protocol = struct.unpack("<Q", self.ask(15))[0]
        assert protocol >> 9 & 1
        self.message(16, struct.pack("<Q", protocol))
        config = self.ask(24, struct.pack("<III", 0, 60, 0) + bytes(60))[12:]
        self.size = struct.unpack_from("<Q", config)[0] * 512
        self.table()
        self.message(8, struct.pack("<II", 0, number))
        self.message(10, struct.pack("<II", 0, 0))
        self.message(9, struct.pack("<IIQQQQ", 0, 0, USER + DESC, USER + USED, USER + AVAIL, 0))
        self.message(13, struct.pack("<Q", 0), self.call)
        self.message(12, struct.pack("<Q", 0), self.kick)
        self.message(18, struct.pack("<II", 0, 1))
        self.free = list(range(number // 4))
        self.given = self.taken = 0
        self.number = number
        self._done: dict[int, int] = {}

    def message(self, request: int, payload: bytes = b"", *fds: int) -> None:
        whole = struct.pack("<III", request, 1, len(payload)) + payload
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.wire.sendmsg([whole], rights)

    def ask(self, request: int, payload: bytes = b"") -> bytes:
        self.message(request, payload)
        got, flags, size = struct.unpack("<III", self._receive(12))
        assert (got, flags) == (request, 5)
        return self._receive(size)

    def _receive(self, count: int) -> bytes:
        data = self.wire.recv(count, socket.MSG_WAITALL)
        if len(data) < count:
            raise ConnectionError("the server closed the connection")
        return data

    def table(self, size: int = MEMORY) -> None:
        self.message(5, struct.pack("<IIQQQQ", 1, 0, GUEST, size, USER, 0), self.memory_file)

    # A request has four descriptors of the ring, and a page of data with its head and its status.

    def put(self, pieces: list[Piece], slot: int, *, indirect: bool = False) -> None:
        """Hand in a request that has these pieces, in the descriptors of ``slot``."""
        first, table, at = slot * 4, DESC, slot * 4
        if indirect:
            table, at = TABLES + slot * 256, 0
            struct.pack_into(
                "<QIHH", self.memory, DESC + first * 16, GUEST + table, 16 * len(pieces), INDIRECT, 0
            )
        for i, (address, length, flags) in enumerate(pieces):
            more = NEXT if i + 1 < len(pieces) else 0
            struct.pack_into(
                "<QIHH", self.memory, table + (at + i) * 16, address, length, flags | more, at + i + 1
            )
        self.offer(first)

    def offer(self, first: int) -> None:
        struct.pack_into("<H", self.memory, AVAIL + 4 + (self.given % self.number) * 2, first)
        self.given = (self.given + 1) % 65536
        struct.pack_into("<H", self.memory, AVAIL + 2, self.given)
        os.eventfd_write(self.kick, 1)

    def send(
        self, kind: int, sector: int = 0, data: bytes = b"", length: int = 0, *, indirect: bool = False
    ) -> int:
        """Begin a request; return its slot. ``length``: of what comes back."""
        slot = self.free.pop()
        at = DATA + slot * ROOM
        struct.pack_into("<IIQ", self.memory, at, kind, 0, sector)
        self.memory[at + 16 : at + 16 + len(data)] = data
        pieces = [(GUEST + at, 16, 0)]
        if data:
            pieces.append((GUEST + at + 16, len(data), 0))
        if length:
            pieces.append((GUEST + at + 16, length, WRITES))
        self.memory[at + ROOM - 1] = 255
        pieces.append((GUEST + at + ROOM - 1, 1, WRITES))
        self.put(pieces, slot, indirect=indirect)
        return slot

    def wait(self, slot: int) -> tuple[int, bytes]:
        """Return the status of a request, and what came back."""
        until = time.monotonic() + 20
        while slot not in self._done:
            if self.taken == struct.unpack_from("<H", self.memory, USED + 2)[0]:
                if not select.select([self.call, self.wire.fileno()], [], [], until - time.monotonic())[0]:
                    raise TimeoutError
                if select.select([self.wire], [], [], 0)[0]:
                    raise ConnectionError("the server closed the connection")
                os.eventfd_read(self.call)
                continue
            first, length = struct.unpack_from("<II", self.memory, USED + 4 + (self.taken % self.number) * 8)
            self.taken = (self.taken + 1) % 65536
            self._done[first // 4] = length
        length = self._done.pop(slot)
        self.free.append(slot)
        at = DATA + slot * ROOM
        return self.memory[at + ROOM - 1], self.memory[at + 16 : at + 16 + length - 1]

    def do(
        self, kind: int, sector: int = 0, data: bytes = b"", length: int = 0, *, indirect: bool = False
    ) -> bytes:
        status, back = self.wait(self.send(kind, sector, data, length, indirect=indirect))
        if status != OK:
            raise OSError(status, "the disk says so")
        return back

    def gone(self) -> bool:
        """Whether the server has closed the connection."""
        try:
            return bool(select.select([self.wire], [], [], 20)[0]) and self.wire.recv(1) == b""
        except ConnectionResetError:  # with something of ours unread
            return True

    def close(self) -> None:
        self.wire.close()
        self.memory.close()
        for fd in (self.memory_file, self.kick, self.call):
            os.close(fd)
