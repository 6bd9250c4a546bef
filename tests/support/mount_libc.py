"""Calls of the C library that Python has no function for."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE, UNSHARE_RANGE = 1, 2, 8, 16, 32, 64
_AT_FDCWD = -100


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def rename(old: Path, new: Path, flags: int) -> None:
    """renameat2(2)."""
    found = _libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags))
    _check(found)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2), not the emulation that posix_fallocate(3) falls back to."""
    _check(_libc.fallocate64(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def getxattr(path: Path, name: str, size: int) -> bytes:
    """getxattr(2) with a buffer of ``size`` bytes; with 0 the value's length is what counts."""
    buffer = ctypes.create_string_buffer(size) if size else None
    got = _check(_libc.getxattr(os.fsencode(path), name.encode(), buffer, ctypes.c_size_t(size)))
    return buffer.raw[:got] if buffer is not None else b"\0" * got


def listxattr(path: Path, size: int) -> int:
    """listxattr(2) with a buffer of ``size`` bytes."""
    buffer = ctypes.create_string_buffer(size) if size else None
    return _check(_libc.listxattr(os.fsencode(path), buffer, ctypes.c_size_t(size)))


class _Iocb(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("reqprio", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buf", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("resfd", ctypes.c_uint32),
    )


class Asynchronous:
    """Linux's own asynchronous I/O: the kernel cuts a large write up, and sends all parts at once."""

    _SETUP, _DESTROY, _GETEVENTS, _SUBMIT = 206, 207, 208, 209  # x86-64; elsewhere 0 to 2 and 4
    _PWRITE = 1

    def __init__(self) -> None:
        if os.uname().machine != "x86_64":
            self._SETUP, self._DESTROY, self._SUBMIT, self._GETEVENTS = 0, 1, 2, 4
        self._context = ctypes.c_ulong(0)
        _check(_libc.syscall(self._SETUP, ctypes.c_long(1), ctypes.byref(self._context)))

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write, wait for it, and return how many bytes were written."""
        address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        block = _Iocb(opcode=self._PWRITE, fd=fd, buf=address, nbytes=len(data), offset=offset)
        one, event = ctypes.c_long(1), (ctypes.c_int64 * 4)()  # data, obj, res, res2
        _check(_libc.syscall(self._SUBMIT, self._context, one, ctypes.byref(ctypes.pointer(block))))
        _check(_libc.syscall(self._GETEVENTS, self._context, one, one, ctypes.byref(event), None))
        return event[2]

    def close(self) -> None:
        _check(_libc.syscall(self._DESTROY, self._context))


class _Dirent(ctypes.Structure):
    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


_libc.opendir.restype = ctypes.c_void_p
_libc.readdir64.restype = ctypes.POINTER(_Dirent)
_libc.telldir.restype = ctypes.c_long


class Directory:
    """A directory stream: opendir(3) and what goes with it."""

    def __init__(self, path: Path) -> None:
        self._stream = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))
        if not self._stream:
            _check(-1)

    def read(self) -> str | None:
        """Return the next name; None at the end."""
        ctypes.set_errno(0)
        found = _libc.readdir64(self._stream)
        if not found:
            if ctypes.get_errno():
                _check(-1)
            return None
        return os.fsdecode(found.contents.d_name)

    def rest(self) -> list[str]:
        """Return all names from here on, without ``.`` and ``..``."""
        names = []
        while (name := self.read()) is not None:
            if name not in (".", ".."):
                names.append(name)
        return names

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, where: int) -> None:
        _libc.seekdir(self._stream, ctypes.c_long(where))

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)

    def close(self) -> None:
        _libc.closedir(self._stream)
