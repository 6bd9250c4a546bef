"""A running guest: commands, disks, its two ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ztune import paths, temporary
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.lab import accel as acceleration
from ztune.lab import image as images
from ztune.lab import recipe
from ztune.lab.image import Image
from ztune.lab.qemu import Machine, Qemu
from ztune.lab.uml import GuestDisk, Uml, check_rights
from ztune.lab.wire import Frame, GuestCommand, GuestLost
from ztune.onhost.host import shared_files
from ztune.temporary import Temporary

MEMORY = 2048
"""MiB of a guest unless told otherwise."""
CPUS = 2
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
BOOT_S = {"kvm": 60.0, "tcg": 180.0, "uml": 60.0}
"""Seconds for a boot; under emulation OpenZFS alone takes six to measure its checksums, on a busy host
thirty."""
RESUME_S = 30.0
ATTEMPTS = 3
CLOCK_ERROR = 0.02
"""How far the guest's clock may be off this host's: a clock that was set wrongly is off by more."""
_CLOSE_S, _KILL_S = 60.0, 10.0


class GuestChannel:
    """A command in the guest as a stream of lines each way."""

    def __init__(self, command: GuestCommand) -> None:
        self.command = command
        self._tail: deque[bytes] = deque(maxlen=200)
        self._errors = threading.Thread(target=self._collect, daemon=True)
        self._lines: deque[bytes] = deque()
        self._pending = b""
        """What came and is no whole line yet, or was not asked for."""
        self._changed = threading.Condition()
        self._over = False
        self._lost: GuestLost | None = None
        self._errors.start()

    def _collect(self) -> None:
        # Takes both streams as they come: a command that talks much on stderr must not stop for it.
        try:
            while (piece := self.command.read()) is not None:
                frame, data = piece
                if frame is Frame.STDERR:
                    self._tail.append(data)
                    continue
                with self._changed:
                    self._changed.wait_for(lambda: len(self._lines) < 4096 or self._over)
                    self._lines.append(data)
                    self._changed.notify_all()
        except GuestLost as lost:
            self._lost = lost
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def send(self, line: str) -> None:
        """Send one line to its stdin. Raises Lost."""
        self.command.write(line.encode() + b"\n" if not line.endswith("\n") else line.encode())

    def lines(self) -> Iterator[str]:
        """Yield the lines of its stdout, to its end. Raises Lost when the guest is gone.

        Whoever was interrupted asks again, and goes on with the next line.
        """
        while True:
            line, newline, rest = self._pending.partition(b"\n")
            if newline:
                self._pending = rest
                yield line.decode(errors="replace")
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._over)
                data = self._lines.popleft() if self._lines else b""
                self._changed.notify_all()
            if not data:
                break
            self._pending += data
        if self._pending:
            line, self._pending = self._pending, b""
            yield line.decode(errors="replace")
        if self._lost:
            raise self._lost

    def stderr_tail(self) -> str:
        """Return the end of its stderr."""
        return b"".join(self._tail).decode(errors="replace")[-8192:]

    def wait(self) -> int:
        """Return its exit code. Raises Lost."""
        return self.command.wait()

    def close(self) -> None:
        """End its stdin, wait up to a minute, then kill it. If it outlives that, it counts as lost."""
        with contextlib.suppress(GuestLost):
            self.command.end_of_input()
            try:
                self.command.wait(_CLOSE_S)
            except TimeoutError:
                self.command.signal(signal.SIGKILL)
                try:
                    self.command.wait(_KILL_S)
                except TimeoutError:
                    self._lost = GuestLost(
                        "a command in the guest outlived SIGKILL: it waits in the guest's kernel, most "
                        "likely for a disk that does not answer"
                    )
                    self.command.lose(str(self._lost))
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Guest:
    """A guest that runs. Use as a context manager, or call ``close``."""

    def __init__(
        self,
        vm: Qemu | Uml,
        image: Image,
        machine: Machine,
        folder: Path,
        ssh_port: int | None,
        end: contextlib.ExitStack,
    ) -> None:
        """``end`` removes the ``folder``."""
        self.vm = vm
        self.image = image
        self.machine = machine
        self.ssh_port = ssh_port
        """Port of 127.0.0.1 that leads to the guest's port 22, None without a network."""
        self.why_no_kvm = ""
        """Why it is emulated; empty under KVM."""
        self._folder = folder
        self._folders_end = end
        self._disks: dict[str, str] = {}
        self._closed = False
        vm.port.watch()

    @property
    def qemu(self) -> Qemu:
        """The machine that runs it, of a guest that is not in user mode."""
        assert isinstance(self.vm, Qemu)
        return self.vm

    # --- its beginning

    @classmethod
    def resume(
        cls,
        openzfs: str | None = None,
        *,
        memory: int = MEMORY,
        cpus: int | None = None,
        net: bool = False,
        accel: str | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Guest:
        """Return a ready guest, resumed from saved state; the first of its kind on a host is booted and
        saved.

        ``openzfs``: version or its beginning, default the newest that is built. ``memory``: MiB. ``net``:
        give it a network that leads only from 127.0.0.1:``ssh_port`` to its port 22. ``accel``: ``kvm`` or
        ``tcg`` instead of what was found to work.

        Raises MissingError without QEMU or image, ZtuneError if the guest does not start.
        """
        # Imported late: building imports what this module imports.
        from ztune.lab.build import current

        found = current(images.find(openzfs))
        verdict = acceleration.verdict(found, progress)
        kind = accel or verdict.accel
        machine = Machine(found.vmlinuz, found.initrd, kind, memory, cpus or min(CPUS, os.cpu_count() or 1))
        last: ZtuneError | None = None
        for _ in range(2):
            state = saved_state(found, machine, progress)
            for _ in range(ATTEMPTS):
                try:
                    guest = cls._resume(found, machine, state, net)
                    guest.why_no_kvm = verdict.reason
                    return guest
                except GuestLost as error:
                    last = error
            # A state that resumes in no attempt is worth nothing: another is made, once.
            progress("the saved state does not resume: making another")
            found.check()
            state.unlink(missing_ok=True)
        raise ZtuneError(f"the lab's guest does not start: {last}")

    @classmethod
    def _resume(cls, found: Image, machine: Machine, state: Path, net: bool) -> Guest:
        shared_files.remove_left(paths.scratch(), paths.GUEST, "")
        end = contextlib.ExitStack()
        folder = end.enter_context(shared_files.temporary(paths.scratch(), paths.GUEST))
        port = _free_port() if net else None
        shares = {"root": Path("/"), "tools": found.tools, "host": Path("/")}
        argv = machine.argv(folder / "console", shares, port)
        qemu: Qemu | None = None
        try:
            folder.mkdir(mode=0o700)
            qemu = Qemu(argv, folder / "console", _reads(state))
            lines = ["hostname=ztune-lab"] + (["net=10.0.2.15"] if net else [])
            payload = struct.pack("<Q", time.time_ns()) + secrets.token_bytes(32) + "\n".join(lines).encode()
            try:
                # Waits in the port until the guest runs; the clock must be right when it reads it.
                qemu.port.send(Frame.HELLO, 0, b"ztune")
                qemu.port.expect(Frame.HELLO, RESUME_S)
                payload = struct.pack("<Q", time.time_ns()) + payload[8:]
                qemu.port.send(Frame.SETUP, 0, payload)
                qemu.port.expect(Frame.READY, RESUME_S)
            except TimeoutError:
                raise GuestLost(f"no answer within {RESUME_S:.0f} s") from None
            return cls(qemu, found, machine, folder, port, end)
        except BaseException:
            if qemu is not None:
                qemu.kill()
            end.close()
            raise

    @classmethod
    def in_user_mode(cls, found: Image, memory: int, disks: Sequence[GuestDisk] = ()) -> Guest:
        """Return a ready guest in user mode, booted with ``disks``, which it has to its end.

        ``memory``: MiB. Raises MissingError without a program that it takes or root's rights, Lost if it does
        not start.
        """
        check_rights()
        shared_files.remove_left(paths.scratch(), paths.GUEST, "")
        end = contextlib.ExitStack()
        folder = end.enter_context(shared_files.temporary(paths.scratch(), paths.GUEST))
        vm: Uml | None = None
        try:
            folder.mkdir(mode=0o700)
            # Names of sockets may have 107 bytes only.
            sockets = end.enter_context(Temporary.make(temporary.GUEST, temporary.runtime())).path
            said = folder / "console"
            parameters = recipe.USER_MODE_PARAMETERS
            vm = Uml(found.vmlinuz, found.initrd, memory, said, sockets, disks, parameters)
            lines = ["hostname=ztune-lab", "root=/", f"tools={found.tools}", "host=/"]
            lines += [f"disk{i}={disk.serial} {int(disk.rotation > 1)}" for i, disk in enumerate(disks)]
            try:
                vm.port.expect(Frame.BOOTED, BOOT_S["uml"])
                payload = struct.pack("<Q", time.time_ns()) + secrets.token_bytes(32)
                vm.port.send(Frame.SETUP, 0, payload + "\n".join(lines).encode())
                vm.port.expect(Frame.READY, RESUME_S)
            except TimeoutError:
                raise GuestLost(
                    f"no answer within {RESUME_S:.0f} s; it said: {_end_of(vm.console)}"
                ) from None
            guest = cls(vm, found, Machine(found.vmlinuz, found.initrd, "uml", memory, 1), folder, None, end)
            guest._disks = {disk.serial: "" for disk in disks}
            return guest
        except BaseException:
            if vm is not None:
                vm.kill()
            end.close()
            raise

    def clock_error(self, within: float = 0.005) -> float:
        """Return seconds of the guest for each second of this host, less 1.

        Looks for 2 s or more, 30 at most, until it is known to ± ``within``: a busy guest answers late.
        """
        first = self._clock()
        while True:
            time.sleep(2)
            now = self._clock()
            elapsed = now[0] - first[0]
            if (first[2] + now[2]) / elapsed < within or elapsed > 30:
                return (now[1] - first[1]) / elapsed - 1

    def _clock(self) -> tuple[float, float, float]:
        """Return this host's time, the guest's, and how far apart the two may have been read, in seconds."""
        before = time.monotonic()
        said = self.run(["date", "+%s.%N"], check=True).stdout
        after = time.monotonic()
        return (before + after) / 2, float(said), (after - before) / 2

    # --- commands

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        terminal: tuple[int, int] | None = None,
    ) -> GuestCommand:
        """Start a command as the guest's root and return it. Raises Lost."""
        return self.vm.port.start(argv, {**ENVIRONMENT, **(env or {})}, cwd, terminal)

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        *,
        timeout: float = 600,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, as ``subprocess.run`` with captured bytes.

        127: no such program. Raises Lost if the guest dies, ZtuneError after ``timeout`` seconds (the command
        is killed) or, with ``check``, if the command fails.
        """
        command = self.start(argv, env=env, cwd=cwd)
        deadline = time.monotonic() + timeout
        writer = threading.Thread(target=_write, args=(command, stdin), daemon=True)
        writer.start()
        output: dict[Frame, list[bytes]] = {Frame.STDOUT: [], Frame.STDERR: []}
        try:
            while (piece := command.read(max(0.0, deadline - time.monotonic()))) is not None:
                output[piece[0]].append(piece[1])
        except TimeoutError:
            command.signal(signal.SIGKILL)
            raise ZtuneError(f"in the lab's guest, `{' '.join(argv)}` took more than {timeout:g} s") from None
        done = subprocess.CompletedProcess(
            list(argv), command.wait(10), b"".join(output[Frame.STDOUT]), b"".join(output[Frame.STDERR])
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).decode(
                errors="replace"
            ).strip() or f"exit code {done.returncode}"
            raise ZtuneError(f"in the lab's guest, `{' '.join(argv)}` failed: {said}")
        return done

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> GuestChannel:
        """Start a command and return its channel of lines. Raises Lost."""
        return GuestChannel(self.start(argv, env=env, cwd=cwd))

    # --- disks

    def add_disk(
        self,
        source: Path,
        serial: str,
        rotation: int = 1,
        *,
        block_size: int = 512,
        physical_block_size: int = 4096,
        write_cache: bool = True,
        unsafe: bool = False,
    ) -> str:
        """Plug in a disk and return its path in the guest, ``/dev/disk/by-id/ztune-SERIAL``.

        ``source``: the unix socket of an NBD server, or a plain file (a disk without any shape).
        ``rotation``: revolutions per minute, 1 for a disk without. ``unsafe``: a file's flushes are not
        passed to the host's disk, for what may be lost with the host. Raises ZtuneError if it doesn't appear
        or its rotation is not seen.
        """
        if not serial or len(serial) > 20 or not all(c.isalnum() or c in "-_." for c in serial):
            raise InputError(f"a disk's serial is 1 to 20 letters, digits, '-', '_', '.'; not {serial!r}")
        if serial in self._disks:
            raise InputError(f"the guest has a disk {serial} already")
        node = f"node-{serial}"
        protocol: dict[str, Any] = {"node-name": node, "discard": "unmap", "cache": {"no-flush": unsafe}}
        if source.is_socket():
            protocol |= {"driver": "nbd", "server": {"type": "unix", "path": str(source)}}
        elif source.is_file():
            protocol |= {
                "driver": "raw",
                "file": {"driver": "file", "filename": str(source), "discard": "unmap"},
            }
        else:
            raise MissingError(f"no disk image or socket {source}")
        self.qemu.command("blockdev-add", protocol)
        try:
            self.qemu.command(
                "device_add",
                {
                    "driver": "scsi-hd",
                    "bus": "scsi.0",
                    "drive": node,
                    "id": f"disk-{serial}",
                    "serial": serial,
                    "rotation_rate": rotation,
                    "logical_block_size": block_size,
                    "physical_block_size": physical_block_size,
                    "write-cache": "on" if write_cache else "off",
                    "werror": "report",
                    "rerror": "report",
                },
            )
        except ZtuneError:
            self.qemu.command("blockdev-del", {"node-name": node})
            raise
        self._disks[serial] = node
        found = self.run(["@disk", serial, "30"], timeout=40)
        if found.returncode:
            raise ZtuneError(f"the guest did not see its new disk {serial} within 30 s")
        path, _, _, turns = found.stdout.decode().split()
        if (turns == "1") != (rotation > 1):
            raise ZtuneError(f"the guest takes disk {serial} ({rotation} rpm) for rotational={turns}")
        return path

    def remove_disk(self, serial: str) -> None:
        """Unplug a disk. What the guest had not written is lost. Raises ZtuneError."""
        node = self._disks.get(serial)
        if node is None:
            raise InputError(f"the guest has no disk {serial}")
        self.qemu.command("device_del", {"id": f"disk-{serial}"})
        try:
            self.qemu.event("DEVICE_DELETED", 30, device=f"disk-{serial}")
        except TimeoutError:
            raise ZtuneError(f"the guest does not let go of its disk {serial}") from None
        self.qemu.command("blockdev-del", {"node-name": node})
        del self._disks[serial]

    # --- its end

    def alive(self) -> bool:
        """Whether it still runs."""
        return not self._closed and self.vm.process.poll() is None and not self.vm.port.lost

    def console(self) -> str:
        """Return what its kernel said."""
        with contextlib.suppress(OSError):
            return (self._folder / "console").read_text(errors="replace")
        return ""

    def cut(self) -> None:
        """Cut its power: nothing is written any more, disks are left as they are."""
        self._end(self.vm.kill)

    def close(self) -> None:
        """Stop it in order: commands end, file systems are synced and pools exported, then it is switched
        off."""
        if self.alive():
            script = "zpool export -a 2>/dev/null; sync"
            with contextlib.suppress(ZtuneError):
                if self._disks:
                    self.run(["sh", "-c", script], timeout=60)
        self._end(self.vm.quit)

    def _end(self, how: Callable[[], None]) -> None:
        if self._closed:
            return
        self._closed = True
        how()
        self._folders_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write(command: GuestCommand, data: bytes) -> None:
    with contextlib.suppress(GuestLost):
        command.write(data)
        command.end_of_input()


def _reads(state: Path) -> str:
    # A reader that ends without a byte is never noticed by QEMU, which then waits for ever.
    return f"exec:zstd -dcq -- {_shell(state)} || echo damaged"


def _shell(path: Path) -> str:
    text = str(path).replace("'", "'\\''")
    return f"'{text}'"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def saved_state(found: Image, machine: Machine, progress: Callable[[str], None] = lambda _: None) -> Path:
    """Return the saved state for ``machine``, made if missing. Raises ZtuneError if the guest does not
    boot."""
    folder = found.folder / "states" / found.recipe
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / machine.state_name()
    if state.is_file():
        return state
    if shutil.which("zstd") is None:
        raise MissingError("the lab needs the program zstd for its saved states: `make lab` installs it")
    with shared_files.locked(folder / "lock"):
        if state.is_file():
            return state
        found.check()
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            again = f": attempt {attempt + 1}, as {last}" if last else ""
            progress(f"booting a guest once, to save its state{again}")
            try:
                with shared_files.replacing(state) as part:
                    _save(found, machine, part)
                    _check_clock(found, machine, part)
                return state
            except GuestLost as error:
                last = error
        raise ZtuneError(f"the lab's guest does not boot: {last}")


def _check_clock(found: Image, machine: Machine, state: Path) -> None:
    """Raise Lost if the guest's clock does not keep the host's time.

    Its kernel takes the rate of its clock at boot, from timers that come late on a busy host. Under emulation
    it was seen to run eight times too fast: everything that is measured would be wrong, and look right.
    """
    with Guest._resume(found, machine, state, False) as guest:
        error = guest.clock_error()
    if abs(error) > CLOCK_ERROR:
        raise GuestLost(
            f"its clock runs {1 + error:.3g} times as fast as this host's: "
            "this machine was too busy while the guest booted"
        )


def _save(found: Image, machine: Machine, state: Path) -> None:
    shared_files.remove_left(paths.scratch(), paths.GUEST, "")
    with shared_files.temporary(paths.scratch(), f"{paths.GUEST}boot-") as folder:
        folder.mkdir(mode=0o700)
        _save_in(folder, found, machine, state)


def _save_in(folder: Path, found: Image, machine: Machine, state: Path) -> None:
    qemu: Qemu | None = None
    try:
        shares = {"root": Path("/"), "tools": found.tools, "host": Path("/")}
        qemu = Qemu(machine.argv(folder / "console", shares), folder / "console")
        limit = BOOT_S[machine.accel]
        try:
            version = qemu.port.expect(Frame.BOOTED, limit).decode()
        except TimeoutError:
            raise GuestLost(
                f"nothing from the guest within {limit:.0f} s; it said: {_end_of(folder / 'console')}"
            ) from None
        if not version:
            raise GuestLost(f"the OpenZFS module does not load: {_end_of(folder / 'console')}")
        # Not stopped before: then it would not run either when it is resumed.
        qemu.command("migrate-set-parameters", {"max-bandwidth": 1 << 40})
        qemu.command("migrate", {"uri": f"exec:zstd -1 -q -T0 -f -o {_shell(state)}"})
        deadline = time.monotonic() + 120
        while (status := qemu.command("query-migrate").get("status")) != "completed":
            if status in ("failed", "cancelled") or time.monotonic() > deadline:
                raise GuestLost(f"its state can't be saved ({status}); is there room in {state.parent}?")
            time.sleep(0.05)
        qemu.quit()  # waits for zstd, its child: the pipe is closed before it ends
    finally:
        if qemu is not None:
            qemu.kill()


def _end_of(console: Path) -> str:
    with contextlib.suppress(OSError):
        return " / ".join(console.read_text(errors="replace").split("\n")[-4:]).strip() or "nothing"
    return "nothing"
