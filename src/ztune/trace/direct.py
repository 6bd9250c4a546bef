"""What a recorded program would do by Direct I/O on ZFS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ztune.databases.database import endings
from ztune.trace.manifest import TraceFile
from ztune.trace.reader import Columns
from ztune.trace.schema import Flag, Op

PAGE = 4096
"""Bytes of a page of memory, the least that OpenZFS does by Direct I/O (zfs_setup_direct in zfs_vnops.c)."""


class DirectIO:
    """Tells which of a trace's calls are asked for with O_DIRECT on ZFS, too."""

    def __init__(self, files: Sequence[TraceFile]) -> None:
        # The last is what -1, no file, indexes.
        ends = endings("buffered")
        self._buffered = np.array([any(end.fullmatch(f.path) for end in ends) for f in files] + [False])

    def asked(self, part: Columns) -> npt.NDArray[np.bool_]:
        """Return which calls have O_DIRECT; ``part``: columns ``flags`` and ``file`` of events."""
        found: npt.NDArray[np.bool_] = (part["flags"] & int(Flag.DIRECT) != 0) & ~self._buffered[part["file"]]
        return found

    def refused(self, part: Columns) -> npt.NDArray[np.bool_]:
        """Return which of them OpenZFS 2.3 refuses: reads and writes that are not of whole pages.

        ``part``: also ``op``, ``offset`` and ``size``. A read is as long as what it got, which need be no
        whole page at a file's end.
        """
        op, begins = part["op"], part["offset"] % PAGE != 0
        odd = ((op == Op.WRITE) & (begins | (part["size"] % PAGE != 0))) | ((op == Op.READ) & begins)
        found: npt.NDArray[np.bool_] = self.asked(part) & odd
        return found
