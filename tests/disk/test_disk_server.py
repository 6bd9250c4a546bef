"""The server, under sanitizers: the protocol, what survives, what it counts, bad clients."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from disk_started import SIZE, Start
from nbd_client import FUA, READ, TRIM, WRITE, Client, NbdError

from ztune import native
from ztune.disk import server
from ztune.errors import InputError, MissingError, ZtuneError
from ztune.study.profile import FlashProfile, HddProfile

ENOSPC, EINVAL, EIO = 28, 22, 5


def on_medium(disk: server.DiskServer, offset: int, length: int) -> bytes:
    with disk.backing.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def test_what_was_written_is_read(start: Start, profile: FlashProfile | HddProfile) -> None:
    dice = random.Random(5)
    disk = start(profile)
    mirror = bytearray(SIZE)
    with Client(disk.socket) as client:
        assert client.size == SIZE
        assert bool(client.flags & 16) == profile.rotational, "the rotational flag of the protocol"
        for _ in range(400):
            offset, length = dice.randrange(SIZE - 300_000), dice.choice([512, 4096, 7, 65536, 262144])
            what = dice.random()
            if what < 0.5:
                data = dice.randbytes(length)
                client.write(offset, data, fua=what < 0.05)
                mirror[offset : offset + length] = data
            elif what < 0.9:
                assert client.read(offset, length) == mirror[offset : offset + length]
            elif what < 0.95:
                (client.trim if what < 0.93 else client.zero)(offset, length)
                mirror[offset : offset + length] = bytes(length)
            else:
                client.flush()
    disk.stop()
    assert disk.backing.read_bytes() == mirror, "an orderly end writes everything to the medium"


def test_requests_overlap(start: Start, profile: FlashProfile | HddProfile) -> None:
    with Client(start(profile).socket) as client:
        writes = [client.send(WRITE, i * 8192, data=bytes([i]) * 8192) for i in range(200)]
        for cookie in reversed(writes):
            client.wait(cookie)
        reads = [client.send(READ, i * 8192, 8192) for i in range(200)]
        for i, cookie in reversed(list(enumerate(reads))):
            assert client.wait(cookie) == bytes([i]) * 8192


def test_a_disk_that_is_told_to_hurry_takes_no_time_and_keeps_all(
    start: Start, profile: FlashProfile | HddProfile
) -> None:
    disk = start(profile, dilation=100_000)  # a flush takes seconds, of flash, and minutes, of a hard disk
    with Client(disk.socket) as client:
        under_way = client.send(READ, SIZE // 2, 8192)
        disk.hurry()
        assert client.wait(under_way) == bytes(8192)
        began = time.monotonic()
        for i in range(50):
            client.write(i * 100_000, b"b" * 8192)
            client.flush()
        assert time.monotonic() - began < 50 * 2.5, "as the profile has it each takes 5 s and longer"
        assert client.read(0, 8192) == b"b" * 8192
    disk.stop()
    assert on_medium(disk, 4_900_000, 8192) == b"b" * 8192


@pytest.mark.parametrize("how", ["cut", "kill", "dropped"])
def test_only_what_was_flushed_survives_a_power_cut(
    start: Start, profile: FlashProfile | HddProfile, how: str
) -> None:
    disk = start(profile, lazy=True)
    client = Client(disk.socket)
    client.write(0, b"a" * 4096)
    client.flush()
    client.write(8192, b"b" * 4096)
    client.write(16384, b"c" * 4096, fua=True)
    client.write(0, b"d" * 4096)
    client.write(1 << 20, b"e" * 4096)
    assert client.read(0, 4096) == b"d" * 4096, "the cache is seen"
    if how == "cut":
        disk.cut()
        with pytest.raises(ConnectionError):
            client.receive(1)
    elif how == "dropped":
        client.drop()
        while disk.stats()["cache"]["cuts"] == 0:
            time.sleep(0.01)
    else:
        disk.kill()
    assert on_medium(disk, 0, 4096) == b"a" * 4096
    assert on_medium(disk, 16384, 4096) == b"c" * 4096, "the FUA bit keeps it"
    assert on_medium(disk, 1 << 20, 4096) == bytes(4096)
    if how != "kill":
        assert disk.stats()["cache"] == {"size": 16 << 20, "bytes": 0, "cuts": 1, "cut_bytes": 8192}
        with Client(disk.socket) as again:
            assert again.read(0, 4096) == b"a" * 4096
    client.drop()


def test_without_a_cache_nothing_is_lost(start: Start, profile: FlashProfile | HddProfile) -> None:
    disk = start(profile, cache=False)
    client = Client(disk.socket)
    client.write(4096, b"x" * 4096)
    disk.kill()
    assert on_medium(disk, 4096, 4096) == b"x" * 4096
    client.drop()


def test_a_goodbye_is_no_power_cut(start: Start, profile: FlashProfile | HddProfile) -> None:
    disk = start(profile, lazy=True)
    with Client(disk.socket) as client:
        client.write(0, b"z" * 4096)
    with Client(disk.socket) as client:
        assert client.read(0, 4096) == b"z" * 4096
    assert disk.stats()["cache"]["cuts"] == 0


def test_the_disk_ends_with_whoever_started_it(checked: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from ztune.disk import server; "
        "from ztune.study import profiles; t = Path(sys.argv[1]); "
        "d = server.start(profiles.find('nvme'), 1 << 26, t / 'b', t / 's'); print(d.pid, flush=True); "
        "time.sleep(60)"
    )
    env = {**os.environ, "ZTUNE_DISK": str(checked / "ztune-disk-checked")}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, env=env, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 60
    while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
        if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path("/proc", str(pid)).exists(), "it outlived its owner"


def test_an_error_after_the_acknowledgement_comes_with_the_flush(
    start: Start, profile: FlashProfile | HddProfile, tmp_path: Path
) -> None:
    backing = tmp_path / "short.img"
    with backing.open("wb") as file:
        file.truncate(SIZE)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    disk = start(profile, backing=backing, preexec=limit)
    with Client(disk.socket) as client:
        client.write(0, b"a" * 4096)
        client.flush()
        client.write(8 << 20, b"b" * 4096)
        # Written out in the background: nobody was waiting when it failed.
        deadline = time.monotonic() + 60
        while disk.stats()["errors"] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(NbdError) as caught:
            client.flush()
        assert caught.value.number == EIO
        client.flush()


def test_it_counts_what_it_was_asked(start: Start, profile: FlashProfile | HddProfile) -> None:
    disk = start(profile)
    with Client(disk.socket) as client:
        for i in range(10):
            client.write(i * 65536, b"w" * 4096)
        client.write(1 << 20, b"w" * 8192, fua=True)
        for i in range(7):
            client.read((32 << 20) + i * 65536, 16384)
        client.flush()
        client.trim(0, 4096)
        client.zero(4096, 4096)
    stats = disk.stats()
    wanted = {"reads": 7, "read_bytes": 7 * 16384, "writes": 11, "write_bytes": 10 * 4096 + 8192}
    wanted |= {"flushes": 1, "fua": 1, "trims": 1, "zeroes": 1, "errors": 0}
    assert {key: stats[key] for key in wanted} == wanted
    assert stats["medium"]["reads"] == 7 and stats["medium"]["write_bytes"] == 10 * 4096 + 8192
    assert stats["queue_depth"] == [21]
    assert 0 < stats["working_s"] <= stats["seconds"]
    disk.reset()
    assert disk.stats()["reads"] == 0


@pytest.mark.parametrize(("rw", "flush"), [("randread", 0), ("randwrite", 0), ("write", 4)])
def test_it_counts_what_fio_counts(start: Start, flash: FlashProfile, rw: str, flush: int) -> None:
    fio = shutil.which("fio")
    if fio is None or "nbd" not in subprocess.run([fio, "--enghelp"], capture_output=True, text=True).stdout:
        pytest.skip("no fio with an nbd engine")
    disk = start(flash)
    argv = [fio, "--name=j", "--ioengine=nbd", f"--uri={disk.uri}", f"--rw={rw}", "--bs=8k", "--iodepth=16"]
    argv += ["--size=8m", "--number_ios=600", "--output-format=json", f"--fsync={flush}", "--randrepeat=1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    stats = disk.stats()
    assert job["error"] == 0 and job["read"]["total_ios"] + job["write"]["total_ios"] > 500
    assert stats["reads"] == job["read"]["total_ios"]
    assert stats["read_bytes"] == job["read"]["io_bytes"]
    assert stats["writes"] == job["write"]["total_ios"]
    assert stats["write_bytes"] == job["write"]["io_bytes"]
    assert stats["flushes"] == job["sync"]["total_ios"]
    if flush:
        assert stats["flushes"] >= 500 // flush


@pytest.mark.parametrize(
    ("kind", "offset", "length", "data", "error"),
    [
        (READ, SIZE, 512, b"", EINVAL),
        (READ, SIZE - 512, 1024, b"", EINVAL),
        (READ, (1 << 64) - 512, 1024, b"", EINVAL),
        (READ, 0, 0, b"", EINVAL),
        (READ, 0, 33 << 20, b"", EINVAL),
        (WRITE, SIZE - 512, 0, b"x" * 1024, ENOSPC),
        (TRIM, SIZE - 512, 1024, b"", ENOSPC),
        (7, 0, 512, b"", EINVAL),
        (999, 0, 512, b"", EINVAL),
    ],
)
def test_requests_that_make_no_sense(
    start: Start, flash: FlashProfile, kind: int, offset: int, length: int, data: bytes, error: int
) -> None:
    with Client(start(flash).socket) as client:
        with pytest.raises(NbdError) as caught:
            client.wait(client.send(kind, offset, length, data))
        assert caught.value.number == error
        client.write(0, b"still here", fua=True)
        assert client.read(0, 10) == b"still here"


def test_clients_that_talk_nonsense_do_no_harm(start: Start, flash: FlashProfile) -> None:
    dice = random.Random(9)
    disk = start(flash)
    for i in range(60):
        with contextlib.suppress(OSError):
            if i % 2:
                client = Client(disk.socket)
                client.wire.sendall(struct.pack(">I", 0x25609513) * (i % 4) + dice.randbytes(200))
            else:
                client = Client(disk.socket, handshake=False)
                client.wire.sendall(dice.randbytes(300))
            client.drop()
    with Client(disk.socket, handshake=False) as client:
        client.receive(18)
        client.wire.sendall(struct.pack(">I", 3))
        assert client.option(8)[0][0] == 0x80000001, "structured replies are not spoken"
        assert client.option(3) == [(2, bytes(4)), (1, b"")], "one export without a name"
        assert client.option(7, b"\xff" * 6)[0][0] == 0x80000003
        assert client.go()[0] == SIZE
    with Client(disk.socket) as client:
        # Its payload would be 64 MiB: refused at once, not swallowed.
        client.wire.sendall(struct.pack(">IHHQQI", 0x25609513, FUA, WRITE, 1, 0, 64 << 20))
        with pytest.raises(ConnectionError):
            client.receive(1)
        client.wire = socket.socket()  # nobody to say goodbye to
        client.wire = Client(disk.socket).wire
    assert disk.alive()


def test_somebody_who_asks_and_does_not_listen(start: Start, flash: FlashProfile) -> None:
    disk = start(flash)
    client = Client(disk.socket)
    client.wire.settimeout(2)
    with contextlib.suppress(TimeoutError):
        for _ in range(2000):
            client.send(READ, 0, 1 << 20)
    with Client(disk.socket) as other:
        assert other.read(0, 4) == bytes(4), "others are served"
    client.drop()
    assert disk.alive()


def test_starting_says_what_is_wrong(start: Start, flash: FlashProfile, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than 0, not -1"):
        start(flash, dilation=-1)
    with pytest.raises(InputError, match=r"at most \d+ bytes"):
        server.start(flash, SIZE, tmp_path / "b", tmp_path / ("s" * 120))
    (tmp_path / "odd.img").write_bytes(b"x" * 100)
    with pytest.raises(ZtuneError, match=r"odd.img has 100 bytes, not the disk's 67108864"):
        start(flash, backing=tmp_path / "odd.img")
    first = start(flash, backing=tmp_path / "one.img")
    with pytest.raises(ZtuneError, match=r"one\.img is in use by another disk"):
        server.start(flash, SIZE, first.backing, tmp_path / "other", program=native.DISK.find())
    with pytest.raises(InputError, match="exists already"):
        server.start(flash, SIZE, tmp_path / "two.img", first.socket)
    with pytest.raises(MissingError, match="can't be run"):
        server.start(flash, SIZE, tmp_path / "b", tmp_path / "s", program=tmp_path / "none")
    with pytest.raises(InputError, match="at most 256 channels, not 500"):
        start(flash.model_copy(update={"channels": 500}))


def test_a_server_that_is_gone_is_said(start: Start, flash: FlashProfile) -> None:
    disk = start(flash)
    disk.kill()
    assert not disk.alive()
    with pytest.raises(ZtuneError, match="does not answer"):
        disk.stats()
