"""What a host answers of real ZFS when Python alone asks it: ``ztune-trial look`` in the lab's guest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from guests import PATH, SOURCE

from ztune.hosts.answer import observation
from ztune.hosts.asking import HostAnswer
from ztune.hosts.listed import ListedHost
from ztune.hosts.metrics import ObservedMetrics
from ztune.hosts.ranked import ranked
from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
# A database in its files: SQLite, which writes pages of 4 KiB while it is looked at.
LOOK = """
trap 'kill $asks $writer 2>/dev/null || true' EXIT
asks= writer=
cd /tmp
truncate -s 300M d0 d1
zpool create -f -o ashift=12 tank mirror /tmp/d0 /tmp/d1
zfs create -o sync=disabled -o recordsize=16K tank/app
zfs create tank/empty
cat > /tmp/writer.py <<'END'
import os, sqlite3, time
db = sqlite3.connect("/tank/app/app.sqlite")
db.execute("CREATE TABLE t (x)"); db.commit()
print("ready", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end:
    db.executemany("INSERT INTO t VALUES (?)", [(os.urandom(3000),) for _ in range(40)]); db.commit()
    time.sleep(0.1)
END
python3 /tmp/writer.py > /tmp/ready &
writer=$!
while ! grep -q ready /tmp/ready; do sleep 0.2; done
properties() { zfs get -Hp -s local,received,default -o name,property,value all tank/empty; }
before=$(properties)
mkfifo /tmp/asks
(echo '{"seconds": 20, "datasets": ["tank/empty", "tank/gone"]}'; exec sleep 300) > /tmp/asks &
asks=$!
python3 -m ztune.onhost look < /tmp/asks
test "$before" = "$(properties)"
"""


@pytest.fixture(scope="module")
def said(guest: Guest) -> dict[str, Any]:
    done = guest.run(["sh", "-euc", LOOK], env={"PYTHONPATH": SOURCE, "PATH": PATH}, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_host_with_real_zfs_answers(said: dict[str, Any]) -> None:
    seen = observation(said)
    zfs = seen.zfs
    assert zfs is not None
    assert {d.name: d.roles for d in zfs.datasets} == {"tank/app": ("data",), "tank/empty": ()}
    assert [(v.kind, v.ashift) for v in zfs.pools[0].vdevs] == [("mirror", 12)]
    (group,) = seen.groups
    assert group.writes.bytes == zfs.counters["objset tank/app"]["nwritten"] > 0
    assert zfs.counters["objsets tank"]["nwritten"] >= group.writes.bytes
    # A mirror of two writes everything twice.
    assert zfs.counters["vdevs tank"]["write_bytes"] >= 2 * 4096
    assert any("tank/gone" in text for text in seen.limits)
    rows = ranked([HostAnswer(ListedHost("lab", "lab", None), seen)])
    assert ("sync-disabled", "tank/app") in {(row.finding.id, row.about) for row in rows}


def test_amplification_is_of_what_reached_the_devices(said: dict[str, Any]) -> None:
    seen, metrics = observation(said), ObservedMetrics()
    metrics.take([HostAnswer(ListedHost("lab", "lab", None), seen)])
    lines = [line for line in metrics.text().decode().splitlines() if "write_amplification{" in line]
    (value,) = (float(line.rpartition(" ")[2]) for line in lines)
    assert seen.zfs is not None
    # Of a mirror each record twice; what is rewritten within a transaction group only once.
    device, asked = seen.zfs.counters["vdevs tank"], seen.zfs.counters["objsets tank"]
    assert value == pytest.approx(device["write_bytes"] / asked["nwritten"]) and value > 0.5
