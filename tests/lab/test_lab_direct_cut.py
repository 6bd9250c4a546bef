"""What the kernel keeps of Direct I/O in a power cut: docs/durability.md, "What was found in OpenZFS"."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from guests import Resume

from ztune.disk import server
from ztune.study import profiles

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]

SIZE = 1 << 30
RECORD, RECORDS = 16384, 64
WRITE = f"""
import mmap, os, sys
fd = os.open("/tmp/db/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
page = mmap.mmap(-1, {RECORD})  # memory as O_DIRECT asks for it
page[:] = sys.argv[1].encode() * {RECORD}
for i in range({RECORDS}):
    os.pwrite(fd, page, i * {RECORD})
    os.fsync(fd)
"""
BEGIN = """
set -e
mkdir -p /tmp/db
cat > /tmp/write.py <<'END'
{write}
END
zpool create -O mountpoint=/tmp/db -O recordsize=16K -O compression=off ztdirect {data} {log}
zfs set direct={direct} ztdirect
python3 /tmp/write.py o
echo 300 > /sys/module/zfs/parameters/zfs_txg_timeout
zpool sync ztdirect
python3 /tmp/write.py N
"""
LOOK = """
set -e
mkdir -p /tmp/db
zpool import -f -d /dev ztdirect
python3 -c 'print(open("/tmp/db/file", "rb").read().count(b"N"))'
zpool export ztdirect
"""


@pytest.mark.parametrize("apart", [False, True], ids=["one disk", "log device"])
@pytest.mark.parametrize("direct", ["disabled", "standard"])
def test_what_was_synced_is_there_unless_it_was_direct_and_the_log_elsewhere(
    tmp_path: Path, resume: Resume, direct: str, apart: bool
) -> None:
    names = ["data", "log"] if apart else ["data"]
    profile = profiles.find("ssd-sata")

    def disks(stack: ExitStack, when: str) -> list[server.DiskServer]:
        return [
            stack.enter_context(
                server.start(profile, SIZE, tmp_path / f"{n}.img", tmp_path / f"{n}-{when}", lazy=True)
            )
            for n in names
        ]

    with ExitStack() as stack, resume() as guest:
        there = disks(stack, "before")
        data, *log = [guest.add_disk(disk.socket, name) for disk, name in zip(there, names, strict=True)]
        line = BEGIN.format(write=WRITE, direct=direct, data=data, log=f"log {log[0]}" if log else "")
        guest.run(["sh", "-c", line], check=True, timeout=300)
        guest.cut()
    with ExitStack() as stack, resume() as guest:
        there = disks(stack, "after")
        for disk, name in zip(there, names, strict=True):
            guest.add_disk(disk.socket, name)
        kept = int(guest.run(["sh", "-c", LOOK], check=True, timeout=300).stdout)
    if direct == "standard" and apart:
        assert kept < RECORD * RECORDS
    else:
        assert kept == RECORD * RECORDS
