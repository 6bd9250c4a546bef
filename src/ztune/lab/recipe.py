"""What runs first in a guest: the agent and the kernel's modules, packed as an initial ramdisk."""

from __future__ import annotations

import hashlib
import lzma
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import zstandard

from ztune import native
from ztune.errors import MissingError, ZtuneError
from ztune.onhost.host import shared_files
from ztune.packages import install_command

AGENT = native.SOURCES / "lab" / "agent.c"
MODULES = (
    "virtio_pci",
    "virtio_console",
    "virtio_scsi",
    "virtio_net",
    "sd_mod",
    "crc32c_generic",
    "crc32c_intel",
    "9pnet_virtio",
    "9p",
    "overlay",
    "ext4",
    "xfs",
    "loop",
    "fuse",
    "zfs",
)
"""In this order, each after what it depends on. What a kernel has built in needs no module."""
PARAMETERS = {
    # Pools of one guest are imported by the next as their own: every guest is the same host.
    "spl": "spl_hostid=0x7a74756e",
}


USER_MODE_PARAMETERS = {"spl.spl_hostid": "0x7a74756e"}
"""The same on the command line of a kernel that has OpenZFS built in."""


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def read_module(path: Path) -> bytes:
    """Return a module's bytes, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    return data


def modinfo(data: bytes, field: str) -> list[str]:
    """Return the values of a field of a module's ``.modinfo``, which holds NUL-ended ``field=value``."""
    found = re.findall(rb"\0" + re.escape(field.encode()) + rb"=([^\0]*)\0", b"\0" + data)
    return [value.decode(errors="replace") for value in found]


def collect(folders: Iterable[Path], builtin: set[str]) -> dict[str, bytes]:
    """Return the modules that a guest needs, name → bytes, in the order of loading.

    ``folders``: where modules are; the first that has one counts. ``builtin``: names that the kernel has.
    Raises ZtuneError naming a module that is nowhere.
    """
    index: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.ko*")):
            if path.suffix in (".ko", ".xz", ".zst"):
                index.setdefault(_name(path), path)
    chosen: dict[str, bytes] = {}

    def add(name: str, of: str) -> None:
        if name in chosen or name in builtin:
            return
        if name not in index:
            if name in ("crc32c_generic", "crc32c_intel", "fuse"):
                return
            raise ZtuneError(
                f"the kernel's packages hold no module {name}{f', which {of} needs' if of else ''}"
            )
        data = read_module(index[name])
        for line in modinfo(data, "depends"):
            for other in filter(None, line.split(",")):
                add(other.replace("-", "_"), name)
        chosen[name] = data

    for name in MODULES:
        add(name, "")
    return chosen


def compile_agent(into: Path) -> None:
    """Compile the agent to ``into``. Raises MissingError without a compiler, ZtuneError if it fails."""
    command = ["cc", "-O2", "-static", "-s", "-Wall", "-o", str(into), str(AGENT)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, errors="replace")
    except FileNotFoundError:
        raise MissingError(f"the lab's agent needs a C compiler: {install_command('cc')}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[
            -1:
        ]
        raise ZtuneError(f"the lab's agent does not compile: {'; '.join(lines[:3])}")


def identity() -> str:
    """Return a hash of the recipe; empty where the source is not at hand.

    It tells saved states apart: those whose clock nobody had looked at (guest._check_clock) have another.
    """
    try:
        sources = AGENT.read_bytes() + Path(__file__).read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(sources).hexdigest()[:12]


def pack(modules: Mapping[str, bytes], into: Path) -> None:
    """Write the initial ramdisk with the agent and ``modules``."""
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        agent = Path(folder) / "agent"
        compile_agent(agent)
        with shared_files.replacing(into) as part, part.open("wb") as out:
            number = 0

            def add(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
                # The "newc" format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
                nonlocal number
                number += 1
                fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
                head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
                out.write(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

            add("dev", 0o040755)
            add("dev/console", 0o020600, device=(5, 1))
            add("init", 0o100755, agent.read_bytes())
            add("modules", 0o040755)
            for index, (name, data) in enumerate(modules.items()):
                add(f"modules/{index:03d}-{name}.ko", 0o100644, data)
                if name in PARAMETERS:
                    add(f"modules/{index:03d}-{name}.ko.par", 0o100644, PARAMETERS[name].encode())
            add("TRAILER!!!", 0)
