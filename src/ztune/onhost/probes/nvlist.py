"""Reads what ``/dev/zfs`` hands out: packed name–value lists in the native encoding.

Source of the format: module/nvpair/nvpair.c and include/sys/nvpair.h of OpenZFS; the same since the first
release for Linux.
"""

from __future__ import annotations

import struct
from typing import Any

from ztune.errors import ZtuneError

_HEADER = 4
_PAIR = struct.Struct("ihhii")
"""nvpair_t: size, length of the name with its NUL, reserved, number of elements, type."""
_LARGEST = 16
"""Lists in lists in lists; a pool's configuration has five."""

_BOOLEAN, _STRING, _STRING_ARRAY, _NVLIST, _NVLIST_ARRAY = 1, 9, 17, 19, 20
_ONE = {
    2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 18: "q", 21: "i", 22: "b", 23: "B", 27: "d",
}  # fmt: skip
_MANY = {10: "B", 11: "h", 12: "H", 13: "i", 14: "I", 15: "q", 16: "Q", 24: "i", 25: "b", 26: "B"}


class _Reader:
    def __init__(self, data: bytes, order: str) -> None:
        self.data = data
        self.order = order
        self.at = _HEADER
        self.pair = struct.Struct(order + _PAIR.format)

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ZtuneError(f"a list from /dev/zfs ends early, at byte {len(self.data)}")
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def pairs(self, depth: int) -> dict[str, Any]:
        if depth > _LARGEST:
            raise ZtuneError(f"a list from /dev/zfs is nested more than {_LARGEST} deep")
        found: dict[str, Any] = {}
        while True:
            (size,) = struct.unpack(self.order + "i", self.take(4))
            if size == 0:
                return found
            self.at -= 4
            pair = self.take(size)
            if size < self.pair.size:
                raise ZtuneError(f"a list from /dev/zfs has an entry of {size} bytes")
            _size, name_size, _reserved, count, kind = self.pair.unpack_from(pair)
            end = self.pair.size + name_size
            if name_size < 1 or count < 0 or end > size:
                raise ZtuneError("a list from /dev/zfs has an entry without a name")
            name = pair[self.pair.size : end - 1].decode(errors="replace")
            found[name] = self.value(pair[(end + 7) & ~7 :], kind, count, depth)

    def value(self, data: bytes, kind: int, count: int, depth: int) -> Any:
        if kind == _NVLIST:
            return self.pairs(depth + 1)
        if kind == _NVLIST_ARRAY:
            return [self.pairs(depth + 1) for _ in range(count)]
        if kind == _BOOLEAN:
            return True
        if kind == _STRING:
            return data.partition(b"\0")[0].decode(errors="replace")
        if kind == _STRING_ARRAY:
            return [s.decode(errors="replace") for s in data[8 * count :].split(b"\0")[:count]]
        try:
            if kind in _ONE:
                return struct.unpack_from(self.order + _ONE[kind], data)[0]
            if kind in _MANY:
                return list(struct.unpack_from(f"{self.order}{count}{_MANY[kind]}", data))
        except struct.error:
            raise ZtuneError("a list from /dev/zfs has a value that is too short") from None
        raise ZtuneError(f"a list from /dev/zfs has a value of unknown type {kind}")


def unpack(data: bytes) -> dict[str, Any]:
    """Return a packed list as a dict; lists of lists become lists of dicts.

    Raises ZtuneError for anything that is not a whole list in the native encoding.
    """
    if len(data) < _HEADER + 12:
        raise ZtuneError(f"a list from /dev/zfs has {len(data)} bytes, too few for a list")
    if data[0] != 0 or data[1] not in (0, 1):
        raise ZtuneError(f"a list from /dev/zfs is not in the native encoding (its head is {data[:4].hex()})")
    reader = _Reader(data, "<" if data[1] else ">")
    reader.take(8)  # version and flags
    return reader.pairs(0)
