"""What this host is: versions, memory, programs. Starts one program at most."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ztune.onhost.host.zfs import module_version, which

TOOLS = (
    "zfs",
    "zpool",
    "zdb",
    "mkfs.ext4",
    "mkfs.xfs",
    "losetup",
    "mount",
    "umount",
    "cp",
    "bpftrace",
    "fio",
    "perf",
)

EMULATED = 50.0
"""How many times slower than usual an emulated machine may be, on a busy host."""


def accelerator() -> str:
    """Return "kvm", "tcg" (QEMU without it), or "none" on a machine of its own (or another hypervisor)."""
    if "kvm-clock" in _read("/sys/devices/system/clocksource/clocksource0/available_clocksource"):
        return "kvm"
    emulated = "QEMU" in _read("/sys/class/dmi/id/sys_vendor") or "QEMU" in _cpu()
    return "tcg" if emulated else "none"


def boot_id() -> str:
    """Return the kernel's id of this boot; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def patience() -> float:
    """Return what time limits are multiplied by here when nobody says: 1, 50 under emulation."""
    return EMULATED if accelerator() == "tcg" else 1.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpu() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _tools_version(tools: dict[str, str | None]) -> str:
    """Return what ``zfs version`` says of the user-space tools; empty without them."""
    if tools["zfs"] is None:
        return ""
    import subprocess

    try:
        done = subprocess.run([tools["zfs"], "version"], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = done.stdout.decode("utf-8", errors="replace").splitlines()[:1]
    return first[0].removeprefix("zfs-").strip() if first else ""


def environment(*, ask_tools: bool = True) -> dict[str, Any]:
    """Return what ``hello`` says; see docs/trial-format.md. ``ask_tools`` runs ``zfs version``."""
    tools = {name: which(name) for name in TOOLS}
    kernel = module_version()
    return {
        "python": platform.python_version(),
        "kernel": os.uname().release,
        "host": os.uname().nodename,
        "machine": os.uname().machine,
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "root": os.geteuid() == 0,
        "openzfs": {"kernel": kernel, "tools": _tools_version(tools) if ask_tools else ""}
        if kernel
        else None,
        "tools": tools,
        "boot_id": boot_id(),
        "accel": accelerator(),
    }
