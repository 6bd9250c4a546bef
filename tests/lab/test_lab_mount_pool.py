"""A pool that ztune-mount made is OpenZFS's: the kernel's module imports it, replays its log and reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ztune.errors import ZtuneError
from ztune.lab import Guest
from ztune.onhost.host import mounted
from ztune.places import mount_program

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600)]

SIZE = 128 << 20
SPEC: dict[str, Any] = {
    "version": 1,
    "seed": 1,
    "arc_max": 64 << 20,
    "profiles": {
        "ssd": {
            "kind": "flash", "channels": 8, "read_us": 80, "write_us": 20, "read_mb_s": 3000,
            "write_mb_s": 2000, "flush_us": 50, "overhead_us": 5,
        }
    },
    "pools": [
        {
            "name": "ztmount",
            "ashift": 12,
            "vdevs": [{"class": "data", "kind": "stripe", "disks": [{"profile": "ssd", "size": SIZE}]}],
        }
    ],
    "datasets": [{"name": "ztmount/db", "properties": {"recordsize": "8192", "compression": "lz4"}}],
    "files": [],
    "content": {},
    "tunables": {},
}  # fmt: skip

LIST = """
import hashlib, json, os, sys
found = {}
for folder, dirs, files in os.walk(sys.argv[1]):
    for name in dirs + files:
        path = os.path.join(folder, name)
        info = os.lstat(path)
        if os.path.islink(path):
            what = os.readlink(path)
        elif os.path.isdir(path):
            what = ""
        else:
            what = hashlib.sha256(open(path, "rb").read()).hexdigest()
        extra = {}
        if not os.path.islink(path):
            extra = {n: os.getxattr(path, n).decode() for n in os.listxattr(path) if n.startswith("user.")}
        links = 0 if os.path.isdir(path) else info.st_nlink
        size = 0 if os.path.isdir(path) else info.st_size
        found[os.path.relpath(path, sys.argv[1])] = [info.st_mode, info.st_uid, links, size, what, extra]
print(json.dumps(found, sort_keys=True))
"""

IMPORT = """
set -e
mkdir -p /tmp/pool /tmp/db
cp --sparse=always {image} /tmp/pool/disk.img
zpool import -f -N -d /tmp/pool ztmount
mount -t zfs -o zfsutil ztmount/db /tmp/db
cat > /tmp/list.py <<'END'
{script}
END
python3 /tmp/list.py /tmp/db
zpool scrub -w ztmount
zpool status -x ztmount >&2
umount /tmp/db
zpool export ztmount
"""


def synced(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    os.pwrite(fd, data, 0)
    os.fsync(fd)
    os.close(fd)


def fill(top: Path) -> None:
    """Every kind of record that a log can hold; all of it is synced when this returns."""
    (top / "d" / "e").mkdir(parents=True)
    for i in range(40):
        synced(top / f"f{i}", os.urandom(64) * (100 + 50 * i))
    for i in range(0, 40, 4):
        (top / f"f{i}").rename(top / "d" / "e" / f"r{i}")
    (top / "f1").rename(top / "f2")
    (top / "d" / "hard").hardlink_to(top / "f3")
    (top / "d" / "soft").symlink_to("../f3")
    (top / "f5").unlink()
    os.truncate(top / "f6", 1000)
    os.truncate(top / "f7", 100_000)
    (top / "f9").chmod(0o4711)
    os.chown(top / "f10", 1000, 1000)
    os.setxattr(top / "f11", "user.kept", b"yes")
    os.setxattr(top / "f11", "user.gone", b"no")
    os.removexattr(top / "f11", "user.gone")
    (top / "gone").mkdir()
    (top / "gone").rmdir()
    for name in ("f6", "f7", "f9", "f10", "f11"):
        fd = os.open(top / name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


# Each file: written, and what else happens before it is written again and synced. The intent log holds where
# the blocks of all this are, not what is in them: the writes are too large to be copied into it.
REWRITE = """
import ctypes, os, sys
fallocate = ctypes.CDLL(None, use_errno=True).fallocate
for name in ("plain", "short", "short-synced", "hole"):
    fd = os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT, 0o600)
    if sys.argv[2] == "before":
        os.pwrite(fd, b"a", 0)
        os.fsync(fd)
    else:
        os.pwrite(fd, b"a" * 131072, 0)
        if name.startswith("short"):
            os.ftruncate(fd, 16384)
        if name == "hole":  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
            assert fallocate(fd, 1 | 2, ctypes.c_long(16384), ctypes.c_long(114688)) == 0
        if name == "short-synced":
            os.fsync(fd)
        os.pwrite(fd, b"b" * 65536, 32768)
        os.fsync(fd)
    os.close(fd)
"""
COUNT = """
import collections, json, os, sys
found = {}
for name in os.listdir(sys.argv[1]):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        found[name] = {chr(byte): n for byte, n in collections.Counter(file.read()).items()}
print(json.dumps(found))
"""
# What the file of the disk holds after the last fsync is what a power cut would leave.
CUT = """
set -e
mkdir -p /tmp/pool /tmp/left
truncate -s 256M /tmp/pool/disk.img
cat > /tmp/rewrite.py <<'END'
{rewrite}
END
cat > /tmp/count.py <<'END'
{count}
END
zpool create -O mountpoint=/tmp/db -O recordsize=8K -O compression=lz4 ztcut /tmp/pool/disk.img
python3 /tmp/rewrite.py /tmp/db before
echo 300 > /sys/module/zfs/parameters/zfs_txg_timeout
zpool sync ztcut
python3 /tmp/rewrite.py /tmp/db after
cp --sparse=always /tmp/pool/disk.img /tmp/left/disk.img
zpool export -f ztcut
zpool import -f -d /tmp/left ztcut
python3 /tmp/count.py /tmp/db
zpool export ztcut
echo 5 > /sys/module/zfs/parameters/zfs_txg_timeout
rm -r /tmp/pool /tmp/left
"""


def test_a_cut_leaves_of_the_mount_what_it_leaves_of_the_kernel(tmp_path: Path, guest: Guest) -> None:
    """Also where that is less than was synced: docs/durability.md, "What was found in OpenZFS"."""
    try:
        program = mount_program.check()
    except ZtuneError as error:
        pytest.skip(str(error))
    spec = {**SPEC, "tunables": {"zfs_txg_timeout": 300}}
    where = {"ztmount/db": tmp_path / "db"}
    mount = mounted.Mount.start(program, spec, tmp_path / "store", where, mounted.MountOptions("instant"))
    try:
        top = mount.places["ztmount/db"]
        for moment in ("before", "after"):
            mount.sync()
            subprocess.run([sys.executable, "-c", REWRITE, top, moment], check=True)
    finally:
        mount.kill()
    mount = mounted.Mount.start(program, spec, tmp_path / "store", where, mounted.MountOptions("instant"))
    try:
        here = subprocess.run([sys.executable, "-c", COUNT, top], check=True, capture_output=True)
    finally:
        mount.stop()
    done = guest.run(["sh", "-c", CUT.format(rewrite=REWRITE, count=COUNT)], timeout=500)
    assert done.returncode == 0, done.stderr.decode()
    ours, theirs = json.loads(here.stdout), json.loads(done.stdout)
    assert ours == theirs
    assert ours["plain"] == {"a": 65536, "b": 65536}
    assert ours["short-synced"] == {"a": 16384, "\0": 16384, "b": 65536}
    assert "b" not in ours["short"] and "b" not in ours["hole"]


def test_the_kernel_reads_and_replays_what_the_mount_wrote(tmp_path: Path, guest: Guest) -> None:
    try:
        program = mount_program.check()
    except ZtuneError as error:
        pytest.skip(str(error))
    store = tmp_path / "store"
    mount = mounted.Mount.start(
        program, SPEC, store, {"ztmount/db": tmp_path / "db"}, mounted.MountOptions("instant", "none")
    )
    try:
        mount.sync()
        fill(mount.places["ztmount/db"])
        here = subprocess.run(
            [sys.executable, "-c", LIST, mount.places["ztmount/db"]], check=True, capture_output=True
        )
    finally:
        mount.kill()  # not exported: the last changes are in the log alone
    (image,) = store.rglob("disk-*.img")
    script = IMPORT.format(image=f"/host{image}", script=LIST)
    done = guest.run(["sh", "-c", script], timeout=500)
    assert done.returncode == 0, done.stderr.decode()
    assert "healthy" in done.stderr.decode()
    assert json.loads(done.stdout) == json.loads(here.stdout)
    assert len(json.loads(here.stdout)) > 40
