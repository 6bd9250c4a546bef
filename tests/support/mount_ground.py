"""What the tests of the mounted file system stand on: two datasets of a mounted layout.

``ZTUNE_MOUNT_TESTS_ON=DIR:DIR`` puts two ordinary directories in their place, best on two file systems. Then
the tests themselves are on trial: what they demand must hold on the kernel's own file systems too, as far as
it is not ZFS' own way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ztune.onhost.host.mounted import Mount, MountError, MountOptions

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("ZTUNE_TESTED_MOUNT") or ROOT / "mount" / "build" / "ztune-mount")
ELSEWHERE = "ZTUNE_MOUNT_TESTS_ON"
SMALL, LARGE = "tank/small", "tank/large"
SMALL_RECORD, LARGE_RECORD = 8 << 10, 128 << 10

# Times do not matter to these tests: their disks are "instant".
_PROFILE: dict[str, Any] = {
    "kind": "flash",
    "rotational": False,
    "channels": 32,
    "read_us": 80,
    "write_us": 20,
    "read_mb_s": 3000,
    "write_mb_s": 2000,
    "flush_us": 50,
    "overhead_us": 5,
}


def spec(
    *, disk: int = 8 << 30, arc: int = 64 << 20, tunables: dict[str, int] | None = None
) -> dict[str, Any]:
    """Return a layout of one disk and two datasets, as the program reads it."""
    return {
        "version": 1,
        "seed": 1,
        "arc_max": arc,
        "pools": [
            {
                "name": "tank",
                "ashift": 12,
                "vdevs": [
                    {"class": "data", "kind": "stripe", "disks": [{"profile": "flash", "size": disk}]},
                ],
            }
        ],
        "datasets": [
            {"name": SMALL, "properties": {"recordsize": str(SMALL_RECORD), "compression": "off"}},
            {"name": LARGE, "properties": {"recordsize": str(LARGE_RECORD), "compression": "lz4"}},
        ],
        "profiles": {"flash": _PROFILE},
        "files": [],
        "content": {},
        "tunables": tunables or {},
    }


def why_not() -> str:
    """Return why nothing can be mounted here; nothing where it can."""
    if not PROGRAM.is_file():
        return f"{PROGRAM} is not built: `make build`"
    if os.geteuid() != 0:
        return "only root may mount for others, whom these tests need"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse here"
    return ""


def options(**more: Any) -> MountOptions:
    """Return the program's options for tests: instant disks, and shared mmaps whatever the kernel."""
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return MountOptions(**{"disks": "instant", "page_cache": (major, minor) < (6, 6), **more})


class Ground:
    """Two directories to test on, ``small`` and ``large`` by the size of their records."""

    def __init__(self, small: Path, large: Path) -> None:
        self.small = small
        self.large = large

    @property
    def zfs(self) -> bool:
        """Whether it is the mounted ZFS and not what a developer gave."""
        return isinstance(self, Mounted)

    def sync(self) -> None:
        """Bring everything to the disks, so that counts of blocks are true."""
        os.sync()

    def restart(self) -> None:
        """Unmount and mount again, where there is something to mount."""
        os.sync()

    def must_live(self) -> None:
        """Fail if the file system has died."""

    def close(self) -> None:
        """Leave nothing behind."""


class Mounted(Ground):
    """A running ``ztune-mount`` and the directory with its store and its mount points."""

    def __init__(self, spec_: dict[str, Any] | None = None, *, program: Path = PROGRAM, **more: Any) -> None:
        self.program = program
        # Not in pytest's directories: those are closed to the users that databases run as, and sockets' paths
        # have to be short.
        self.home = Path(tempfile.mkdtemp(prefix="ztune-mt-", dir="/var/tmp"))
        self.home.chmod(0o755)
        self.store = self.home / "store"
        self.spec = spec_ or spec()
        self.options = options(**more)
        self.places = {d["name"]: self.home / d["name"].rpartition("/")[2] for d in self.spec["datasets"]}
        for path in (self.store, *self.places.values()):
            path.mkdir(mode=0o755)
        names = list(self.places.values())
        super().__init__(names[0], names[-1])
        try:
            self.mount = self._start()
        except BaseException:
            self._remove()
            raise
        for path in self.places.values():
            path.chmod(0o755)

    def _start(self) -> Mount:
        return Mount.start(
            self.program, self.spec, self.store, self.places, self.options, die_with_caller=True
        )

    def sync(self) -> None:
        self.mount.sync()

    def stop(self) -> None:
        """End it in order."""
        self.mount.stop()

    def start(self) -> None:
        """Start it on its store, after ``stop`` or ``kill``."""
        self.mount = self._start()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.mount.kill()

    def must_live(self) -> None:
        if self.mount.alive():
            return
        self.mount.kill()
        self.start()
        pytest.fail("ztune-mount died during this test; it was started again for the next")

    def close(self) -> None:
        try:
            if self.mount.alive():
                self.mount.stop()
            else:
                self.mount.kill()
        except MountError:
            self.mount.kill()
            raise
        finally:
            self._remove()

    def _remove(self) -> None:
        for path in self.places.values():
            if os.path.ismount(path):
                subprocess.run(["umount", "-l", path], check=False)
        shutil.rmtree(self.home)


def given() -> Ground | None:
    """Return the directories that a developer gave."""
    text = os.environ.get(ELSEWHERE)
    if not text:
        return None
    first, _, second = text.partition(":")
    top = [Path(tempfile.mkdtemp(prefix="zt-", dir=path)) for path in (first, second or first)]
    for path in top:
        path.chmod(0o755)

    class Given(Ground):
        def close(self) -> None:
            for path in top:
                shutil.rmtree(path)

    return Given(*top)
