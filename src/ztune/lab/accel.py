"""Whether KVM really runs a kernel here.

``/dev/kvm`` may open and even make a processor where no kernel gets through its first instructions (a host
that is itself a guest without hardware virtualisation: QEMU then pauses and does not exit). So a kernel is
booted to its first words, within seconds, and the answer kept until the host is booted again or QEMU is
another.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ztune import paths
from ztune.errors import ZtuneError
from ztune.lab import image as images
from ztune.lab import qemu
from ztune.lab.image import Image
from ztune.lab.wire import Frame
from ztune.onhost.host import shared_files
from ztune.onhost.host.about import boot_id

PROBE_S = 10.0
"""A kernel takes a second to its first process under KVM."""


@dataclass(frozen=True)
class Acceleration:
    """How guests run here."""

    accel: str
    """``kvm`` or ``tcg``."""
    reason: str
    """Why not KVM; empty with it."""
    boot_id: str = ""
    qemu: str = ""


def _file() -> Path:
    return paths.lab() / "accel.json"


def known() -> Acceleration | None:
    """Return the verdict of this boot of the host, None if nobody tried yet."""
    try:
        verdict = Acceleration(**json.loads(_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return verdict if verdict.boot_id == boot_id() and verdict.qemu == qemu.version() else None


def verdict(image: Image, progress: Callable[[str], None] = lambda _: None) -> Acceleration:
    """Return how guests run here, tried out with ``image`` once per boot of the host."""
    found = known()
    device = Path("/dev/kvm")
    if found is not None and (found.accel == "tcg" or os.access(device, os.R_OK | os.W_OK)):
        return found
    if not device.exists():
        reason = "this host has no /dev/kvm"
    elif not os.access(device, os.R_OK | os.W_OK):
        # Not kept: rights change without a boot.
        return Acceleration(
            "tcg", "this user may not open /dev/kvm: `sudo usermod -aG kvm $USER`, then log in again"
        )
    else:
        progress("trying whether a kernel runs under KVM")
        reason = probe(image)
    answer = Acceleration("tcg" if reason else "kvm", reason, boot_id(), qemu.version())
    with shared_files.replacing(_file()) as partial:
        partial.write_text(json.dumps(asdict(answer)) + "\n")
    return answer


def in_user_mode(openzfs: str | None) -> str | None:
    """Return ``uml`` where trials are to have a guest in user mode: one is built, KVM does not work here, and
    we are root, which it takes.

    ``openzfs``: version or its beginning. None: what ``verdict`` says.
    """
    fitting = [image for image in images.built() if openzfs is None or images.matches(image.openzfs, openzfs)]
    plain = [image for image in fitting if not image.user_mode]
    if os.geteuid() != 0 or len(plain) == len(fitting) or (plain and verdict(plain[0]).accel == "kvm"):
        return None
    return "uml"


def probe(image: Image) -> str:
    """Boot ``image`` under KVM; return why that fails, empty if it works."""
    shared_files.remove_left(paths.scratch(), paths.GUEST, "")
    with shared_files.temporary(paths.scratch(), f"{paths.GUEST}kvm-") as folder:
        folder.mkdir(mode=0o700)
        return _probe_in(folder, image)


def _probe_in(folder: Path, image: Image) -> str:
    machine = qemu.Machine(image.vmlinuz, image.initrd, "kvm", 1024, 1)
    shares = {"root": Path("/"), "tools": image.tools, "host": Path("/")}
    try:
        running = qemu.Qemu(machine.argv(folder / "console", shares), folder / "console")
    except ZtuneError as error:
        return _refusal(error)
    try:
        running.port.expect(Frame.BOOTED, PROBE_S)
    except TimeoutError:
        return f"/dev/kvm is there, but a kernel does not boot under it within {PROBE_S:.0f} s"
    except ZtuneError as error:
        return _refusal(error)
    else:
        return ""
    finally:
        running.kill()


def _refusal(error: ZtuneError) -> str:
    """Word why there is no KVM: QEMU's own words without the names of its program and source files."""
    said = str(error).removeprefix("QEMU ended: ").removeprefix(f"{qemu.PROGRAM}: ")
    said = re.sub(r"^[./]*[a-z0-9/_-]+[.]c:[0-9]+: ", "", said)
    return f"/dev/kvm is there, but no kernel boots under it ({said})"
