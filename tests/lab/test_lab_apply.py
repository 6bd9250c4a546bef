"""``ztune apply`` on real kernel ZFS: what it reads, sets, takes back, and the commands that it prints."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zfs_machine import recommended

from ztune.advice import exports
from ztune.advice.host import Host, LivePool, canonical, read, read_dataset
from ztune.advice.perform import perform, read_undo, undo
from ztune.advice.plan import Plan, build
from ztune.errors import InputError, ZtuneError
from ztune.lab import Guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Runs a command in the guest: the words of --via. The test's own thread has the guest.
CLIENT = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    s.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
    answer = json.loads(s.makefile().read())
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
"""
MAPPING = {"data": "tank/pg", "wal": "tank/pg/wal"}
CHANGES = {"data.recordsize": "16K", "data.compression": "zstd-3", "wal.logbias": "throughput"}


class Lab:
    """A guest with a pool, and the way there for ``Host``."""

    def __init__(self, guest: Guest, folder: Path) -> None:
        self.guest = guest
        self.folder = folder
        socket_path, client = folder / "guest.sock", folder / "client.py"
        client.write_text(CLIENT)
        lock = threading.Lock()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with lock:
                    done = guest.run(json.loads(self.rfile.readline()), check=False, timeout=300)
                said = {"code": done.returncode, "out": done.stdout.decode(), "err": done.stderr.decode()}
                self.wfile.write(json.dumps(said).encode())

        self.server = socketserver.ThreadingUnixStreamServer(str(socket_path), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.host = Host("", [sys.executable, "-S", str(client), str(socket_path)])

    def __call__(self, *words: str) -> str:
        done: subprocess.CompletedProcess[bytes] = self.guest.run(list(words), timeout=300)
        return done.stdout.decode()

    def shell(self, text: str) -> str:
        return self("sh", "-euc", text)

    def plan(self, changes: dict[str, Any], mapping: dict[str, str] = MAPPING) -> Plan:
        return build(recommended(changes), mapping, read(self.host, mapping.values(), ["zfs_arc_max"]))

    def everything(self) -> str:
        """Return the values and sources of all that a layout can set, on every dataset."""
        names = "recordsize,compression,checksum,logbias,sync,primarycache,copies,atime"
        columns = "name,property,value,source"
        return self("zfs", "get", "-Hp", "-r", "-t", "filesystem,volume", "-o", columns, names, "tank")


@pytest.fixture(scope="module")
def lab(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    disks = []
    for name in ("main-0", "main-1"):
        image = folder / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(1 << 30)
        disks.append(guest.add_disk(image, name, 1))
    made = Lab(guest, folder)
    create = ("zpool", "create", "-o", "ashift=12", "-O", "compression=lz4", "-m", "/tank")
    made(*create, "tank", "mirror", *disks)
    made("zfs", "create", "-o", "atime=off", "-o", "mountpoint=/pg", "tank/pg")
    for name in ("tank/pg/wal", "tank/pg/dump", "tank/sent"):
        made("zfs", "create", name)
    made("zfs", "create", "-s", "-V", "64M", "-o", "volblocksize=8K", "tank/vol")
    try:
        yield made
    finally:
        made.server.shutdown()


def test_what_is_read_is_what_is_there(lab: Lab) -> None:
    live = read(lab.host, ["tank/pg", "tank/vol"], ["zfs_arc_max", "zfs_no_such_parameter"])
    assert live.version[0].isdigit()
    assert live.pools["tank"] == LivePool("tank", live.pools["tank"].properties, {"data": ("mirror 2",)})
    assert live.pools["tank"].properties["ashift"] == "12"
    (sectors,) = live.pools["tank"].sectors
    assert (sectors.name, sectors.class_, sectors.ashift) == ("mirror-0", "data", 12)
    assert sectors.physical in {512, 4096}
    assert live.pools["tank"].feature("large_blocks") in {"enabled", "active"}
    pg = live.datasets["tank/pg"]
    assert (pg.properties["atime"].value, pg.properties["atime"].source) == ("off", "local")
    assert pg.properties["compression"].source == "inherited from tank"
    assert canonical("recordsize", pg.text("recordsize")) == "128K"
    assert [d.name for d in pg.below] == ["tank/pg/dump", "tank/pg/wal"]
    assert live.datasets["tank/vol"].is_volume and live.datasets["tank/vol"].text("volblocksize") == "8192"
    assert live.datasets["tank/vol"].text("recordsize") == ""
    assert live.parameters.keys() == {"zfs_arc_max"}
    with pytest.raises(InputError, match="there is no dataset tank/nil"):
        read_dataset(lab.host, "tank/nil", live.version)


def test_done_and_taken_back(lab: Lab, tmp_path: Path) -> None:
    before = lab.everything()
    plan = lab.plan(CHANGES)
    assert plan.refused == () and len(plan.settings) == 5
    assert {f[:2] for f in plan.targets[0].followers} == {
        ("tank/pg/dump", "recordsize"), ("tank/pg/dump", "compression"),
    }  # fmt: skip
    path = tmp_path / "undo.json"
    assert perform(plan, lab.host, path, None, lambda _: None) == 5
    got = lab("zfs", "get", "-Hp", "-o", "value", "recordsize,compression,logbias", "tank/pg", "tank/pg/wal")
    assert got.split() == ["16384", "zstd-3", "latency", "131072", "lz4", "throughput"]
    # What the plan said of those below is what happened.
    assert lab("zfs", "get", "-Hp", "-o", "value,source", "recordsize", "tank/pg/dump").split("\t") == [
        "16384", "inherited from tank/pg\n",
    ]  # fmt: skip
    assert lab.plan(CHANGES).settings == ()
    taken = undo(read_undo(path), lab.host, lambda _: None, yes=True)
    assert taken.left == () and len(taken.done) == 5
    assert lab.everything() == before


@pytest.mark.long
def test_a_real_refusal_takes_everything_back(lab: Lab, tmp_path: Path) -> None:
    """A delegated user may set the record size, and not the compression."""
    before = lab.everything()
    # The guest has no udev, which would let everybody ask.
    lab.shell("chmod 666 /dev/zfs; zfs allow nobody recordsize tank/pg")
    try:
        host = Host("", [*lab.host.via, "setpriv", "--reuid=65534", "--clear-groups"])
        plan = build(recommended(CHANGES), {"data": "tank/pg"}, read(host, ["tank/pg"]))
        assert [s.name for s in plan.settings] == ["recordsize", "compression"]
        with pytest.raises(ZtuneError, match=r"permission denied.*all is as it was before"):
            perform(plan, host, tmp_path / "undo.json", None, lambda _: None)
    finally:
        lab("zfs", "unallow", "nobody", "tank/pg")
    assert lab.everything() == before
    assert not (tmp_path / "undo.json").exists()


@pytest.mark.long
def test_received_values_come_back(lab: Lab, tmp_path: Path) -> None:
    lab("zfs", "set", "primarycache=metadata", "tank/sent")
    lab.shell("zfs snapshot tank/sent@a; zfs send -p tank/sent@a | zfs receive tank/got")
    try:
        before = lab.everything()
        assert "tank/got\tprimarycache\tmetadata\treceived" in before
        path = tmp_path / "undo.json"
        perform(lab.plan({}, {"data": "tank/got"}), lab.host, path, None, lambda _: None)
        assert "tank/got\tprimarycache\tall\tlocal" in lab.everything()
        assert undo(read_undo(path), lab.host, lambda _: None, yes=True).left == ()
        assert lab.everything() == before
    finally:
        lab.shell("zfs destroy -r tank/got; zfs destroy tank/sent@a; zfs inherit primarycache tank/sent")


@pytest.mark.long  # on a stand-in: test_script_for_existing_datasets_does_what_apply_does
def test_the_script_does_the_same(lab: Lab, tmp_path: Path) -> None:
    before = lab.everything()
    plan = lab.plan(CHANGES)
    script = exports.shell(recommended(CHANGES), MAPPING, plan)
    done = lab.guest.run(["sh", "-s"], stdin=script.encode(), timeout=300)
    assert done.stdout.decode().splitlines() == [" ".join(s.command) for s in plan.settings]
    assert lab.everything() == before
    lab.guest.run(["sh", "-s", "--", "--yes"], stdin=script.encode(), timeout=300)
    assert lab.plan(CHANGES).settings == ()
    lab.shell("; ".join(" ".join(s.undo) for s in reversed(plan.settings)))
    assert lab.everything() == before


@pytest.mark.long  # on a stand-in: test_script_without_datasets_creates_them
def test_the_script_that_creates(lab: Lab) -> None:
    script = exports.shell(recommended({"data.recordsize": "16K", "wal.volume": "64M"}), {}, None)
    # The guest has no udev: the link that it would make, before the device is there.
    lab.shell("zfs create tank/new; mkdir -p /dev/zvol/tank/new; ln -s /dev/zd16 /dev/zvol/tank/new/wal")
    try:
        lab.guest.run(["sh", "-s", "--", "--yes", "tank/new"], stdin=script.encode(), timeout=300)
        got = lab(
            "zfs",
            "get",
            "-Hp",
            "-o",
            "name,value",
            "recordsize,volblocksize",
            "tank/new/data",
            "tank/new/wal",
        )
        assert "tank/new/data\t16384" in got and "tank/new/wal\t16384" in got
        assert lab("blkid", "-o", "value", "-s", "TYPE", "/dev/zvol/tank/new/wal").strip() == "ext4"
    finally:
        lab("zfs", "destroy", "-r", "tank/new")


@pytest.mark.long
def test_the_copy_really_changes_the_records(lab: Lab, tmp_path: Path) -> None:
    """The commands for what is already written, as they are printed, on a file of two records."""
    lab.shell(
        "dd if=/dev/urandom of=/pg/table bs=128k count=2 2>/dev/null; chown 33:33 /pg/table; "
        "echo log > /pg/wal/segment; zpool sync tank"
    )
    assert lab("stat", "-c", "%o %u", "/pg/table").strip() == "131072 33"
    was = lab("sha256sum", "/pg/table").split()[0]
    plan = lab.plan({"data.recordsize": "16K"}, {"data": "tank/pg"})
    perform(plan, lab.host, tmp_path / "undo.json", None, lambda _: None)
    # The change alone leaves the file as it is, as the plan says.
    assert lab("stat", "-c", "%o", "/pg/table").strip() == "131072"
    assert "keeps its record size for good" in " ".join(plan.targets[0].rewrite)
    lab.shell("\n".join(plan.targets[0].commands))
    assert lab("stat", "-c", "%o %u", "/pg/table").strip() == "16384 33"
    assert lab("sha256sum", "/pg/table").split()[0] == was
    assert lab("cat", "/pg/wal/segment") == "log\n"
    # What is mounted below was not copied into the new dataset as well.
    lab("zfs", "unmount", "tank/pg/wal")
    assert lab("ls", "-A", "/pg/wal") == ""
    lab("zfs", "mount", "tank/pg/wal")
    mounts = lab("zfs", "list", "-H", "-o", "name,mountpoint", "-r", "tank/pg", "tank/pg.old").splitlines()
    assert sorted(mounts) == [
        "tank/pg\t/pg", "tank/pg.old\t/pg.old", "tank/pg/dump\t/pg/dump", "tank/pg/wal\t/pg/wal",
    ]  # fmt: skip


@pytest.mark.long
def test_a_copy_is_encrypted_as_what_it_copies(lab: Lab, tmp_path: Path) -> None:
    lab.shell(
        "head -c 32 /dev/urandom > /tmp/key; zfs create -o encryption=aes-256-gcm -o keyformat=raw "
        "-o keylocation=file:///tmp/key -o mountpoint=/secret tank/secret; zfs create tank/secret/below; "
        "dd if=/dev/urandom of=/secret/table bs=128k count=2 2>/dev/null; echo log > /secret/below/log"
    )
    was = lab("sha256sum", "/secret/table").split()[0]
    plan = lab.plan({"data.recordsize": "16K"}, {"data": "tank/secret"})
    perform(plan, lab.host, tmp_path / "undo.json", None, lambda _: None)
    assert "so copy these too: tank/secret/below" in " ".join(plan.targets[0].rewrite)
    lab.shell("\n".join(plan.targets[0].commands))
    assert lab("stat", "-c", "%o", "/secret/table").strip() == "16384"
    assert lab("sha256sum", "/secret/table").split()[0] == was
    columns = ("zfs", "get", "-Hp", "-o", "value", "encryption,encryptionroot,mountpoint")
    assert lab(*columns, "tank/secret").split() == ["aes-256-gcm", "tank/secret", "/secret"]
    # What ZFS does not move from under its key is still there, with all that it holds, and stays there.
    assert lab("zfs", "list", "-H", "-o", "name", "-r", "tank/secret.old").split() == [
        "tank/secret.old", "tank/secret.old/below",
    ]  # fmt: skip
    assert lab("cat", "/secret.old/below/log") == "log\n"
    assert lab.guest.run(["zfs", "destroy", "tank/secret.old"], timeout=300).returncode != 0
