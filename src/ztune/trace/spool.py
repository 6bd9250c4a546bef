"""Events on their way to a trace: packed as they come, a part at a time, and read again as often as needed.

A part is packed as the eBPF recorder packs its own (``recorder/main.c``): times as differences, and then the
n-th bytes of all events one after the other, where most are alike, and compressed. An event of 62 bytes takes
about 10 so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows: TypeAlias = "npt.NDArray[np.void]"
Part: TypeAlias = Callable[[], Rows]
"""Reads events; gives the same each time."""
PART_ROWS = 1 << 16  # of a spool, at most


def members(rows: Rows) -> bytes:
    """Return the bytes of ``rows``, whose first member is the time ``t``, in the order in which they pack."""
    rows = rows.copy()
    rows["t"][1:] = rows["t"][1:] - rows["t"][:-1]
    return rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize).T.tobytes()


def from_members(data: bytes, dtype: np.dtype[np.void], rows: int) -> Rows:
    """Return the ``rows`` events that ``members`` made ``data`` of. Raises ValueError if they are others."""
    table = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, rows)
    found: Rows = np.array(table.T, order="C").view(dtype)[:, 0]
    found["t"] = np.cumsum(found["t"], dtype=dtype["t"])
    return found


class Spool:
    """A file of packed parts of events of type ``dtype``, made at ``path``. Raises OSError."""

    def __init__(self, path: Path, dtype: np.dtype[np.void]) -> None:
        self._path = path
        self._dtype = dtype
        self._out = path.open("wb", buffering=1 << 20)
        self._parts: list[tuple[int, int, int]] = []  # place, bytes, rows
        self.bytes = 0

    def add(self, rows: Rows) -> None:
        """Append ``rows``. Raises OSError."""
        for begin in range(0, len(rows), PART_ROWS):
            part = rows[begin : begin + PART_ROWS]
            packed = pa.compress(members(part), codec="zstd", asbytes=True)
            self._out.write(packed)
            self._parts.append((self.bytes, len(packed), len(part)))
            self.bytes += len(packed)

    def flush(self) -> None:
        """Hand what was added to the operating system. Raises OSError."""
        self._out.flush()

    def close(self) -> None:
        """Add nothing more. Raises OSError."""
        self._out.close()

    def parts(self, first: int = 0) -> Sequence[Part]:
        """Return what reads the parts from number ``first`` on; what was added last is there once flushed."""
        return [self._reader(*one) for one in self._parts[first:]]

    def __len__(self) -> int:
        return len(self._parts)

    def _reader(self, place: int, size: int, rows: int) -> Part:
        def read() -> Rows:
            with self._path.open("rb") as file:
                file.seek(place)
                data = pa.decompress(
                    file.read(size), decompressed_size=rows * self._dtype.itemsize, codec="zstd", asbytes=True
                )
            return from_members(data, self._dtype, rows)

        return read
