"""A program that does its work and ends, below a shell that waits before and after.

So there is a process when a recorder attaches, and its counters can still be read when the program has ended.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ztune.errors import ZtuneError
from ztune.onhost.host import own_directory
from ztune.onhost.host.process import Account, Program, io_of, last_lines
from ztune.onhost.jobs.job import JobBase

STOP_SECONDS = 30.0


class Launcher:
    """The shell, from ``start`` until ``stop`` or ``kill``; its standard input gives the word."""

    def __init__(self, what: str, home: Path, account: Account, *, log: Path, patience: float = 1.0) -> None:
        """Note how it is to be started.

        Args:
            what: how messages call the program.
            home: a directory of the account's, where the program stands.
            account: who it runs as.
            log: where it says what it has to say; emptied by ``start``.
            patience: multiplies time limits.
        """
        self.what = what
        self.home = home
        self.account = account
        self.log = log
        self.patience = patience
        self._program: Program | None = None

    def start(self, command: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        """Start the shell that waits for the word to run ``command``."""
        for path in (self.home / "rc", self.home / "rc.new", self.log):
            path.unlink(missing_ok=True)
        setpriv = shutil.which("setpriv")
        launch = '"$@"'
        if setpriv:
            # The program ends with the shell, also if that was killed before setpriv had asked for it: then
            # it has another parent already.
            alive = '[ "$PPID" = "$0" ] && exec "$@"'
            launch = f'{shlex.quote(setpriv)} --pdeathsig KILL /bin/sh -c {shlex.quote(alive)} $$ "$@"'
        # Without its note nobody would know that the program has ended: then the shell ends too.
        note = "{ echo $? > rc.new && mv rc.new rc; } || exit 1"
        script = f"read go || exit 0; {launch}; {note}; read end; exit 0"
        self._program = Program.start(
            ["/bin/sh", "-c", script, "sh", *command],
            what=self.what,
            account=self.account,
            cwd=self.home,
            env=env,
            log=self.log,
            stdin=subprocess.PIPE,
        )

    def pids(self) -> list[int]:
        """Return the shell's pid, while it lives."""
        return [self._program.pid] if self._program is not None and self._program.alive() else []

    def run(
        self, limit: float, tick: Callable[[float], None] = lambda _gone: None
    ) -> tuple[float, dict[str, int]]:
        """Give the word and wait for the end; return the seconds until then, and what the program read and
        wrote, as ``io_of`` has it. How it ended, ``must_have_ended_well`` and ``exit_code`` say.

        Args:
            limit: the most it may take, in s.
            tick: called several times a second with the seconds gone by; may raise.

        Raises:
            ZtuneError: the shell died, or it took too long; the sentence ends with its last lines.
        """
        program = self._program
        if program is None or not program.alive():
            raise ZtuneError(f"{self.what}: start comes before this step")
        before = io_of([program.pid])
        pipe = program.popen.stdin
        assert pipe is not None
        began = time.monotonic()
        pipe.write(b"go\n")
        pipe.flush()
        while not (self.home / "rc").exists():
            gone = time.monotonic() - began
            if not program.alive():
                raise ZtuneError(f"{self.what} {program.how_it_ended()}; its log ends: {self.said()}")
            if gone > limit:
                raise ZtuneError(f"{self.what} did not end within {limit:.0f} s")
            tick(gone)
            time.sleep(0.05)
        after = io_of([program.pid])
        # Less the time since the shell's own note: we look only twenty times a second, which would blur a
        # short run. A clock that is set matters between the note and here alone.
        since = time.time() - (self.home / "rc").stat().st_mtime
        seconds = max(time.monotonic() - began - since, 1e-3)
        return seconds, {name: after[name] - before.get(name, 0) for name in after}

    def must_have_ended_well(self) -> None:
        """Raise ``ZtuneError`` if the program ended with an error; the sentence ends with its last lines."""
        if self.exit_code() != 0:
            raise ZtuneError(f"{self.what} ended with exit code {self.exit_code()}: {self.said()}")

    def exit_code(self) -> int:
        """Return how the program ended; for after ``run``. Raises ZtuneError where nothing says it."""
        try:
            # In the account's directory: not what a link of its making leads to.
            with os.fdopen(own_directory.open_plain(self.home / "rc", os.O_RDONLY), "rb") as file:
                return int(file.read(16))
        except (OSError, ValueError):
            raise ZtuneError(f"{self.what}: {self.home / 'rc'} does not say how it ended") from None

    def said(self) -> str:
        """Return the last lines of what it said."""
        return last_lines(self.log) or "(nothing)"

    def stop(self) -> None:
        """End the shell; the program has ended by itself.

        Raises:
            ZtuneError: the program was still at work.
        """
        program, self._program = self._program, None
        if program is None:
            return
        if program.popen.stdin is not None:
            program.popen.stdin.close()
        limit = STOP_SECONDS * self.patience
        if program.wait(limit):
            return
        program.kill()
        raise ZtuneError(f"{self.what} was still at work {limit:.0f} s after its end, and was killed")

    def kill(self) -> None:
        """End the shell and the program at once."""
        program, self._program = self._program, None
        if program is not None:
            if program.popen.stdin is not None:
                program.popen.stdin.close()
            program.kill()


class LaunchedJob(JobBase):
    """A job in which a program is run that ends by itself."""

    def launch(
        self, what: str, command: Sequence[str | Path], log: str, env: dict[str, str] | None = None
    ) -> Launcher:
        """Start a shell that waits for the word to run ``command``, whose words go to ``log`` in the work
        directory.
        """
        assert self.workdir is not None
        path = self.workdir.path / log
        launcher = self.begin(Launcher(what, self.home, self.account, log=path, patience=self.patience))
        launcher.start(command, env)
        return launcher

    @property
    def launcher(self) -> Launcher:
        """The shell; there is one after ``start``."""
        return self.running(Launcher)
