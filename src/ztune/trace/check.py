"""What every event must fulfil. Used by the writer (a recorder's defect) and the reader (a damaged trace)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ztune.errors import InputError
from ztune.trace.schema import Op, Via

_OPS = np.zeros(256, bool)
_OPS[[int(op) for op in Op]] = True
_VIAS = np.zeros(256, bool)
_VIAS[[int(via) for via in Via]] = True
# Operations that mean nothing without a place in a file.
_PLACED = np.zeros(256, bool)
_PLACED[[Op.READ, Op.WRITE, Op.FALLOCATE, Op.COPY, Op.WARM, Op.READ_AHEAD]] = True
_NO_FILE = np.zeros(256, bool)
_NO_FILE[Op.SYNC] = True


def is_sorted(t: npt.NDArray[np.int64]) -> bool:
    """Say whether ``t`` never decreases."""
    return bool(np.all(t[1:] >= t[:-1]))


def unsorted(row: int, t: int) -> str:
    """Return what is wrong with the event in ``row``, whose ``t`` is less than that of the one before."""
    return f"events are not sorted by t (row {row}: {t})"


def columns(columns: Mapping[str, npt.NDArray[np.generic]], files: int, rows_before: int = 0) -> None:
    """Check the given columns of events (any subset) against each other and the number of ``files``.

    ``rows_before``: how many events come before these. Raises InputError naming the first row and what is
    wrong with it.
    """
    have = columns.keys()

    def refuse(bad: npt.NDArray[np.bool_], what: str, values: npt.NDArray[np.generic]) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(f"{what} (row {rows_before + row}: {values[row]})")

    if "t" in have:
        t = columns["t"]
        refuse(t < 0, "t is negative", t)  # type: ignore[operator]
        back = t[1:] < t[:-1]  # type: ignore[operator]
        if back.any():
            row = int(np.argmax(back)) + 1
            raise InputError(unsorted(rows_before + row, int(t[row])))
    for name, least in (("dur", 0), ("size", 0), ("offset", -1)):
        if name in have:
            refuse(columns[name] < least, f"{name} is below {least}", columns[name])  # type: ignore[operator]
    for name in ("file", "file2"):
        if name in have:
            ids = columns[name]
            refuse((ids < -1) | (ids >= files), f"{name} is not one of the {files} files", ids)  # type: ignore[operator]
    if "via" in have:
        refuse(~_VIAS[columns["via"]], "via is not a known code", columns["via"])
    if "op" in have:
        op = columns["op"]
        refuse(~_OPS[op], "op is not a known code", op)
        if "offset" in have:
            offset = columns["offset"]
            refuse(_PLACED[op] & (offset < 0), "a read or write has no offset", offset)  # type: ignore[operator]
        if "file" in have:
            refuse(~_NO_FILE[op] & (columns["file"] == -1), "an event other than sync has no file", op)
    if "offset" in have and "size" in have:
        offset, size = columns["offset"], columns["size"]
        most = np.iinfo(np.int64).max
        if len(offset) and int(offset.max()) + int(size.max()) > most:
            refuse(offset > most - size, "offset + size is beyond 2^63", offset)  # type: ignore[operator]
