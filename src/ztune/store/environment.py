"""What kind of machine a run was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ztune import __version__


def collect() -> dict[str, Any]:
    """Return the environment record: kernel, processor, memory, Python, ztune. No names of hosts or users."""
    import psutil  # here, as it takes 20 ms to load

    uname = platform.uname()
    return {
        "kernel": f"{uname.system} {uname.release}",
        "machine": uname.machine,
        "cpu": _cpu_model(),
        "cpus": os.cpu_count() or 1,
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "python": platform.python_version(),
        "ztune": __version__,
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
