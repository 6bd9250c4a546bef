"""Which of a trace's calls waited for the disk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ztune.trace.reader import Columns
from ztune.trace.schema import Flag, Op


def synced(part: Columns) -> npt.NDArray[np.bool_]:
    """Return which events of ``part``, by ``op`` and ``flags``, are syncs, of a file or of all, or writes to
    files opened with O_SYNC or O_DSYNC."""
    op = part["op"]
    found = np.isin(op, (Op.FSYNC, Op.FDATASYNC, Op.MSYNC, Op.SYNC))
    found |= (op == Op.WRITE) & ((part["flags"] & int(Flag.SYNC | Flag.DSYNC)) != 0)
    return found
