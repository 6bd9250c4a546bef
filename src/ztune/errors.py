"""The errors a user sees, and the exit code of each.

Exit codes of the ``ztune`` command: 0 done; 1 the work ran but part of it failed (some layouts marked
failed, a check did not hold); 2 bad input; 3 this machine lacks something that ``ztune doctor`` can name;
130 interrupted.
"""

import errno


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


def disk_error(error: OSError) -> ZtuneError | None:
    """Return the sentence for a disk that takes no more, wherever that was met; None for any other error."""
    remedy = _NO_ROOM.get(error.errno or 0)
    if remedy is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return ZtuneError(f"{where}it can't be written: {error.strerror}; {remedy}, then run it again")
