"""The words of the trace format: operation codes, flags. See docs/trace-format.md."""

from __future__ import annotations

from enum import IntEnum, IntFlag

FORMAT = "ztune-trace"
VERSION = 9
TXG_NS = 5_000_000_000
"""How long OpenZFS keeps a transaction group open at most: the default of zfs_txg_timeout (zfs(4))."""


class Op(IntEnum):
    """What a call did to a file. One event is one call (or one request of an aio or io_uring batch)."""

    READ = 1
    WRITE = 2
    FSYNC = 3
    FDATASYNC = 4
    SYNC_RANGE = 5  # sync_file_range
    TRUNCATE = 6  # size = the new length; also emitted for open(O_TRUNC)
    FALLOCATE = 7  # offset, size; see KEEP_SIZE, PUNCH, ZERO
    CREATE = 8  # the file came into being
    UNLINK = 9  # a name was removed
    RENAME = 10  # file2 = the file that was replaced, or -1
    COPY = 11  # copy_file_range, sendfile, splice between files: file = destination, file2 = source
    MMAP = 12  # a shared writable mapping was made: what is written through it is not seen
    MSYNC = 13
    SYNC = 14  # sync, syncfs: file = -1
    WARM = 15  # was read or written before the recording began, and so may have been in a cache: t = 0
    READ_AHEAD = 16  # posix_fadvise(POSIX_FADV_WILLNEED), readahead: what is going to be read


class Via(IntEnum):
    """How the request reached the kernel."""

    SYSCALL = 0
    AIO = 1  # io_submit
    URING = 2


class Flag(IntFlag):
    """How the file was open, and what kind of call it was."""

    SYNC = 1  # O_SYNC / RWF_SYNC
    DSYNC = 2  # O_DSYNC / RWF_DSYNC
    DIRECT = 4  # O_DIRECT
    APPEND = 8  # O_APPEND
    KEEP_SIZE = 16
    PUNCH = 32
    ZERO = 64
    POSITIONED = 128  # the call named the offset itself: pread, pwrite; from version 3 on
