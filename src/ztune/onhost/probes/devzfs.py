"""Asks the ZFS module for a pool's counters directly, with no program started.

``zpool iostat`` prints averages, and its exact counters only exist in programs of OpenZFS 2.2 and later. The
call it makes itself (ZFS_IOC_POOL_STATS, read-only) gives them on every release: operations and bytes of each
vdev as 64-bit sums, and the histograms behind ``-r`` and ``-w``. Its number, the head of its argument and the
order of the counters are the same in 0.7 to 2.4 (include/sys/fs/zfs.h, include/sys/zfs_ioctl.h).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from typing import Any

from ztune.errors import MissingError, ZtuneError
from ztune.onhost.probes import nvlist

POOL_STATS = 0x5A05
_NAME = 4096
_COMMAND = 1 << 16
"""Room for a zfs_cmd_t, which has 13 to 14 KB: the kernel copies as many bytes as it knows of, both ways."""
_HEAD = struct.Struct("=QQQQi")
"""After the name: source and its size, destination and its size, destination filled."""
_LARGEST = 64 << 20


def pool_stats(pool: str) -> dict[str, Any]:
    """Return the pool's configuration with the counters of every vdev, as the module tells it.

    Raises MissingError without the module, ZtuneError when there is no such pool or the answer makes no
    sense.
    """
    name = pool.encode()
    if len(name) >= _NAME:
        raise ZtuneError(f"pool name of {len(name)} bytes is longer than any")
    try:
        fd = os.open("/dev/zfs", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MissingError(f"/dev/zfs can't be opened: {error.strerror}; the ZFS module gives it") from None
    try:
        size = 256 << 10
        while size <= _LARGEST:
            room = ctypes.create_string_buffer(size)
            command = ctypes.create_string_buffer(_COMMAND)
            ctypes.memmove(command, name, len(name))
            _HEAD.pack_into(command, _NAME, 0, 0, ctypes.addressof(room), size, 0)
            failed = 0
            try:
                fcntl.ioctl(fd, POOL_STATS, command)
            except OSError as error:
                failed = error.errno or errno.EIO
            _src, _src_size, _dst, used, filled = _HEAD.unpack_from(command, _NAME)
            if failed == errno.ENOMEM:
                # Too small; the module says how much it needs.
                size = max(used, 2 * size)
                continue
            # A pool with errors gives EIO and its configuration all the same.
            if not filled:
                raise ZtuneError(f"pool {pool}: the ZFS module gives no counters: {os.strerror(failed)}")
            return nvlist.unpack(room.raw[: min(used, size)])
        raise ZtuneError(f"pool {pool}: its counters take more than {_LARGEST >> 20} MiB")
    finally:
        os.close(fd)
