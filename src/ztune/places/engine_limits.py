"""How much memory and disk the engines of a screening may take, beside everything else on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from ztune.onhost.host.room import reserve

MEMORY_SHARE = 0.6
"""Of the memory that is available at the start, what all engines together may take: the rest is for what
starts or grows meanwhile, a database for example."""


def memory_bytes(proc: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that all engines together may take; the limits of control groups are heeded."""
    import psutil  # here, as it takes 20 ms to load

    available = int(psutil.virtual_memory().available)
    return int(MEMORY_SHARE * min([available, *_cgroup_rooms(proc, cgroups)]))


def disk_bytes(folder: Path) -> int:
    """Return the bytes that all engines' files together may take in ``folder``, 0 where there is no room."""
    usage = shutil.disk_usage(folder)
    return max(0, usage.free - reserve(usage.total))


def _cgroup_rooms(proc: Path, cgroups: Path) -> list[int]:
    """Return what each control group above this process still allows, bytes (cgroups(7), v1 and v2)."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms: list[int] = []
    bases: tuple[Path, ...]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            bases, limit, used = (cgroups, cgroups / "unified"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            bases, limit, used = (cgroups / "memory",), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for base in bases:
            group = base / path.lstrip("/")
            # Inside a container the path may be the host's, and its own group is the root.
            for folder in (group, *group.parents):
                if not folder.is_relative_to(base):
                    break
                room = _room(folder, limit, used)
                if room is not None:
                    rooms.append(room)
    return rooms


def _room(folder: Path, limit: str, used: str) -> int | None:
    """Return what a group's limit leaves; cached pages of files that it can drop count as free."""
    try:
        most = (folder / limit).read_text().strip()
        now = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        if most == "max":
            return None
        inactive = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
        return max(0, int(most) - max(0, now - inactive))
    except (OSError, ValueError):
        return None
