"""A QEMU process: its command line, its control channel (QMP), its end."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ztune.errors import MissingError, ZtuneError
from ztune.lab.wire import GuestLost, Port
from ztune.onhost.host.process import end_group, ends_with_us, ends_within
from ztune.packages import install_command

PROGRAM = "qemu-system-x86_64"
_QMP_S = 30.0


def program() -> str:
    """Return QEMU's program. Raises MissingError without one."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise MissingError(f"the lab needs QEMU ({PROGRAM}): {install_command('qemu')}, or `make lab`")
    return found


def version() -> str:
    """Return QEMU's version and package, such as ``7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)``."""
    try:
        done = subprocess.run(
            [program(), "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(f"{PROGRAM} does not run: {error}") from None
    return done.stdout.splitlines()[0].removeprefix("QEMU emulator version ").strip()


@dataclass(frozen=True)
class Machine:
    """What a saved state is tied to: it resumes in no other machine."""

    kernel: Path
    initrd: Path
    accel: str
    """``kvm`` or ``tcg``."""
    memory: int
    """MiB."""
    cpus: int

    def state_name(self) -> str:
        """Return a file name that differs where the machine differs."""
        release = re.sub(r"[^0-9A-Za-z.+~-]+", "-", version()).strip("-")
        return f"state-{self.accel}-{self.memory}m-{self.cpus}c-{release}.zst"

    def argv(self, console: Path, shares: dict[str, Path], net: int | None = None) -> list[str]:
        """Return QEMU's command line but for its two channels.

        ``shares``: tag → folder of the host, read-only. ``net``: port of 127.0.0.1 that leads to the guest's
        port 22; without one the guest's network is unplugged.
        """
        if self.accel == "kvm":
            # The distribution's defaults: what the user's own kernel would do.
            accel, cpu, extra = "kvm", "host", ""
        else:
            accel, cpu = "tcg,thread=multi,tb-size=512", "Nehalem"
            # Work that costs much under emulation and protects nobody here.
            extra = " no5lvl mitigations=off init_on_alloc=0 tsc=reliable"
        append = (
            f"console=ttyS0 quiet loglevel=4 panic=-1 oops=panic random.trust_cpu=on net.ifnames=0{extra}"
        )
        argv = [
            program(),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "pc,usb=off,vmport=off,smbus=off,hpet=off", "-accel", accel, "-cpu", cpu),
            *("-m", f"{self.memory}M", "-smp", str(self.cpus)),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd), "-append", append),
            *("-chardev", f"file,id=console,path={_quoted(console)}", "-serial", "chardev:console"),
            *("-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=ztune"),
            *("-device", "virtio-scsi-pci,id=scsi,num_queues=1"),
            *("-netdev", f"user,id=net,restrict=on{_forward(net)}"),
            *("-device", "virtio-net-pci,id=nic,netdev=net,mac=52:54:00:7a:74:75,romfile="),
        ]
        for tag, path in shares.items():
            share = f"local,id={tag},path={_quoted(path)},security_model=none,readonly=on,multidevs=remap"
            argv += ["-fsdev", share, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return argv


def _quoted(path: Path) -> str:
    """A comma ends an option of QEMU's; two are one in the value."""
    return str(path).replace(",", ",,")


def _forward(port: int | None) -> str:
    return "" if port is None else f",hostfwd=tcp:127.0.0.1:{port}-:22"


class Qemu:
    """A running QEMU. It ends when this process does: the kernel sees to that, and where it can't, the agent
    in the guest notices that nobody is there, once the guest lets it.
    """

    def __init__(self, argv: Sequence[str], console: Path, incoming: str | None = None) -> None:
        """Start QEMU. ``incoming``: where it resumes from, as QEMU words it.

        Raises ZtuneError with QEMU's own words if it can't be started.
        """
        self.console = console
        self._qmp, qmp = socket.socketpair()
        agent, theirs = socket.socketpair()
        for ours in (self._qmp, agent):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        full = [
            *argv,
            *("-chardev", f"socket,id=qmp,fd={qmp.fileno()}", "-mon", "chardev=qmp,mode=control"),
            *("-chardev", f"socket,id=agent,fd={theirs.fileno()}"),
            *(("-incoming", incoming) if incoming else ()),
        ]
        # The chardev must stand before the device that uses it.
        full = [*ends_with_us(), *_chardevs_first(full)]
        self._errors = console.with_suffix(".err")
        with self._errors.open("wb") as errors:
            try:
                self.process = subprocess.Popen(
                    full,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=(qmp.fileno(), theirs.fileno()),
                    start_new_session=True,
                )
            except OSError as error:
                raise MissingError(f"{argv[0]} can't be run: {error.strerror}") from None
            finally:
                qmp.close()
                theirs.close()
        self._lock = threading.Lock()
        self._pending = b""
        self._events: list[dict[str, Any]] = []
        self._ids = 0
        self.port = Port(agent, self.last_words)
        try:
            self._qmp.settimeout(_QMP_S)
            self._message(time.monotonic() + _QMP_S)
            self.command("qmp_capabilities")
        except BaseException:
            self.kill()
            raise

    def last_words(self) -> str:
        """Return why the guest is gone: QEMU's own words, the kernel's, or that it ended."""
        ends_within(self.process, 2)
        said = _tail(self._errors, 1)
        oops = [
            line
            for line in _tail(self.console, 200).splitlines()
            if re.search(r"Kernel panic|BUG:|Oops|VERIFY|PANIC", line)
        ]
        if oops:
            return f"the guest's kernel died: {oops[0].strip()}"
        if said:
            return f"QEMU ended: {said}"
        return "the guest has ended"

    def command(
        self, execute: str, arguments: Mapping[str, Any] | None = None, timeout: float = _QMP_S
    ) -> Any:
        """Run a QMP command and return its answer.

        Raises ZtuneError with QEMU's words, Lost if QEMU is gone or silent for ``timeout`` seconds.
        """
        with self._lock:
            self._ids += 1
            request = {"execute": execute, "arguments": dict(arguments or {}), "id": self._ids}
            deadline = time.monotonic() + timeout
            try:
                self._qmp.sendall(json.dumps(request).encode() + b"\n")
            except OSError:
                raise GuestLost(self.last_words()) from None
            while True:
                answer = self._message(deadline)
                if answer.get("id") == self._ids:
                    break
                if "event" in answer:
                    self._events.append(answer)
        if "error" in answer:
            raise ZtuneError(f"QEMU refuses {execute}: {answer['error'].get('desc', answer['error'])}")
        return answer["return"]

    def event(self, name: str, timeout: float, **data: str) -> dict[str, Any]:
        """Wait for an event with these data. Raises TimeoutError, Lost."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while True:
                for index, event in enumerate(self._events):
                    said = event.get("data", {})
                    if event["event"] == name and all(said.get(k) == v for k, v in data.items()):
                        return self._events.pop(index)
                try:
                    answer = self._message(deadline)
                except GuestLost:
                    if self.process.poll() is None:
                        raise TimeoutError from None
                    raise
                if "event" in answer:
                    self._events.append(answer)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0:
                raise GuestLost("QEMU does not answer")
            self._qmp.settimeout(left)
            try:
                data = self._qmp.recv(1 << 16)
            except TimeoutError:
                raise GuestLost("QEMU does not answer") from None
            except OSError:
                data = b""
            if not data:
                raise GuestLost(self.last_words())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        end_group(self.process)
        self._end()

    def quit(self) -> None:
        """Let QEMU end, writing what it holds for its disks; kill it if it doesn't within 10 s."""
        with contextlib.suppress(ZtuneError):
            self.command("quit", timeout=5)
        ends_within(self.process, 10)
        self.kill()

    def _end(self) -> None:
        self.process.wait(10)
        if hasattr(self, "port"):
            self.port.close()
        self._qmp.close()


def _chardevs_first(argv: list[str]) -> list[str]:
    pairs: list[list[str]] = []
    for word in argv[1:]:
        if word.startswith("-"):
            pairs.append([word])
        else:
            pairs[-1].append(word)
    pairs.sort(key=lambda pair: pair[0] != "-chardev")
    return [argv[0], *(word for pair in pairs for word in pair)]


def _tail(path: Path, lines: int) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
