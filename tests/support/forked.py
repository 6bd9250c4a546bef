"""A program's main function in a fork of this process: what it imports is loaded once for many runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence


def forked(
    main: Callable[[list[str]], int], words: Sequence[str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` on ``words`` as a program of its own would, with ``text`` on standard input, which stays
    open until it ends; return how it ended and what it said."""
    out, err = os.memfd_create("out"), os.memfd_create("err")
    theirs, ours = os.pipe()
    os.write(ours, text.encode())
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.close(ours)
            for number, standard in enumerate((theirs, out, err)):
                os.dup2(standard, number)
            sys.stdin = os.fdopen(0, closefd=False)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            code = main(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)
    os.close(theirs)
    _pid, status = os.waitpid(pid, 0)
    os.close(ours)
    said = []
    for file in (out, err):
        os.lseek(file, 0, os.SEEK_SET)
        with os.fdopen(file, errors="replace") as read:
            said.append(read.read())
    return subprocess.CompletedProcess([*words], os.waitstatus_to_exitcode(status), *said)
