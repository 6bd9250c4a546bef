"""A database's commits in a power cut of the kernel's ZFS: what ``ztune crashtest`` finds on a mount."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from guests import Resume

from ztune.disk import server
from ztune.errors import ZtuneError
from ztune.lab import Guest
from ztune.lab.guest import GuestChannel
from ztune.study import profiles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = ("standard", "disabled")
COMMITS = 300
COMMIT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + "/db", isolation_level=None)
db.execute("pragma journal_mode=wal"), db.execute("pragma synchronous=full")
db.execute("create table t(n integer primary key, x text)")
for n in range(1, 1 << 30):
    db.execute("insert into t values(?, ?)", (n, "x" * 400))
    print(n, flush=True)
"""
LOOK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + "/db")
ok = db.execute("pragma integrity_check").fetchall() == [("ok",)]
print(*db.execute("select count(*), coalesce(max(n), 0) from t").fetchone(), int(ok))
"""


class Committed:
    """How many commits a client was told of."""

    def __init__(self, channel: GuestChannel) -> None:
        self.most = 0
        self._channel = channel
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ZtuneError):  # the guest goes with the power
            for line in self._channel.lines():
                if line.strip().isdigit():
                    self.most = int(line)


def test_what_was_acknowledged_is_there_unless_sync_is_disabled(tmp_path: Path, resume: Resume) -> None:
    profile = profiles.find("ssd-sata")

    def add_disks(stack: ExitStack, guest: Guest, when: str) -> list[server.DiskServer]:
        made = []
        for case in CASES:
            image, log = tmp_path / f"{case}.img", tmp_path / f"{case}-{when}"
            made.append(stack.enter_context(server.start(profile, 1 << 30, image, log, lazy=True)))
            guest.add_disk(made[-1].socket, case)
        return made

    with ExitStack() as stack, resume() as guest:
        disks = add_disks(stack, guest, "before")
        for case in CASES:
            create = f"zpool create -O mountpoint=/tmp/{case} -O sync={case} zt{case}"
            line = f"{create} /dev/disk/by-id/ztune-{case} && zpool sync"
            guest.run(["sh", "-c", line], check=True, timeout=300)
        guest.run(["sh", "-c", "echo 300 > /sys/module/zfs/parameters/zfs_txg_timeout"], check=True)
        clients = [Committed(guest.popen(["python3", "-c", COMMIT, f"/tmp/{case}"])) for case in CASES]
        while min(client.most for client in clients) < COMMITS:
            assert all(client.thread.is_alive() for client in clients)
            time.sleep(0.1)
        for disk in disks:
            disk.kill()
        guest.cut()
    for client in clients:
        client.thread.join()
    with ExitStack() as stack, resume() as guest:
        add_disks(stack, guest, "after")
        found = {}
        for case, client in zip(CASES, clients, strict=True):
            guest.run(
                ["zpool", "import", "-f", "-d", "/dev/disk/by-id", f"zt{case}"], check=True, timeout=300
            )
            said = guest.run(["python3", "-c", LOOK, f"/tmp/{case}"], timeout=300)
            found[case] = ([int(word) for word in said.stdout.split()], client.most)
    rows, acknowledged = found["standard"]
    assert rows[:2] in ([acknowledged] * 2, [acknowledged + 1] * 2) and rows[2] == 1
    rows, acknowledged = found["disabled"]
    assert not rows or rows[0] < acknowledged  # none at all: not even the table was on the disk
