"""What a host answers when it is asked what it is and does: ``ztune-trial look``. Only reads.

The window passes first, then the databases are found by the processes that run, and asked. The answer is an
``Observation`` as plain values, and which dataset the databases' files are in: roles are given to paths by
rules that are not here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, Final

from ztune.errors import InputError
from ztune.onhost.host import about, noatime
from ztune.onhost.host.process import all_pids
from ztune.onhost.look import databases
from ztune.onhost.look.disks import between, block_devices
from ztune.onhost.look.reading import open_files
from ztune.onhost.look.zfs import Places, ZfsReadings, disk_pools
from ztune.onhost.probes import procfs

MOST_FILES: Final = 2000
"""Files of all databases together that are named in an answer."""
MOST_FOLDERS: Final = 400
EACH_FOLDER: Final = 3
"""Files of one folder of a database that are named beside those that are open: its others are like them."""
AFTERWARDS_S: Final = 120
"""How long the look at the databases and at ZFS may take, after the window; more under emulation."""
LONGEST_S: Final = 3600.0
_LINE = 1 << 20


def main() -> int:
    """Read what is asked, a line of JSON, from standard input, and print the answer, one line.

    ``seconds``: the window's length; ``datasets``: told of besides those of the databases. The end of
    standard input before the answer means that nobody waits: then this process and its children end at once.
    """
    try:
        asked = json.loads(sys.stdin.readline(_LINE))
        seconds, names = float(asked["seconds"]), [str(name) for name in asked["datasets"]]
        if not 0 <= seconds <= LONGEST_S:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise InputError('look takes a line {"seconds": 0 to 3600, "datasets": [names]}') from None
    # Whatever hangs here, nothing stays.
    signal.alarm(ceil(seconds + AFTERWARDS_S * about.patience()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(json.dumps(look(seconds, names)), flush=True)
    return 0


def _end_with_input() -> None:
    with contextlib.suppress(OSError, ValueError):
        while sys.stdin.readline(_LINE):
            pass
    for pid in procfs.descendants([os.getpid()]):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    os._exit(1)


def look(seconds: float, datasets: Iterable[str] = ()) -> dict[str, Any]:
    """Return ``observation``, and ``files``: path → dataset, None for one that is not on ZFS."""
    begun, began = datetime.now(UTC), time.monotonic()
    zfs, names, first = ZfsReadings(), block_devices(), procfs.diskstats()
    time.sleep(seconds)
    zfs.freeze()
    last, passed = procfs.diskstats(), time.monotonic() - began
    found, limits = databases.find(databases.sent(), all_pids())
    said, more = databases.read(found)
    places = Places()
    most = MOST_FILES // max(1, len(found))
    files = {path: places.dataset(path) for one in found for path in islice(_files(one), most)}
    # Not the whole host's datasets: those that a database's files are in, and those that were asked for.
    told = {name for name in files.values() if name} | set(datasets)
    state, unknown = zfs.state({}, dict.fromkeys(sorted(told), ()))
    host = os.uname()
    return {
        "observation": {
            "subject": f"host {host.nodename}",
            "host": host.nodename,
            "kernel": f"{host.sysname} {host.release}",
            "begun": begun.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "seconds": passed,
            "zfs": state,
            "disks": between(names, first, last, passed, disk_pools()),
            "databases": [asdict(one) for one in said],
            "limits": [*limits, *more, *unknown],
        },
        "files": files,
    }


def _files(found: databases.FoundDatabase) -> Iterator[str]:
    """Yield the paths of files of a database: those that are open, then some of each folder."""
    for pid in sorted(found.pids):
        for path in open_files(pid):
            if not str(path).startswith(("/usr/", "/lib", "/proc/", "/sys/", "/dev/", "/run/")):
                yield str(path)
    todo, seen = [found.instance.place], 0
    while todo and seen < MOST_FOLDERS:
        folder = todo.pop(0)
        seen += 1
        files = 0
        with contextlib.suppress(OSError), noatime.entries(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                # A log or a tablespace is often behind a link.
                if entry.is_dir():
                    if len(todo) < MOST_FOLDERS and not _above(path, folder):
                        todo.append(path)
                elif files < EACH_FOLDER:
                    files += 1
                    yield str(path)


def _above(path: Path, folder: Path) -> bool:
    """Whether a link leads to a folder above itself."""
    real = path.resolve()
    return real == folder.resolve() or real in folder.resolve().parents
