"""A database server of our own: started, waited for, watched, stopped in order, else killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host.process import Account, Program, last_lines, run
from ztune.onhost.host.workdir import WorkDir, short_parent
from ztune.onhost.jobs.job import JobBase, Running

STOP_SECONDS = 120.0
"""How long a database may take to shut down on an ordinary machine; ``patience`` multiplies it."""


class Server:
    """One server process and its log."""

    def __init__(
        self, what: str, log: Path, account: Account, *, death_signal: signal.Signals, patience: float = 1.0
    ) -> None:
        """Note what it is; nothing is started.

        Args:
            what: how messages call it, such as ``PostgreSQL``.
            log: where its output goes.
            account: who it runs as.
            death_signal: what ends it with its children at once; also what the kernel sends if ztune dies.
            patience: multiplies every time limit.
        """
        self.what = what
        self.log = log
        self.account = account
        self.death_signal = death_signal
        self.patience = patience
        self._program: Program | None = None

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        cwd: Path,
        ready: Callable[[], bool],
        seconds: float,
        env: dict[str, str] | None = None,
        leave_after: float | None = None,
        why_not: Callable[[], str] = lambda: "",
    ) -> None:
        """Start it and wait until ``ready`` says so, at most ``seconds`` times ``patience``.

        After ``leave_after`` seconds it is left to go on by itself. ``why_not`` says why ``ready`` did not,
        for the sentence; empty where nobody knows.

        Raises:
            InputError: it didn't come up; the sentence ends with the last lines of its log.
        """
        if self.running:
            return
        # A log of its own for each start: what went wrong before isn't told again.
        self.log.unlink(missing_ok=True)
        program = Program.start(
            argv,
            what=self.what,
            account=self.account,
            cwd=cwd,
            env=env,
            log=self.log,
            death_signal=self.death_signal,
        )
        self._program = program
        limit = seconds * self.patience
        began = time.monotonic()
        while not ready():
            gone = time.monotonic() - began
            if leave_after is not None and gone >= leave_after:
                return
            if not program.alive():
                self._program = None
                how = program.how_it_ended()
                raise InputError(f"{self.what} did not start ({how}); its log ends: {self.said()}")
            if gone > limit:
                self.kill()
                why = why_not()
                raise InputError(
                    f"{self.what} did not start within {limit:.0f} s; {f'{why}; ' if why else ''}"
                    f"its log ends: {self.said()}"
                )
            time.sleep(0.05)

    def said(self) -> str:
        """Return the last lines of its log."""
        return last_lines(self.log) or "(nothing)"

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._program is not None and self._program.alive()

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._program is None:
            raise ZtuneError(f"{self.what} is not running; start it first")
        return self._program.pid

    def pids(self) -> list[int]:
        """Return ``pid``, while it lives."""
        return [self.pid] if self.running else []

    def watch(self) -> None:
        """Raise ``ZtuneError`` if it has died; for calling while a client works."""
        if self._program is not None and not self._program.alive():
            how = self._program.how_it_ended()
            raise ZtuneError(f"{self.what} died during the work ({how}); its log ends: {self.said()}")

    def stop(self, number: signal.Signals, seconds: float, forced: str) -> None:
        """Shut it down in order; does nothing when it doesn't run.

        After ``seconds`` times ``patience`` comes the death signal, then SIGKILL.

        Args:
            number: the signal that orders it to shut down.
            seconds: how long it may take.
            forced: what the death signal does to it, for the sentence: "stopped by an immediate shutdown".

        Raises:
            ZtuneError: it had died before, or had to be forced: its files are as after a crash.
        """
        if self._program is None:
            return
        program = self._program
        if not program.alive():
            try:
                self.watch()
            finally:
                self._program = None
        limit = seconds * self.patience
        steps = [(number, limit)]
        if self.death_signal is not signal.SIGKILL:
            steps.append((self.death_signal, 10.0 * self.patience))
        try:
            ended = program.stop(steps)
        finally:
            self._program = None
        if ended != 0:
            how = "killed" if ended is None else forced
            raise ZtuneError(
                f"{self.what} did not shut down in order within {limit:.0f} s and was {how}; "
                f"its log ends: {self.said()}"
            )
        if program.popen.returncode != 0:
            raise ZtuneError(
                f"{self.what} did not shut down in order: it {program.how_it_ended()}; "
                f"its log ends: {self.said()}"
            )

    def wait_for_end(self, seconds: float) -> None:
        """Wait for a server that was told to stop in another way, at most ``seconds`` times ``patience``.

        Raises:
            ZtuneError: it is still there, and was killed.
        """
        program, limit = self._program, seconds * self.patience
        if program is not None and not program.wait(limit):
            self.kill()
            raise ZtuneError(
                f"{self.what} did not shut down in order within {limit:.0f} s and was killed; "
                f"its log ends: {self.said()}"
            )
        self._program = None

    def kill(self) -> None:
        """End it at once; its files are about to be deleted."""
        if self._program is not None:
            program, self._program = self._program, None
            program.stop([(self.death_signal, 5.0 * self.patience)])

    def cut(self) -> None:
        """End it with its children and without a word, as a power cut does."""
        if self._program is not None:
            program, self._program = self._program, None
            # Held first, so that it starts no child while they are counted.
            if program.alive():
                program.popen.send_signal(signal.SIGSTOP)
            program.kill()


class SocketDirectory:
    """A directory for a server's socket that only its user can enter, with a path short enough for one."""

    def __init__(self, workdir: WorkDir, account: Account, socket_name: str) -> None:
        """Make it, in ``workdir`` if its path is short enough for ``socket_name``, else elsewhere."""
        self._own: WorkDir | None = None
        needed = len(f"/{socket_name}")
        if len(os.fsencode(workdir.path / "s")) + needed > 107:
            self._own = WorkDir.create("s", parent=short_parent(len("/ztune-s-") + 12 + len("/s") + needed))
            self.path = self._own.sub("s", owner=account.owner)
        else:
            self.path = workdir.sub("s", owner=account.owner)

    def remove(self) -> None:
        """Remove what does not lie in the work directory."""
        if self._own is not None:
            self._own.remove()
            self._own = None


class DatabaseServer:
    """What a database's own server has around the ``Server`` and the socket's directory that it makes.

    A subclass starts and stops in its own way.
    """

    def __init__(
        self,
        title: str,
        workdir: WorkDir,
        home: Path,
        account: Account,
        socket_name: str,
        *,
        death_signal: signal.Signals = signal.SIGKILL,
        patience: float = 1.0,
    ) -> None:
        """Make the directory of its socket; nothing is started.

        Args:
            title: how messages call it.
            workdir: for its log and its socket.
            home: a directory of the account's, for its clients to stand in.
            account: who it runs as.
            socket_name: of the longest name of its socket.
            death_signal: what ends it with its children at once.
            patience: multiplies every time limit.
        """
        self.workdir = workdir
        self.home = home
        self.account = account
        self.patience = patience
        self._sockets = SocketDirectory(workdir, account, socket_name)
        self.socket_dir = self._sockets.path
        self.socket = self.socket_dir / socket_name
        self._server = Server(
            title, workdir.path / "server.log", account, death_signal=death_signal, patience=patience
        )

    @property
    def log(self) -> Path:
        """Where it says what it has to say."""
        return self._server.log

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._server.running

    @property
    def pid(self) -> int:
        """The process id that every other process of it descends from."""
        return self._server.pid

    def pids(self) -> list[int]:
        """Return ``pid``, while it lives."""
        return self._server.pids()

    def watch(self) -> None:
        """Raise ``ZtuneError`` if it has died; for calling while a client works."""
        self._server.watch()

    def said(self) -> str:
        """Return the last lines of its log."""
        return self._server.said()

    def run_client(self, argv: Sequence[str | Path], what: str, *, seconds: float = 600.0, **how: Any) -> str:
        """Run a client program against it; return what that says. It may take ``seconds`` times ``patience``.

        ``how``: as for ``process.run``.

        Raises:
            ZtuneError: it failed, or the server died meanwhile.
        """
        limit = seconds * self.patience
        return run(
            argv, what=what, account=self.account, cwd=self.home, seconds=limit, watch=self.watch, **how
        )

    def stop(self) -> None:
        """Shut it down in order, else kill it; does nothing when it doesn't run.

        Raises:
            ZtuneError: it had died before, or had to be forced.
        """
        self._server.stop(signal.SIGTERM, STOP_SECONDS, "killed")

    def cut(self) -> None:
        """End every process of it at once, as a power cut does."""
        self._server.cut()

    def kill(self) -> None:
        """End it at once: its files are about to be deleted. The socket's directory goes with it."""
        try:
            self._server.kill()
        finally:
            self._sockets.remove()


_Server = TypeVar("_Server", bound=Running)


class ServerJob(JobBase, Generic[_Server]):
    """A job on a database server of its own, which ``lay_out`` makes."""

    def _set_up(self) -> None:
        super()._set_up()
        self._server: _Server | None = None

    @property
    def server(self) -> _Server:
        """The server; there is one after ``prepare``."""
        if self._server is None:
            raise ZtuneError(f"{self.name}: prepare comes before this step")
        return self._server

    def serve_with(self, server: _Server) -> None:
        """Note the server that the job works on: it is ended with the job's other programs."""
        self._server = server

    def pids(self) -> list[int]:
        """Return the server's process and those of the programs beside it."""
        return [*(self._server.pids() if self._server is not None else []), *super().pids()]

    def _end(self, end: Callable[[Running], None]) -> None:
        with contextlib.ExitStack() as last:
            if self._server is not None:
                last.callback(end, self._server)
            super()._end(end)
