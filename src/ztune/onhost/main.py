"""The trial program's command line: ``hello``, ``look``, ``run`` … See docs/trial-format.md."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ztune.errors import InputError, ZtuneError
from ztune.onhost.host import own_directory

if TYPE_CHECKING:
    from ztune.onhost.events import Events
    from ztune.onhost.trial.spec import Spec

USAGE = (
    "usage: ztune-trial hello | look | parents DATASET… | run | clean --state DIR [--patience N] | "
    "list --state DIR | forget --state DIR --disk PATH [--trial TRIAL] [--yes]"
)
MAX_SPEC = 4 << 20


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 failed, 2 bad input, 3 something is missing."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        command = words.pop(0) if words else ""
        if command == "hello" and not words:
            from ztune.onhost.host.about import environment

            print(json.dumps(environment()), flush=True)
            return 0
        if command == "look" and not words:
            from ztune.onhost.look import answer

            return answer.main()
        if command == "parents" and words:
            return _parents(words)
        if command == "run" and not words:
            return _run()
        if command in ("clean", "list"):
            return _clean(command, *_options(words))
        if command == "forget":
            return _forget(words)
        raise InputError(USAGE)
    except ZtuneError as error:
        print(f"ztune-trial: {error}", file=sys.stderr)
        return error.exit_code


def _parents(names: list[str]) -> int:
    from ztune.onhost.events import Events
    from ztune.onhost.host.zfs import Commands, Zfs
    from ztune.onhost.layout import check_dataset_name
    from ztune.onhost.trial import parents

    try:
        for name in names:
            check_dataset_name(name)
    except ValueError as error:
        raise InputError(str(error)) from None
    # Commands and warnings are no part of this answer: each trial says them.
    zfs = Zfs(Commands(Events(io.StringIO())))
    parents.check(zfs, names)
    print(json.dumps({name: parents.facts(zfs, name) for name in names}), flush=True)
    return 0


def _options(words: list[str]) -> tuple[Path, float]:
    state: Path | None = None
    patience: float | None = None
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in ("--state", "--patience") or not (equals or words):
            raise InputError(USAGE)
        value = value if equals else words.pop(0)
        if name == "--state":
            state = Path(value)
        else:
            try:
                patience = float(value)
            except ValueError:
                patience = 0.0
            if not 1.0 <= patience <= 10_000:
                raise InputError(f"--patience {value}: it takes a number from 1 to 10000")
    if state is None or not state.is_absolute():
        raise InputError("--state takes the absolute path of the state directory; " + USAGE)
    if patience is None:
        from ztune.onhost.host import about

        patience = about.patience()
    return own_directory.real(state), patience


def _forget(words: list[str]) -> int:
    from ztune.onhost.trial import clean

    do = "--yes" in words
    words = [word for word in words if word != "--yes"]
    given = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) != 2 * len(given) or not {"--state", "--disk"} <= {*given} <= {
        "--state",
        "--disk",
        "--trial",
    }:
        raise InputError(USAGE)
    state, _ = _options(["--state", given["--state"], "--patience", "1"])
    found = clean.forget(state, given["--disk"], given.get("--trial", ""), do=do)
    print(json.dumps({"things": found}), flush=True)
    return 0


def _clean(command: str, state: Path, patience: float) -> int:
    from ztune.onhost.events import Events
    from ztune.onhost.host.interrupt import uninterrupted
    from ztune.onhost.trial import clean

    if command == "list":
        # Commands are no part of this answer.
        print(json.dumps(clean.listing(state, Events(io.StringIO()))), flush=True)
        return 0
    events = Events()
    ok = False
    try:
        with uninterrupted():
            ok = clean.clean(state, events, patience=patience)
    except ZtuneError as error:
        events.error(str(error), "destroy")
        return error.exit_code
    finally:
        events.send("end", status="ok" if ok else "failed")
    return 0 if ok else 1


class _Control:
    """Reads control lines: "stop", or the end of standard input, stops the trial as SIGTERM would."""

    def __init__(self) -> None:
        self._done = False
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Begin to read, in a thread of its own."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in sys.stdin:
                if line.strip() == "stop":
                    break
        except (OSError, ValueError):
            pass
        self.stop()

    def stop(self) -> None:
        """Stop the trial, once; nothing after ``finish``."""
        with self._lock:
            if self._done:
                return
            self._done = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def finish(self) -> None:
        """From now on a lost reader means nothing."""
        with self._lock:
            self._done = True


def _run() -> int:
    from ztune.onhost.events import Events
    from ztune.onhost.host import room
    from ztune.onhost.host.interrupt import signals_as_interrupt
    from ztune.onhost.trial import spec as specs

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    control = _Control()
    # Only our events may go to standard output: whatever a job prints goes where people read.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    events = Events(out, on_lost=control.stop)
    status, code = "failed", 1
    with signals_as_interrupt():
        try:
            spec = specs.parse(sys.stdin.readline(MAX_SPEC))
            spec = replace(spec, state=own_directory.real(spec.state))
            # From here on "stop" and the end of standard input are as good as SIGTERM.
            control.watch()
            status = _trial(spec, events)
            code = 0 if status == "ok" else 1
        except ZtuneError as error:
            events.error(str(error), "prepare", of_host=room.is_of_host(error))
            code = error.exit_code
        except KeyboardInterrupt:
            status = "stopped"
        finally:
            control.finish()
    events.send("end", status=status)
    return code


def _trial(spec: Spec, events: Events) -> str:
    # Imported here: under emulation it takes seconds, and a spec with a fault needs none of it.
    from ztune.onhost.trial.lifecycle import Parts, RunningTrial
    from ztune.onhost.trial.lock import RunLock

    lock = RunLock(spec.state, spec.run)
    lock.acquire()
    try:
        return RunningTrial(spec, events, Parts.standard(), lock).run()
    finally:
        lock.release()


if __name__ == "__main__":
    sys.exit(main())
