"""Runs ``ztune-trial.pyz run`` in the guest, and reads the same counters by other ways beside the window.

``python3 trial_watched.py PYZ FOLDER``: the trial program as it is, but right before the measure window opens
and right after it closed it writes what ``zpool`` and ``/sys/block`` say into standard error as a line of
JSON, and waits until FOLDER/NAME exists: by then the test has asked the disks themselves. SIGUSR1 prints
where its threads are.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PYZ, FOLDER = sys.argv[1], Path(sys.argv[2])
sys.path.insert(0, PYZ)

from ztune.onhost import main  # noqa: E402
from ztune.onhost.probes import measure  # noqa: E402
from ztune.onhost.probes.context import Context  # noqa: E402


def said(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600).stdout


def block(path: str) -> list[int]:
    node = Path(path).resolve().name
    return [int(word) for word in Path(f"/sys/block/{node}/stat").read_text().split()]


def look(context: Context, name: str) -> None:
    (pool,) = context.zfs_pools
    names = "read_ops,write_ops,read_bytes,write_bytes"
    found: dict[str, Any] = {
        "name": name,
        "block": {d.class_: block(d.path) for d in pool.devices},
        "vdevs": said("zpool", "get", "-Hp", "-o", "name,property,value", names, pool.name, "all-vdevs"),
        "sizes": said("zpool", "iostat", "-Hp", "-r", "-v", pool.name),
        "averages": said("zpool", "iostat", "-Hp", "-v", pool.name),
        "atime": said("zfs", "get", "-H", "-o", "value", "atime", f"{pool.name}/db").strip(),
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    until = time.monotonic() + 600
    while not (FOLDER / name).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{FOLDER / name} did not come")
        time.sleep(0.05)


class Watched(measure.KernelWindow):
    def __init__(self, context: Context) -> None:
        # What the import still had to write is not to fall between the readings.
        said("zpool", "sync")
        look(context, "before")
        super().__init__(context)

    def close(self) -> None:
        super().close()
        look(self.context, "after")


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    measure.begin = Watched
    sys.exit(main.main(["run"]))
