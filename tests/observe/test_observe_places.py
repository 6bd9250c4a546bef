"""Which dataset a file is in, by its file system: a container calls another file by a path of this host's."""

from __future__ import annotations

import os

import pytest

from ztune.observe.live import LiveObservation
from ztune.observe.live_groups import FilePlace
from ztune.observe.live_kernel import KernelReading, SeenFile
from ztune.observe.subjects import of_pid
from ztune.onhost.host import mounts
from ztune.onhost.look.zfs import Places
from ztune.trace.recorders.files import Mounts

OWN = """\
21 1 0:30 / / rw - zfs rpool/ROOT rw
22 1 0:31 / /tank/pg rw - zfs tank/pg rw
23 1 8:1 / /srv rw - ext4 /dev/sda1 rw
"""
CONTAINERS = """\
40 1 0:44 / / rw - overlay overlay rw
41 1 0:31 /data /var/lib/mysql rw - zfs tank/pg rw
42 1 0:45 / /srv/own rw - zfs tank/of\\040container rw
"""


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> LiveObservation:
    monkeypatch.setattr(mounts, "table", lambda: mounts.parse(OWN))
    monkeypatch.setattr(
        Mounts, "read", lambda self, pid="self": self.add(OWN if pid == "self" else CONTAINERS)
    )
    made = LiveObservation(of_pid(os.getpid()))
    made._mounts, made._theirs, made._datasets = Mounts(), Mounts(), Places()
    made._mounts.read()
    made._theirs.read(1)
    return made


def seen(path: str, device: tuple[int, int]) -> SeenFile:
    return SeenFile(path, os.makedev(*device), 1, 0)


def test_the_file_system_says_which_dataset(live: LiveObservation) -> None:
    for path, device, place in (
        ("/tank/pg/data/x", (0, 31), FilePlace(None, "tank/pg", "zfs")),
        ("/srv/own/x", (0, 45), FilePlace(None, "tank/of container", "zfs")),
        ("/var/lib/mysql/x", (0, 44), FilePlace(None, None, "overlay")),
        ("/srv/x", (8, 1), FilePlace(None, None, "ext4")),
        ("/gone/x", (0, 99), FilePlace(None, None, None)),
    ):
        assert live._place(seen(path, device)) == place


def test_what_only_the_processes_can_reach_is_said(live: LiveObservation) -> None:
    files = {1: seen("/tank/pg/x", (0, 31)), 2: seen("/srv/own/x", (0, 45)), 3: seen("/etc/x", (0, 44))}
    live._reading = KernelReading({}, None, None, (), files)  # type: ignore[arg-type]
    assert live.elsewhere() == {"/srv/own/x", "/etc/x"}
