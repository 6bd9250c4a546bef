"""OpenZFS in user space as mounted directories: starts, asks, ends and kills one ``ztune-mount``.

The program outlives who started it, unless it is asked not to. To kill it is to cut the power of its disks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket as sockets
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import mounts, own_directory
from ztune.onhost.host.process import signal_name

TYPE = "fuse.ztune"
"""What the mount table says of the program's mounts; their source is ``ztune:DATASET``."""
SOURCE = "ztune:"
DISKS = ("profile", "instant")
CACHES = ("volatile", "none", "lazy")
CONTROL, LOCK = "control", "lock"
_PREFIX = "ztune-mount: "
_ASK_S = 30.0
# A killed process first gives back its memory, and finishes a write to a slow disk.
_KILL_S = 60.0
_PROBE_S = 10.0
_MNT_DETACH, _UMOUNT_NOFOLLOW, _PR_SET_PDEATHSIG = 2, 8, 1
_KEEP_SIZE = 1  # fallocate(2): blocks for what is to come, without making the file longer
_LAST_WORDS = 4096  # bytes


class MountError(ZtuneError):
    """What went wrong with a mount, in one sentence; ``exit_code`` as the program's, where it gave one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        # 4 is a library that does not match: something that the machine lacks, too.
        kind = {2: InputError, 3: MissingError, 4: MissingError}.get(code or 1, ZtuneError)
        self.exit_code = kind.exit_code


@dataclass(frozen=True)
class MountOptions:
    """How the disks behave, and whether the kernel caches pages."""

    disks: str = "profile"
    """``profile``: service times of the profile in real time; ``instant``: as fast as this machine."""
    cache: str = "volatile"
    """What an acknowledged write outlives when the program is killed; docs/mount.md says it."""
    page_cache: bool = False

    def arguments(self) -> list[str]:
        """Return them as the program takes them. Raises MountError."""
        for name, value, known in (("disks", self.disks, DISKS), ("cache", self.cache, CACHES)):
            if value not in known:
                raise MountError(f'{name} is "{value}"; it is one of {", ".join(known)}', 2)
        page_cache = ["--page-cache"] if self.page_cache else []
        return ["--disks", self.disks, "--cache", self.cache, *page_cache]


class Mount:
    """A mount that runs, or ran."""

    def __init__(
        self,
        *,
        pid: int,
        store: Path,
        places: Mapping[str, Path],
        ready: Mapping[str, Any],
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid = pid
        self.store = store
        self.places = dict(places)
        """Dataset → directory, without symbolic links."""
        self.ready = dict(ready)
        """What the program said when it was ready; of an attached mount only what is known."""
        self.said = ""
        """What the program said last while it was stopped."""
        self._child = child
        self._gone = False
        self._code: int | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._fd, self._gone = -1, True
        # Of each mount the device: another mount may lie in its place later.
        table = mounts.table()
        found = {place: on_top(place, table) for place in self.places.values()}
        self._devices = {place: top.device for place, top in found.items() if top is not None and ours(top)}

    @classmethod
    def start(
        cls,
        program: Path,
        spec: Mapping[str, Any],
        store: Path,
        places: Mapping[str, Path],
        options: MountOptions = MountOptions(),
        patience_s: float = 120.0,
        *,
        die_with_caller: bool = False,
        loaded: bool = False,
    ) -> Mount:
        """Mount each dataset of ``places`` in its directory, and return when all are there.

        Args:
            program: ``ztune-mount``.
            spec: the engine's spec of the layout; of files and content it needs none.
            store: the disks' directory, made if missing. One that has pools already is imported.
            places: dataset → an empty directory, made if missing. Dead mounts of the same dataset there are
                unmounted first.
            options: how the disks behave.
            patience_s: seconds after which a program that does not get ready is killed.
            die_with_caller: the program is killed when the calling *thread* ends: a power cut.
            loaded: the pools in the store were filled under another layout, without log and cache disks:
                these are added, and the properties set.

        Raises:
            MountError: with the program's own words, where it has any. Nothing is left mounted.
        """
        arguments = [*options.arguments(), *(["--loaded"] if loaded else [])]
        if not places:
            raise MountError("there is no dataset to mount", 2)
        made: list[Path] = []
        try:
            store = _directory(store, made)
            pid = serving(store)
            if pid is not None:
                raise MountError(f"{store}: is in use: process {pid} has it mounted", 2)
            real: dict[str, Path] = {}
            for dataset, place in places.items():
                place = _clear(dataset, place, made)
                if place in real.values():
                    raise MountError(f"{place}: two datasets can't be mounted in one directory", 2)
                real[dataset] = place
            return cls._start(program, spec, store, real, arguments, patience_s, die_with_caller)
        except BaseException:
            for path in reversed(made):
                with contextlib.suppress(OSError):
                    path.rmdir()  # leaves alone what has something in it
            raise

    @classmethod
    def _start(
        cls,
        program: Path,
        spec: Mapping[str, Any],
        store: Path,
        places: Mapping[str, Path],
        arguments: list[str],
        patience_s: float,
        die_with_caller: bool,
    ) -> Mount:
        # In memory: a file with a name would be left behind where we are killed meanwhile.
        with os.fdopen(os.memfd_create("spec.json"), "w") as file, _log_for_writing(store) as log:
            json.dump({"files": [], "content": {}, **spec}, file)
            file.flush()
            spec_path = f"/proc/self/fd/{file.fileno()}"
            argv = [str(program.absolute()), "--spec", spec_path, "--store", str(store), *arguments]
            argv += [f"{dataset}={place}" for dataset, place in places.items()]
            try:
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    # Its own session: Ctrl-C in the terminal is meant for us. And no directory is kept busy.
                    start_new_session=True,
                    pass_fds=[file.fileno()],
                    cwd="/",
                    preexec_fn=_death_signal() if die_with_caller else None,
                )
            except OSError as error:
                raise MountError(f"{program}: can't be run: {error.strerror}", 3) from None
            assert child.stdout is not None
            try:
                ready = _ready(child, child.stdout, store, patience_s)
                return cls(pid=child.pid, store=store, places=places, ready=ready, child=child)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_KILL_S)
                for dataset, place in places.items():
                    with contextlib.suppress(MountError):
                        _detach_dead(dataset, place)
                raise
            finally:
                child.stdout.close()

    @classmethod
    def attach(cls, store: Path, places: Mapping[str, Path]) -> Mount:
        """Return the mount that somebody else started on ``store``. Raises MountError if none runs."""
        store = store.resolve()
        pid = serving(store)
        if pid is None:
            raise MountError(f"{store}: nothing has it mounted")
        real = {dataset: place.resolve() for dataset, place in places.items()}
        found = cls(pid=pid, store=store, places=real, ready={"ready": True, "pid": pid})
        # The kernel names who made the socket: it may be gone, and its number another's by now.
        if not mounts.uses(pid, store):
            raise MountError(f"{store}: process {pid} answers for it, but has none of its files open")
        return found

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start or the last ``reset``; docs/mount.md names them."""
        return self._ask("stats")

    def reset(self) -> None:
        """Set the counters to zero."""
        self._ask("reset")

    def sync(self) -> None:
        """Return when every transaction group is on the disks."""
        # As long as it takes: a slow disk may have gigabytes to write. A dead program closes its end.
        self._ask("sync", None)

    def alive(self) -> bool:
        """Whether the program still runs."""
        return not self._ended(0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the program is gone, so many seconds at most; whether it is."""
        return self._ended(timeout_s)

    @property
    def code(self) -> int | None:
        """The program's exit code, once it is gone; None for one that somebody else started."""
        return self._code

    def stop(self, timeout_s: float = 60.0) -> None:
        """End it in order and return when it is gone: pools exported, disks' caches written.

        Raises:
            MountError: it did not end in time (and still runs), or not well.
        """
        if self._gone:
            return
        start = _size(log_of(self.store))
        self._send(signal.SIGTERM)
        if not self._ended(timeout_s):
            raise MountError(
                f"{self.store}: process {self.pid} has not ended in {timeout_s:.0f} s; it may still be "
                f"writing to slow disks, so wait and try again"
            )
        left = self._detach()
        self.said = last_words(self.store, start)
        # Of a process that is not our child nobody tells the exit code.
        bad = self._code != 0 if self._code is not None else bool(left)
        if bad:
            why = self.said or (
                f"exit code {self._code}" if self._code is not None else "it left its mounts behind"
            )
            raise MountError(f"{self.store}: did not end in order: {why}")

    def cut(self) -> None:
        """Cut the power: SIGKILL; nothing is waited for, and ``kill`` takes away what is left."""
        self._send(signal.SIGKILL)

    def kill(self) -> None:
        """Cut the power: SIGKILL, then unmount what is left of it. Returns when it is gone."""
        self._send(signal.SIGKILL)
        if not self._ended(_KILL_S):
            raise MountError(f"{self.store}: process {self.pid} was killed and is still there")
        self._detach()

    def _send(self, number: signal.Signals) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, number)

    def _ended(self, timeout_s: float) -> bool:
        if self._gone:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        self._gone = True
        os.close(self._fd)
        self._fd = -1
        if self._child is not None:
            self._code = self._child.wait()
        return True

    def _detach(self) -> list[Path]:
        """Unmount what the program, which is gone, left; return where that was."""
        left = []
        for place, device in self._devices.items():
            top = on_top(place)
            # A device number is given anew, so a new mount may have the old one's; but it is not dead.
            if top is not None and ours(top) and top.device == device and dead(place):
                detach(place)
                left.append(place)
        return left

    def _ask(self, command: str, timeout_s: float | None = _ASK_S) -> dict[str, Any]:
        if not self.alive():
            raise MountError(f"{self.store}: the mount has died{_saying(self.store)}")
        return ask(self.store, command, timeout_s)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)
        child = getattr(self, "_child", None)
        if child is not None and child.returncode is None:
            child.returncode = 0  # it is meant to go on: no warning that it does


# -- the store ---------------------------------------------------------------------------------------------


def log_of(store: Path) -> Path:
    """Return where the program's words go: beside the store, which holds nothing but its own."""
    return store.with_name(store.name + ".log")


def last_words(store: Path, start: int = 0) -> str:
    """Return the last sentence in the log of a store, from byte ``start`` on; empty if there is none."""
    try:
        with log_of(store).open("rb") as file:
            file.seek(max(start, _size(log_of(store)) - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix(_PREFIX) if said else ""


def serving(store: Path) -> int | None:
    """Return the process that has ``store`` mounted, None if there is none: the kernel knows who listens."""
    try:
        with _connected(store, _ASK_S) as wire:
            peer = wire.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", peer)[0])
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise MountError(f"{store / CONTROL}: can't be asked: {error.strerror or error}") from None


def ask(store: Path, command: str, timeout_s: float | None = _ASK_S) -> dict[str, Any]:
    """Send one command to whoever has ``store`` mounted, and return the answer. Raises MountError."""
    try:
        with _connected(store, timeout_s) as wire:
            wire.sendall(command.encode() + b"\n")
            data = b""
            while not data.endswith(b"\n") and (piece := wire.recv(1 << 16)):
                data += piece
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError("no JSON object")
    except TimeoutError:
        raise MountError(f"{store}: the mount has not answered `{command}` in {timeout_s:.0f} s") from None
    except OSError as error:
        raise MountError(
            f"{store}: the mount does not answer `{command}`: {error.strerror or error}"
        ) from None
    except ValueError:
        raise MountError(f"{store}: the mount has not answered `{command}` in full{_saying(store)}") from None
    if "error" in answer:
        raise MountError(f"{store}: {answer['error']}")
    return answer


def _connected(store: Path, timeout_s: float | None) -> sockets.socket:
    wire = sockets.socket(sockets.AF_UNIX)
    wire.settimeout(timeout_s)
    try:
        # By way of the directory: a socket's path has at most 107 bytes, a store's may have more.
        fd = os.open(store, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            wire.connect(f"/proc/self/fd/{fd}/{CONTROL}")
        finally:
            os.close(fd)
    except BaseException:
        wire.close()
        raise
    return wire


# -- mounts ------------------------------------------------------------------------------------------------


def ours(mount: mounts.MountInfo) -> bool:
    """Whether a mount is a ``ztune-mount``'s."""
    return mount.type == TYPE and mount.source.startswith(SOURCE)


def all_ours() -> list[mounts.MountInfo]:
    """Return every mount of a ``ztune-mount`` that this process sees, dead ones too."""
    return [mount for mount in mounts.table() if ours(mount)]


def on_top(place: Path, table: list[mounts.MountInfo] | None = None) -> mounts.MountInfo | None:
    """Return what is mounted on ``place`` itself, the uppermost; None if nothing is."""
    found = [m for m in (mounts.table() if table is None else table) if m.point == place]
    return found[-1] if found else None


def dead(place: Path, patience_s: float = _PROBE_S) -> bool:
    """Whether what is mounted on ``place`` has lost its program.

    One that does not answer in time is not dead: its program may be stopped, or its disk slow.
    """
    result: list[int] = []

    def probe() -> None:
        try:
            os.statvfs(place)  # always asks the program; stat could be answered from the kernel's cache
            result.append(0)
        except OSError as error:
            result.append(error.errno or 0)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(patience_s)
    return result == [errno.ENOTCONN]


def detach(place: Path) -> None:
    """Unmount what is on ``place``, however busy it is. It must be a mount of ours. Raises MountError."""
    top = on_top(place)
    if top is None:
        return
    if not ours(top):
        raise MountError(
            f"{place}: left alone: {top.source} ({top.type}) is mounted there, which is not ours"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(place), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        return
    number = ctypes.get_errno()
    why = os.strerror(number)
    if number == errno.EPERM:
        # Without root it takes FUSE's own helper, which lets users unmount what they mounted.
        argv = ["fusermount3", "-u", "-z", "--", str(place)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, errors="replace")
        except OSError:
            why = "fusermount3 (package fuse3) is not installed"
        except subprocess.TimeoutExpired:
            why = "fusermount3 does not end"
        else:
            if done.returncode == 0:
                return
            why = (done.stderr.strip().splitlines() or [why])[-1].removeprefix("fusermount3: ")
    raise MountError(f"{place}: can't be unmounted: {why}")


def _detach_dead(dataset: str, place: Path) -> None:
    while (top := on_top(place)) is not None and ours(top):
        if top.source != SOURCE + dataset or not dead(place):
            return
        detach(place)


def _clear(dataset: str, place: Path, made: list[Path]) -> Path:
    """Return ``place`` without links when ``dataset`` can be mounted there. Raises MountError."""
    place = place.absolute()
    if on_top(place) is None:  # else it is no link, and asking what is mounted there might hang
        place = Path(os.path.realpath(place))
    _detach_dead(dataset, place)
    top = on_top(place)
    if top is not None:
        what = f"{top.source} ({top.type})"
        if ours(top):
            state = "dead: its program is gone" if dead(place) else "mounted already"
            raise MountError(f"{place}: {what} is {state}; unmount it first", 2)
        raise MountError(f"{place}: {what} is mounted there already; name another directory", 2)
    place = _directory(place, made)
    try:
        # What was missing a moment ago may have been made by somebody else.
        own_directory.check(place)
    except (OSError, own_directory.NotOursError) as error:
        raise MountError(f"{place}: can't be mounted on: {error}", 2) from None
    try:
        with os.scandir(place) as entries:
            if next(entries, None) is not None:
                raise MountError(f"{place}: is not empty; a mount would hide what is in it", 2)
    except OSError as error:
        raise MountError(f"{place}: can't be read: {error.strerror}", 2) from None
    return place


def _directory(path: Path, made: list[Path]) -> Path:
    """Return ``path`` without links, made if missing; what was made is added to ``made``."""
    try:
        path = Path(os.path.realpath(path))
        for parent in [*reversed(path.parents), path]:
            if not parent.exists():
                with contextlib.suppress(FileExistsError):
                    parent.mkdir()
                    made.append(parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        raise MountError(f"{path}: can't be used as a directory: {error.strerror}", 2) from None
    return path


# -- starting ----------------------------------------------------------------------------------------------


def _ready(child: subprocess.Popen[bytes], out: IO[bytes], store: Path, patience_s: float) -> dict[str, Any]:
    """Return what the program says when it is ready. Raises MountError with its words if it isn't."""
    deadline = time.monotonic() + patience_s
    fd, data = out.fileno(), b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while b"\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise MountError(
                f"the mount did not get ready in {patience_s:.0f} s and was stopped{_saying(store)}"
            )
        piece = os.read(fd, 1 << 16)
        if not piece:
            break
        data += piece
    try:
        ready = json.loads(data.partition(b"\n")[0])
        if isinstance(ready, dict) and ready.get("ready") is True:
            return ready
    except ValueError:
        pass
    code = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = child.wait(max(1.0, min(_KILL_S, deadline - time.monotonic())))
    if code is None or code == 0:
        raise MountError(f"the mount's first words are not that it is ready{_saying(store)}")
    if code < 0:
        raise MountError(f"the mount was killed by {signal_name(-code)}{_saying(store)}")
    raise MountError(last_words(store) or f"the mount failed with exit code {code} and says nothing", code)


def _saying(store: Path) -> str:
    said = last_words(store)
    return f": {said}" if said else ""


def _log_for_writing(store: Path) -> IO[bytes]:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(log_of(store), flags, 0o644)
        # A program that ends because the disk is full must still be able to say so.
        ctypes.CDLL(None).fallocate(fd, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(_LAST_WORDS))
        return os.fdopen(fd, "wb", buffering=0)
    except OSError as error:
        raise MountError(f"{log_of(store)}: can't be written: {error.strerror}", 2) from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _death_signal() -> Callable[[], None]:
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the signal was armed
            os._exit(1)

    return arm
