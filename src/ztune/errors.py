"""The errors a user sees, and the exit code of each.

Exit codes of the ``ztune`` command: 0 done; 1 the work ran but part of it failed (some layouts marked
failed, a check did not hold); 2 bad input; 3 this machine lacks something that ``ztune doctor`` can name;
130 interrupted.
"""


class ZtuneError(Exception):
    """One sentence for the user: what is wrong, where, and what would be right."""

    exit_code = 1


class InputError(ZtuneError):
    """The user's file, flag or value is wrong. Exit code 2; nothing is left behind."""

    exit_code = 2


class MissingError(ZtuneError):
    """This machine lacks a program, a library or a right. Exit code 3; the text names what brings it."""

    exit_code = 3
