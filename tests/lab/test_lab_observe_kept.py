"""``ztune observe`` writes nothing: a pool, its datasets and its files are the same before and after."""

from __future__ import annotations

import json
import signal
import sqlite3
import sysconfig
from typing import Any

import pytest
from guests import PATH, SOURCE

from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
IN_GUEST = f"{SOURCE}:/host{sysconfig.get_path('purelib')}"
ENVIRONMENT = {"PYTHONPATH": IN_GUEST, "PATH": PATH}
# atime without relatime: whoever reads a file or lists a folder writes, unless he asks the kernel not to.
POOL = """
cd /tmp
for i in 0 1; do truncate -s 300M d$i; done
zpool create -f -o ashift=12 -o comment=before -O atime=on -O relatime=off -O ours:word=kept \
    tank mirror /tmp/d0 /tmp/d1
zfs create -o recordsize=16K -o compression=gzip tank/sent
zfs snapshot tank/sent@a
zfs send -p tank/sent@a | zfs receive tank/received
zfs set compression=lz4 tank/received
zfs create -V 8M tank/volume
mkdir -p /tank/pg/base/5 /tank/pg/pg_wal /tank/rocks /tank/my/db
cp /host$1/shop.db /tank/
for file in /tank/pg/base/5/16384 /tank/pg/pg_wal/000000010000000000000001 /tank/rocks/000012.sst \
    /tank/my/ibdata1 /tank/my/db/t.ibd; do head -c 150000 /dev/urandom > $file; done
echo 15 > /tank/pg/PG_VERSION; mkdir /tank/pg/global /tank/my/mysql
echo full_page_writes=off > /tank/pg/postgresql.conf
printf '[Version]\\n[DBOptions]\\n  use_fsync=false\\n' > /tank/rocks/OPTIONS-000013
echo OPTIONS-000013 > /tank/rocks/CURRENT
ln -s 16384 /tank/pg/base/5/link; truncate -s 1M /tank/pg/base/5/16385
zfs snapshot -r tank@b
zpool sync tank
"""
# All that is kept of a pool: properties of every dataset, snapshot and volume with what was received, those
# of the pool and its history with internal events, module parameters, mounts, each file with its times.
STATE = """
import hashlib, json, os, subprocess, sys
def out(*argv): return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
def content(path):
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    with open(fd, "rb") as f: return hashlib.sha256(f.read()).hexdigest()
def names(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_NOATIME)
    found = sorted(os.listdir(fd)); os.close(fd)
    return found
def files(folder):
    for path in [folder, *(os.path.join(folder, name) for name in names(folder))]:
        s = os.lstat(path)
        kind = s.st_mode & 0o170000
        yield path, [s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_blocks,
                     s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns, content(path) if kind == 0o100000 else None]
        if kind == 0o040000 and path != folder: yield from files(path)
def text(path):
    try:
        with open(path) as f: return f.read()
    except OSError as error: return str(error)
for _ in range(3): out("zpool", "sync", "tank")  # what was written shows in "used" and the like; frees later
parameters = "/sys/module/zfs/parameters"
print(json.dumps({
    "zfs": out("zfs", "get", "-Hpr", "-o", "name,property,value,received,source", "all", "tank"),
    "zpool": out("zpool", "get", "-Hp", "all", "tank"),
    "history": out("zpool", "history", "-il", "tank"),
    "parameters": {name: text(f"{parameters}/{name}") for name in sorted(os.listdir(parameters))},
    "mounts": [line for line in text("/proc/self/mountinfo").splitlines() if " zfs " in line],
    "files": dict(files("/tank")),
}))
"""
# The database: reads, and leaves the access times of what it reads as they are.
READER = """
import os, sys, time
fds = [os.open(p, os.O_RDONLY | os.O_NOATIME) for p in sys.argv[1:]]
print(os.getpid(), flush=True)
for i in range(10**9):
    for fd in fds: os.pread(fd, 8192, i % 18 * 8192)
    time.sleep(0.01)
"""
# One that hangs says where.
OBSERVE = """
import faulthandler, sys
faulthandler.dump_traceback_later(500, exit=True)
from ztune.cli.main import main
sys.argv = ['ztune', 'observe', *sys.argv[1:]]
main()
"""
# What the comparison must notice: a part of the state that it changes, and a command that does.
CHANGES = {
    "a property of a dataset": ("zfs", "zfs set atime=off tank/sent"),
    "a property of the user's": ("zfs", "zfs set ours:word=other tank"),
    "a received property": ("zfs", "zfs inherit -S compression tank/received"),
    "a snapshot": ("zfs", "zfs snapshot tank@c"),
    "a property of the pool": ("zpool", "zpool set comment=after tank"),
    "a module parameter": ("parameters", "echo 7 > /sys/module/zfs/parameters/zfs_txg_timeout"),
    "the bytes of a file": ("files", "printf x | dd of=/tank/rocks/000012.sst conv=notrunc bs=1 seek=9"),
    "when it was read": ("files", "head -c 1 /tank/pg/PG_VERSION"),
    "when a folder was read": ("files", "ls /tank/pg/base"),
    "the rights of a file": ("files", "chmod g+w /tank/shop.db"),
}


@pytest.fixture(scope="module")
def pool(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """A guest with a pool that holds files of several databases."""
    folder = tmp_path_factory.mktemp("sqlite")
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute("create table t as select randomblob(40000)")
    connection.close()
    guest.run(["sh", "-euc", POOL, "sh", str(folder)], check=True)
    return guest


def state(guest: Guest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(guest.run(["python3", "-Ic", STATE], check=True).stdout)
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is in one of two states only, as part and line, or name and value."""
    found = []
    for part in before:
        was, become = (
            [json.dumps(item) for item in (of[part].items() if isinstance(of[part], dict) else of[part])]
            for of in (before, now)
        )
        found += [(part, item) for item in was if item not in become]
        found += [(part, item) for item in become if item not in was]
    return found


def observe(guest: Guest, *words: str) -> dict[str, Any]:
    done = guest.run(
        ["python3", "-c", OBSERVE, *words, "--seconds", "6", "--json"],
        env=ENVIRONMENT,
        timeout=600,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)["observation"]
    return found


@pytest.mark.parametrize("how", ["--dataset", "--pid"])
def test_nothing_is_written(pool: Guest, how: str) -> None:
    reader = pool.popen(
        ["python3", "-Ic", READER, "/tank/pg/base/5/16384", "/tank/rocks/000012.sst", "/tank/shop.db"]
    )
    try:
        pid = next(reader.lines())
        before = state(pool)
        assert len(before["files"]) > 20 and len(before["zfs"]) > 200 and len(before["zpool"]) > 20
        assert any(line.split("\t")[3] == "gzip" for line in before["zfs"])  # as it was received
        seen = observe(pool, how, pid if how == "--pid" else "tank")
        now = state(pool)
        assert differences(before, now) == []
    finally:
        reader.command.signal(signal.SIGKILL)
        reader.close()
    # It did look: at the calls, at ZFS, into the files and at the databases.
    reads = {g["name"]: g["reads"]["calls"] for g in seen["groups"] if g["kind"] == "file"}
    assert reads["/tank/rocks/000012.sst"] > 0
    assert {d["name"] for d in seen["zfs"]["datasets"]} >= {"tank"}
    assert "data" in {f["role"] for f in seen["files"] if f.get("compressed")}
    assert {d["kind"] for d in seen["databases"]} >= {"sqlite", "rocksdb"}


def test_the_comparison_would_notice(pool: Guest) -> None:
    before = state(pool)
    assert differences(before, state(pool)) == []  # to compare changes nothing
    for what, (part, command) in CHANGES.items():
        pool.run(["sh", "-euc", command], check=True)
        now = state(pool)
        assert part in {changed for changed, _ in differences(before, now)}, what
        before = now
