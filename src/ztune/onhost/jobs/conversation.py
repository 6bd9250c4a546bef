"""A program of ours that does what it is told line by line, and answers in JSON.

A command is one line: a word and its arguments, divided by tabs. Answers are lines: ``{"progress": 0.5}``,
any number of times, then ``{"done": {…}}`` or ``{"error": "…"}``. It ends when its input does.
"""

from __future__ import annotations

import inspect
import json
import math
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ztune.errors import ZtuneError
from ztune.onhost.host.process import Account, Program, last_lines, log_tail
from ztune.onhost.jobs import client_program
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs.job import JobBase

_FUTURE = "from __future__ import annotations\n"  # stands at the head of every module
STOP_SECONDS = 120.0
CLOSE_SECONDS = 60.0
FATAL_SECONDS = 10.0
"""How long a program may take to answer after its log has said that it can't go on."""


class Conversation:
    """The running program: one question at a time."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        what: str,
        account: Account,
        home: Path,
        log: Path,
        patience: float = 1.0,
        env: dict[str, str] | None = None,
        fatal: str = "",
    ) -> None:
        """Start the program.

        Args:
            argv: the program and its arguments.
            what: how messages call it.
            account: who it runs as.
            home: where it stands.
            log: where its standard error goes.
            patience: multiplies time limits.
            env: added to a minimal environment.
            fatal: what its log says when it can't go on, though it may not end: some of its threads may wait
                for one another for ever.

        Raises:
            MissingError: it can't be run.
        """
        self.what = what
        self.log = log
        self.patience = patience
        self.fatal = fatal
        log.unlink(missing_ok=True)
        self.program = Program.start(
            argv,
            what=what,
            account=account,
            cwd=home,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            log=log,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        pipe = self.program.popen.stdout
        assert pipe is not None
        with pipe:
            for line in pipe:
                self._lines.put(line)
        self._lines.put(b"")

    def ask(
        self,
        *words: str | int | Path,
        seconds: float = 600.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, Any]:
        """Give a command and return its answer; it may take ``seconds`` times ``patience``.

        Raises:
            ZtuneError: it failed, took too long or died; the sentence holds its last words.
        """
        line = "\t".join(map(str, words))
        if "\n" in line or line.count("\t") != len(words) - 1:
            raise ZtuneError(f"{self.what}: {line!r} can't be said in one line; choose another path")
        pipe = self.program.popen.stdin
        assert pipe is not None
        try:
            pipe.write(line.encode() + b"\n")
            pipe.flush()
        except OSError:
            raise self._died(str(words[0])) from None
        limit = seconds * self.patience
        deadline = time.monotonic() + limit
        dead = math.inf
        while True:
            try:
                answer = self._lines.get(timeout=min(0.5, max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                now = time.monotonic()
                if now > deadline:
                    raise ZtuneError(f"{self.what} did not end {words[0]!r} within {limit:.0f} s") from None
                if now > dead:
                    self.program.kill()
                    raise ZtuneError(
                        f"{self.what} could not go on in {words[0]!r}, nor end; its log ends: "
                        f"{last_lines(self.log)}"
                    ) from None
                if dead == math.inf and self.fatal and self.fatal in log_tail(self.log):
                    dead = now + FATAL_SECONDS * self.patience
                continue
            if not answer:
                raise self._died(str(words[0]))
            try:
                said = json.loads(answer)
            except ValueError:
                raise ZtuneError(f"{self.what} gave an answer that can't be read: {answer[:200]!r}") from None
            if "error" in said:
                raise ZtuneError(f"{self.what} failed in {words[0]!r}: {said['error']}")
            if "done" in said:
                found: dict[str, Any] = said["done"]
                return found
            if on_progress is not None:
                on_progress(float(said["progress"]))

    def _died(self, word: str) -> ZtuneError:
        self.program.wait(5.0)
        how = self.program.how_it_ended()
        return ZtuneError(
            f"{self.what} died in {word!r} ({how}); its log ends: {last_lines(self.log) or '(nothing)'}"
        )

    def pids(self) -> list[int]:
        """Return its pid, while it lives."""
        return [self.program.pid] if self.program.alive() else []

    def kill(self) -> None:
        """End it at once: it is made so that this does no harm."""
        self.program.kill()

    def stop(self) -> None:
        """End its input and wait until it has ended.

        Raises:
            ZtuneError: it had died, ended with an error, or had to be killed.
        """
        try:
            if not self.program.alive():
                raise self._died("waiting")
            assert self.program.popen.stdin is not None
            self.program.popen.stdin.close()
            limit = STOP_SECONDS * self.patience
            if not self.program.wait(limit):
                raise ZtuneError(f"{self.what} did not end within {limit:.0f} s and was killed")
            if self.program.popen.returncode != 0:
                raise self._died("ending")
        finally:
            self.program.kill()


def text_of(module: ModuleType) -> str:
    """Return the text of a program that stands alone: ``module``, with ``client_program`` in place of the
    line that imports it.

    As text, so that it can be read by its user wherever ztune itself lies, in a zip file even.
    """
    text, shared = inspect.getsource(module), inspect.getsource(client_program)
    imports = re.compile(rf"^from {re.escape(client_program.__name__)} import .*\n", re.MULTILINE)
    return imports.sub(lambda _: shared.partition(_FUTURE)[2], text, count=1)


class Client(Conversation):
    """A program that takes a word and a JSON object of arguments, and closes its database when told to."""

    def do(
        self,
        word: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        seconds: float = 600.0,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, Any]:
        """Have it do something and return its answer, as ``ask`` does."""
        return self.ask(word, json.dumps(arguments or {}), seconds=seconds, on_progress=on_progress)

    def stop(self) -> None:
        """Close the database and end the program; raises ZtuneError as ``Conversation.stop`` does."""
        try:
            self.do("close", seconds=CLOSE_SECONDS)
        except ZtuneError:
            self.program.kill()
            raise
        super().stop()


class ClientJob(JobBase):
    """A job whose work a Python program of ours does, as the database's user."""

    PROGRAM: ClassVar[ModuleType]
    """The program, which imports nothing of ztune but ``client_program``."""
    CALLED: ClassVar[str]
    """How messages call it."""

    def _set_up(self) -> None:
        super()._set_up()
        self.python = ""
        """The Python that runs it: for ``check`` to find."""

    def lay_out(self) -> None:
        """Put the program where the account can read it."""
        places.lend(self.home / "client.py", text_of(self.PROGRAM), self.account)

    def env(self) -> dict[str, str]:
        """Return what is added to the program's minimal environment."""
        return {}

    def connect(self) -> Client:
        """Start the program."""
        client = Client(
            [self.python, "-I", "-B", self.home / "client.py"],
            what=self.CALLED,
            account=self.account,
            home=self.home,
            log=self.home / "client.log",
            patience=self.patience,
            env=self.env(),
        )
        return self.begin(client)

    @property
    def client(self) -> Client:
        """The program; there is one after ``start``."""
        return self.running(Client)
