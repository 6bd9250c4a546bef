"""How the scripts of bench/ begin and end: what a script has started ends with it.

Ctrl-C, SIGTERM and SIGHUP are one thing here, a KeyboardInterrupt. A child has a process group of its own, so
that Ctrl-C in a terminal does not reach it besides: it is told once, by us, and tidies up in order.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ztune.errors import ZtuneError
from ztune.onhost.host import interrupt

GRACE_S = 120.0
"""How long a child has to remove what it made; a trial under emulation takes tens of seconds for that."""


def script(main: Callable[[], int | None]) -> NoReturn:
    """End with what ``main`` returns: with 130 after a signal, with a sentence after an error of ztune's."""
    try:
        with interrupt.signals_as_interrupt():
            code = main()
    except KeyboardInterrupt:
        code = 130
    except ZtuneError as error:
        sys.exit(f"bench/{Path(sys.argv[0]).name}: {error}")
    sys.exit(code)


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Return what ``subprocess.run`` does; the child ends in order where this is interrupted."""
    check = options.pop("check", False)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with interrupt.signals_as_interrupt():
        process = begin(command, **options)
        try:
            out, err = process.communicate()
        finally:
            end(process)
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def begin(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Return ``command``, started in a process group of its own. `end` ends it."""
    # In the background of a terminal it would stop for good as it reads from there.
    return subprocess.Popen(command, process_group=0, **{"stdin": subprocess.DEVNULL, **options})


def worker() -> None:
    """Let signals end this process of a pool at once: it inherits handlers, and has started nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def end(process: subprocess.Popen[Any]) -> None:
    """End a child that still runs: by SIGTERM, or SIGKILL after `GRACE_S` or another interrupt."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        process.kill()  # nothing where it has ended
        process.wait()
