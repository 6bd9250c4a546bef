"""The mount table of this process, and who stands in the way of an unmount."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MountInfo:
    """One line of /proc/self/mountinfo, in the order the kernel keeps it: later ones lie on top."""

    point: Path
    root: str
    """What of the file system is mounted here; not "/" for a bind mount of a part."""
    type: str
    source: str
    device: tuple[int, int]
    """Major and minor number."""


def _plain(text: str) -> str:
    # The kernel writes blanks and the like in octal, as \040.
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def parse(text: str) -> list[MountInfo]:
    """Return the mounts in the text of a mountinfo file, proc(5)."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) < 6 or len(after) < 2:
            continue
        major, _, minor = before[2].partition(":")
        found.append(
            MountInfo(
                Path(_plain(before[4])),
                _plain(before[3]),
                after[0],
                _plain(after[1]),
                (int(major), int(minor)),
            )
        )
    return found


def table() -> list[MountInfo]:
    """Return every mount that this process sees."""
    return parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def below(path: Path, mounts: list[MountInfo]) -> list[MountInfo]:
    """Return the mounts at ``path`` or below it."""
    return [m for m in mounts if m.point == path or path in m.point.parents]


def over(path: Path, mounts: list[MountInfo]) -> MountInfo | None:
    """Return the mount that ``path``, without symbolic links, lies in; of several at one point the last."""
    on = [mount for mount in reversed(mounts) if path.is_relative_to(mount.point)]
    return max(on, key=lambda mount: len(mount.point.parts), default=None)


def is_share(path: Path) -> bool:
    """Whether ``path`` lies in what the machine below shares with this one, as the lab's does."""
    mount = over(Path(os.path.realpath(path)), table())
    return mount is not None and mount.type == "9p"


def uses(pid: int, path: Path) -> bool:
    """Whether a process stands below ``path``, or has something open or mapped there."""
    prefix = str(path).rstrip("/") + "/"
    links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root", f"/proc/{pid}/exe"]
    with contextlib.suppress(OSError):
        links += [fd.path for fd in os.scandir(f"/proc/{pid}/fd")]
    for link in links:
        with contextlib.suppress(OSError):
            # All descriptors of all processes may be asked for: to make paths of them takes most of it.
            if f"{os.readlink(link)}/".startswith(prefix):  # noqa: PTH115
                return True
    # A mapping outlives the descriptor that it was made with; its path is the line's last field.
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape")
        return f" {prefix}" in maps
    return False


def users(path: Path, limit: int = 5, without: Collection[int] = ()) -> list[str]:
    """Return which processes but ``without`` work below ``path``, as "name (pid)", ``limit`` at most."""
    found: list[str] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), *without):
            continue
        with contextlib.suppress(OSError):
            if uses(int(entry.name), path):
                name = Path(f"/proc/{entry.name}/comm").read_text(errors="replace").strip()
                found.append(f"{name} ({entry.name})")
        if len(found) >= limit:
            break
    return found
