"""Runs a program that may read this host's files and change none but those of some folders.

    python -I -B walled.py FOLDER... -- PROGRAM [ARGUMENT...]

A guest in user mode is a process of its user's, and whoever is root in it could mount the host's files
for writing. So the program gets mounts of its own (mount_namespaces(7)) that are read-only, but for the
folders and a /dev/shm of its own: whatever it does, the kernel refuses. It ends when the process that started
it does, and with it all that it has started (pid_namespaces(7)).

It takes root: in a user namespace the host's files would seem to be nobody's, and what may be believed goes
by whose they are. Standard library only: it is run by its path. Exits with 125 and one sentence where it
can't be walled in.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_PR_SET_PDEATHSIG = 1
MEMORY = "/dev/shm"
"""Empty, and its own: whatever it keeps there is gone with it."""
_C = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """``struct mount_attr`` of mount_setattr(2)."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def _done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _change(path: str, set_: int, clear: int, flags: int) -> None:
    attributes = _Attributes(set_, clear, 0, 0)
    size = ctypes.sizeof(attributes)
    arguments = (_AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), ctypes.c_size_t(size))
    _done(_C.syscall(_SYS_MOUNT_SETATTR, *arguments), f"mounting {path} anew")


def apart() -> None:
    """Give this process mounts of its own, and its children numbers of their own. Raises OSError."""
    _done(_C.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "mounts of its own")


def wall(writable: list[str]) -> None:
    """Make all files of this host read-only for this process but those below ``writable``. Raises OSError."""
    _done(_C.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mounts of its own")
    _done(_C.mount(b"proc", b"/proc", b"proc", 0, None), "its processes in /proc")
    _done(_C.mount(b"tmpfs", MEMORY.encode(), b"tmpfs", 0, b"mode=1777,size=100%"), f"{MEMORY} of its own")
    for folder in writable:
        path = folder.encode()
        _done(_C.mount(path, path, None, _MS_BIND, None), f"mounting {folder} anew")
    _change("/", _MOUNT_ATTR_RDONLY, 0, _AT_RECURSIVE)
    for folder in (MEMORY, *writable):
        _change(folder, 0, _MOUNT_ATTR_RDONLY, 0)


def ends_with(parent: int) -> None:
    """Have the kernel end this process with ``parent``, which started it. Raises OSError."""
    _done(_C.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "ending with its parent")
    if os.getppid() != parent:  # it ended before that
        raise ProcessLookupError(0, "who started it has ended")


def main(words: list[str]) -> int:
    """Run the program walled in; return its exit code, 128 and the signal that ended it."""
    at, parent = words.index("--"), os.getppid()
    try:
        apart()
        ends_with(parent)
        # The first process of its own numbers: with it all end that it has started.
        child = os.fork()
        if child == 0:
            try:
                ends_with(0)  # as it is seen from there
                wall(words[:at])
                os.execv(words[at + 1], words[at + 1 :])
            except OSError as error:
                _say(error)
                os._exit(125)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code if code >= 0 else 128 - code
    except OSError as error:
        _say(error)
    return 125


def _say(error: OSError) -> None:
    os.write(2, f"this host's files can't be kept from being written: {error.args[-1]}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
