"""The errors a user sees, and the exit code of each.

Exit codes of the ``ztune`` command: 0 done; 1 the work ran but part of it failed (some layouts marked
failed, a check did not hold); 2 bad input; 3 this machine lacks something that ``ztune doctor`` can name;
130 interrupted.
"""

import contextlib
import errno
import os
from collections.abc import Iterator


class ZtuneError(Exception):
    """One sentence for the user: what is wrong, where, and what would be right.

    It is one line of text, whatever it quotes: what can't be printed is shown escaped.
    """

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class InputError(ZtuneError):
    """The user's file, flag or value is wrong. Exit code 2; nothing is left behind."""

    exit_code = 2


class MissingError(ZtuneError):
    """This machine lacks a program, a library or a right. Exit code 3; the text names what brings it."""

    exit_code = 3


class Refused(ZtuneError):
    """Something was left alone, because it may not be ours."""


def reason(error: BaseException) -> str:
    """Return what ``error`` says, on one line of 200 characters at most; of the system's only its words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200]


_NO_ROOM = {errno.ENOSPC: "make room there", errno.EDQUOT: "make room there", errno.EROFS: "make it writable"}


@contextlib.contextmanager
def naming(path: os.PathLike[str]) -> Iterator[None]:
    """Have an error of the system in the body name ``path`` where it names no file, as one of a write does
    not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def unwritten(path: os.PathLike[str], error: OSError) -> ZtuneError:
    """Return the sentence for ``path``, which can't be written. A full disk is no fault of what was asked."""
    error.filename = os.fspath(path)
    return disk_error(error) or InputError(f"can't write {path}: {reason(error)}")


def disk_error(error: OSError) -> ZtuneError | None:
    """Return the sentence for a disk that takes no more, wherever that was met; None for any other error."""
    remedy = _NO_ROOM.get(error.errno or 0)
    if remedy is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    why = os.strerror(error.errno or 0)
    return ZtuneError(f"{where}it can't be written: {why}; {remedy}, then run it again")
