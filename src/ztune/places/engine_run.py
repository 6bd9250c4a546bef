"""One replay by ``ztune-engine`` on this machine: what it is to do, what it may take, and how it ended.

One process per trial: it can't take others down with it, and its memory is gone when it ends. Nothing here
knows of traces and studies, so that the machine that runs an engine needs neither (``ztune.fleet``).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from ztune import paths
from ztune.errors import InputError, MissingError
from ztune.onhost.host import shared_files
from ztune.onhost.host.process import end_group, ends_within, signal_name
from ztune.places import engine_limits, loaded
from ztune.places.engine import Engine, last_line
from ztune.places.processors import keep_on, one_processor
from ztune.study.layout import MIN_ARC
from ztune.units import format_size

# Memory of an engine beside ARC and pool contents, bytes: itself 140 MiB, and the load's transaction groups.
ENGINE_BYTES = 320 << 20
LIMIT_REACHED = 5  # the engine's exit code
_KILL_GRACE_S = 2.0
_LEAST_FILES = 1 << 30  # bytes; with less room on the disk an engine does not turn to files at all


# Called with the phase ("load", "measure") and the share of it that is done, 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: with a result, or with one sentence that says why there is none.

    ``of_place``: whether that was for want of memory or disk where it ran, so that it may do elsewhere.
    ``killed``: whether its engine was killed from outside, as when what else runs there took all memory: it
    may do there, too.
    """

    result: dict[str, Any] | None
    error: str | None
    wall_s: float
    of_place: bool = False
    killed: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.result is not None


class _EngineError(Exception):
    """The engine gave no answer; the words are one sentence that says why."""

    def __init__(self, words: str, of_place: bool = False, killed: bool = False) -> None:
        super().__init__(words)
        self.of_place, self.killed = of_place, killed


@dataclass(frozen=True)
class EngineWork:
    """What an engine is to do: the same on every machine but for the paths.

    ``contents``: the most that the pools come to hold, bytes; ``filler``: what of it is an aged pool's
    filler, which takes room in files alone. ``threads``: how the trace's threads go on, and on what
    processors. ``key``: of the image that it begins from
    (``loaded.key_of``). ``timeout_s``: when it is given up, seconds.
    """

    spec: Mapping[str, Any]
    ops: Path
    content: Mapping[str, Path]
    key: str
    contents: int
    filler: int
    threads: Mapping[str, Any]
    timeout_s: float

    @cached_property
    def load(self) -> dict[str, Any]:
        """The spec of the load that the image comes from."""
        return loaded.load_spec(self.spec, self.threads["processor"])


@dataclass(frozen=True)
class EngineRoom:
    """What ``jobs`` engines that run at once may take of a machine: ``memory`` bytes in all. ``backing``:
    "memory" or "file", where pools have to be in one of the two."""

    jobs: int
    memory: int
    backing: str | None = None

    @property
    def each(self) -> int:
        """Bytes of memory of one engine."""
        return self.memory // self.jobs

    def backing_of(self, work: EngineWork, spec: Mapping[str, Any], *, mapped: bool = False) -> str:
        """Return "memory", or "file" where the pools of all jobs at once would take too much memory.

        ``mapped``: whether the pools begin as a file that is there. Of that only what is written anew takes
        memory, while files of the engine's own would begin with a copy of all; it turns to these by itself
        where memory ends.
        """
        if self.backing is not None:
            return self.backing
        if mapped and work.filler == 0:
            return "memory"
        need = self.jobs * (memory_bytes(spec) + work.contents)
        return "memory" if need <= self.memory else "file"


def sweep() -> None:
    """Remove the folders of engines whose ztune was killed before it could."""
    shared_files.remove_left(paths.scratch(), paths.ENGINE, "")


def run_engine(
    work: EngineWork, engine: Engine, room: EngineRoom, progress: Progress | None, stop: threading.Event
) -> Outcome:
    """Run ``engine`` on ``work``. Its crash, refusal or timeout becomes the outcome's error.

    Raises MissingError where the engine finds that it does not match the library: no layout would work;
    InputError where there is too little memory or disk for it by itself.
    """
    started = time.monotonic()
    of_place = killed = False
    with shared_files.temporary(paths.scratch(), paths.ENGINE) as folder:
        folder.mkdir(mode=0o700)
        one = _Engine(work, engine, room, folder, progress, stop)

        def load(image: Path) -> None:
            one.do("load", work.load, ["--image", str(image)])

        try:
            with loaded.image(work.key, work.contents + work.filler, load, stop) as image:
                text = one.do("replay", work.spec, ["--image", f"/proc/self/fd/{image}"], image)
            result = json.loads(text)
            if not isinstance(result, dict) or not isinstance(result.get("measure"), dict):
                raise ValueError
            return Outcome(result, None, time.monotonic() - started)
        except _EngineError as error:
            words, of_place, killed = str(error), error.of_place, error.killed
        except loaded.NotLoadedError as error:
            words = str(error)
        except ValueError:
            words = "the engine's result is not the JSON it should be"
    return Outcome(None, words, time.monotonic() - started, of_place, killed)


@dataclass(frozen=True)
class _Engine:
    work: EngineWork
    engine: Engine
    room: EngineRoom
    folder: Path
    progress: Progress | None
    stop: threading.Event

    def do(self, command: str, spec: Mapping[str, Any], arguments: Sequence[str], *files: int) -> str:
        """Return what the engine's ``command`` on ``spec`` prints; it may use the open ``files``."""
        work, folder = self.work, self.folder
        mapped = bool(files) and engine_limits.disk_bytes(folder) // self.room.jobs >= _LEAST_FILES
        backing = self.room.backing_of(work, spec, mapped=mapped)
        try:
            most = limits(work, self.room, spec, folder, backing, loads=command == "load")
        except InputError as lacking:
            if self.room.jobs == 1:
                raise
            raise _EngineError(str(lacking), of_place=True) from None
        full = {
            **spec,
            "content": {r: str(p.resolve()) for r, p in work.content.items()},
            "backing": backing,
            **(work.threads if command == "replay" else {}),
            **most,
        }
        path = folder / f"{command}.json"
        path.write_text(json.dumps(full))
        line = [str(self.engine.path), command, "--spec", str(path), "--ops", str(work.ops)]
        code, words, text = self._process([*line, *arguments, "--progress"], files)
        if self.stop.is_set():
            raise _EngineError("it was interrupted")
        error = self._error(code, words)
        if error is not None:
            killed = code == -signal.SIGKILL
            raise _EngineError(error, of_place=killed or code == LIMIT_REACHED, killed=killed)
        return text

    def _process(
        self,
        command: list[str],
        files: Sequence[int],
    ) -> tuple[int | None, str, str]:
        """Return exit code (None: timeout), the last words on stderr, and stdout."""
        # The engine must not outlive a ztune that is killed: the kernel then kills it too.
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with one_processor() as processor, (self.folder / "stdout").open("w+b") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd=self.folder,
                pass_fds=files,
            )
            if processor is not None:
                keep_on(process.pid, processor)
            assert process.stderr is not None
            words: list[str] = []
            reader = threading.Thread(
                target=_read_progress, args=(process.stderr, self.progress, words), daemon=True
            )
            reader.start()
            deadline = time.monotonic() + self.work.timeout_s
            code: int | None = None
            try:
                while not self.stop.is_set() and time.monotonic() <= deadline:
                    if ends_within(process, 0.1):
                        code = process.returncode
                        break
            finally:
                end_group(process, _KILL_GRACE_S)
                reader.join(timeout=_KILL_GRACE_S)
                process.stderr.close()
            out.seek(0)
            return code, last_line("\n".join(words)), out.read().decode(errors="replace")

    def _error(self, code: int | None, words: str) -> str | None:
        said = f': "{words}"' if words else ""
        if code is None:
            return f"the engine did not finish in {self.work.timeout_s:.0f} s and was stopped{said}"
        if code == 0:
            return None
        if code == -signal.SIGKILL:
            fewer = "fewer --jobs or " if self.room.jobs > 1 else ""
            return (
                f"the engine was killed by SIGKILL{said}: most likely by the kernel, as memory ran out (see "
                f"`dmesg`); try again when less else runs here, or with {fewer}a smaller --arc"
            )
        if code < 0:
            return f"the engine was killed by {signal_name(-code)}{said}"
        if code == 2:
            return f"the engine refused the layout{said}"
        if code == LIMIT_REACHED:
            fewer = "fewer --jobs, " if self.room.jobs > 1 else ""
            return f"{words} Use {fewer}a smaller --arc, a ZTUNE_HOME with more room, or a shorter recording"
        if code == 4:
            raise MissingError(
                f"the engine does not match this machine's OpenZFS library{said}; run `ztune doctor`"
            )
        return f"the engine failed with exit code {code}{said}"


def limits(
    work: EngineWork,
    room: EngineRoom,
    spec: Mapping[str, Any],
    folder: Path,
    backing: str,
    *,
    loads: bool = False,
) -> dict[str, Any]:
    """Return what one engine may take of memory, and of the disk that it then turns to.

    ``backing``: "memory" or "file", where its pools begin; ``loads``: it writes an image of them, too. Raises
    InputError where there is too little.
    """
    if memory_bytes(spec) > room.each:
        several = f"{room.jobs} at once" if room.jobs > 1 else "it"
        raise InputError(
            f"an engine with an ARC of {spec['arc_max'] >> 20} MiB takes about "
            f"{memory_bytes(spec) >> 20} MiB, and {several} may take "
            f"{room.memory >> 20} MiB of this machine's memory; use "
            f"{'fewer --jobs, ' if room.jobs > 1 else ''}a smaller --arc, a smaller --sample, or free memory"
        )
    pools = work.contents + work.filler
    image = pools if loads else 0
    need = room.jobs * (pools + image)
    free = engine_limits.disk_bytes(folder)
    if need > free and backing == "file":
        loaded.drop()
        free = engine_limits.disk_bytes(folder)
    if backing == "file" and need > free:
        raise InputError(
            f"the pools of {f'{room.jobs} layouts at once' if room.jobs > 1 else 'a layout'} may take up to "
            f"{need >> 20} MiB, more than fits into memory or into {paths.home()} ({free >> 20} MiB, beside "
            f"what is left free); use {'fewer --jobs, ' if room.jobs > 1 else ''}{_smaller(spec)} or "
            "another ZTUNE_HOME"
        )
    found: dict[str, Any] = {"memory_limit": room.each}
    files = free // room.jobs - image
    if backing == "file" or files >= _LEAST_FILES:
        found |= {"backing_dir": str(folder), "file_limit": files}
    return found


def _smaller(spec: Mapping[str, Any]) -> str:
    """Return how less is replayed: a sample has its part of the ARC, of which OpenZFS takes no less than
    MIN_ARC."""
    if int(spec["arc_max"]) >= 2 * MIN_ARC:
        return "a smaller --sample"
    of = 2 * int(spec.get("sample", 1))
    return f"--sample 1/{of} with an --arc of {format_size(of * MIN_ARC)} or more"


def memory_bytes(spec: Mapping[str, Any]) -> int:
    """Return about how much memory one engine takes beside the pools' contents, bytes."""
    return ENGINE_BYTES + int(1.25 * int(spec["arc_max"]))


def _read_progress(stream: IO[bytes], progress: Progress | None, words: list[str]) -> None:
    """Hand on progress lines; keep the last other lines, which are the engine's words."""
    try:
        for raw in stream:
            line = raw.decode(errors="replace").strip()
            if line.startswith("{"):
                try:
                    report = json.loads(line)
                    if progress is not None:
                        progress(str(report["phase"]), min(1.0, max(0.0, float(report["done"]))))
                    continue
                except (ValueError, KeyError, TypeError):
                    pass
            if line:
                words.append(line)
                del words[:-20]
    except ValueError:  # the stream was closed under us, at the end
        return
