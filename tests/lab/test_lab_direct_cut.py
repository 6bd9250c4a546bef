"""What the kernel keeps of Direct I/O in a power cut: docs/durability.md, "What was found in OpenZFS"."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product

import pytest
from guests import Resume

from ztune.disk import server
from ztune.lab import Guest
from ztune.study import profiles

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]

SIZE = 1 << 30
RECORD, RECORDS = 16384, 16
CASES = tuple(product(("disabled", "standard"), (False, True)))
"""The property, and whether the log is on a disk apart: each has a pool, and one power cut takes all."""
WRITE = f"""
import mmap, os, sys
page = mmap.mmap(-1, {RECORD})  # memory as O_DIRECT asks for it
page[:] = sys.argv[1].encode() * {RECORD}
for folder in sys.argv[2:]:
    fd = os.open(folder + "/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    for i in range({RECORDS}):
        os.pwrite(fd, page, i * {RECORD})
        os.fsync(fd)
"""
BEGIN = """
set -e
cat > /tmp/write.py <<'END'
{write}
END
{create}
python3 /tmp/write.py o {folders}
echo 300 > /sys/module/zfs/parameters/zfs_txg_timeout
zpool sync
python3 /tmp/write.py N {folders}
"""
LOOK = """
set -e
zpool import -f -d /dev -a
python3 -c 'import sys; print(*(open(f + "/file", "rb").read().count(b"N") for f in sys.argv[1:]))' {folders}
zpool export -a
"""


def name_of(direct: str, apart: bool) -> str:
    return f"zt{direct}{'apart' if apart else ''}"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, resume: Resume) -> dict[tuple[str, bool], int]:
    """How many bytes of what was synced are there after the cut, in each of ``CASES``."""
    folder = tmp_path_factory.mktemp("cut")
    profile = profiles.find("ssd-sata")
    parts = {case: ["data", "log"] if case[1] else ["data"] for case in CASES}

    def add_disks(stack: ExitStack, guest: Guest, when: str) -> dict[tuple[str, bool], list[str]]:
        def add(name: str) -> str:
            image, log = folder / f"{name}.img", folder / f"{name}-{when}"
            disk = stack.enter_context(server.start(profile, SIZE, image, log, lazy=True))
            return guest.add_disk(disk.socket, name)

        return {case: [add(f"{name_of(*case)}-{part}") for part in parts[case]] for case in CASES}

    folders = " ".join(f"/tmp/{name_of(*case)}" for case in CASES)
    with ExitStack() as stack, resume() as guest:
        create = "\n".join(
            f"zpool create -O mountpoint=/tmp/{name_of(*case)} -O recordsize=16K -O compression=off "
            f"-O direct={case[0]} {name_of(*case)} {' log '.join(disks)}"
            for case, disks in add_disks(stack, guest, "before").items()
        )
        line = BEGIN.format(write=WRITE, create=create, folders=folders)
        guest.run(["sh", "-c", line], check=True, timeout=300)
        guest.cut()
    with ExitStack() as stack, resume() as guest:
        add_disks(stack, guest, "after")
        said = guest.run(["sh", "-c", LOOK.format(folders=folders)], check=True, timeout=300).stdout
    return dict(zip(CASES, map(int, said.split()), strict=True))


@pytest.mark.parametrize(("direct", "apart"), CASES, ids=[name_of(*case) for case in CASES])
def test_what_was_synced_is_there_unless_it_was_direct_and_the_log_elsewhere(
    kept: dict[tuple[str, bool], int], direct: str, apart: bool
) -> None:
    if direct == "standard" and apart:
        assert kept[direct, apart] < RECORD * RECORDS
    else:
        assert kept[direct, apart] == RECORD * RECORDS
