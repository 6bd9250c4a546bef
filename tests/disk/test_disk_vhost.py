"""The server of a guest's kernel, under sanitizers: what it keeps, and guests that talk nonsense."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import vhost_client as vhost
from disk_started import SIZE, Start
from nbd_client import Client
from vhost_client import GUEST, MEMORY, NEXT, WRITES, Driver

from ztune.disk import server
from ztune.study.profile import FlashProfile, HddProfile

Connect = Callable[..., Driver]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Driver] = []

    def begin(disk: server.DiskServer, **options: int) -> Driver:
        made.append(Driver(server.guest_socket(disk.socket), **options))
        return made[-1]

    yield begin
    for driver in made:
        driver.close()


@pytest.mark.parametrize("indirect", [False, True])
def test_what_was_written_is_read(
    start: Start, connect: Connect, profile: FlashProfile | HddProfile, indirect: bool
) -> None:
    dice = random.Random(7)
    disk = start(profile)
    guest = connect(disk)
    assert guest.size == SIZE
    mirror = bytearray(SIZE)
    for _ in range(300):
        sectors = dice.choice([1, 3, 8, 32])
        sector = dice.randrange(SIZE // 512 - 400)
        at, what = sector * 512, dice.random()
        if what < 0.5:
            data = dice.randbytes(sectors * 512)
            guest.do(vhost.OUT, sector, data, indirect=indirect)
            mirror[at : at + len(data)] = data
        elif what < 0.9:
            found = guest.do(vhost.IN, sector, length=sectors * 512, indirect=indirect)
            assert found == mirror[at : at + sectors * 512]
        elif what < 0.95:
            kind = vhost.DISCARD if what < 0.93 else vhost.ZEROES
            guest.do(kind, data=struct.pack("<QII", sector, sectors, 0), indirect=indirect)
            mirror[at : at + sectors * 512] = bytes(sectors * 512)
        else:
            guest.do(vhost.FLUSH, indirect=indirect)
    disk.stop()
    assert disk.backing.read_bytes() == mirror


def test_requests_overlap(start: Start, connect: Connect, profile: FlashProfile | HddProfile) -> None:
    guest = connect(start(profile))
    for turn in range(20):
        writes = [guest.send(vhost.OUT, i * 16, bytes([i + turn]) * 8192) for i in range(16)]
        assert [guest.wait(slot)[0] for slot in reversed(writes)] == [vhost.OK] * 16
        reads = [guest.send(vhost.IN, i * 16, length=8192) for i in range(16)]
        assert [guest.wait(slot)[1][0] for slot in reads] == [i + turn for i in range(16)]


def test_only_what_was_flushed_survives_a_guest_that_is_gone(
    start: Start, connect: Connect, profile: FlashProfile | HddProfile
) -> None:
    disk = start(profile, lazy=True)
    guest = connect(disk)
    guest.do(vhost.OUT, 0, b"a" * 4096)
    guest.do(vhost.FLUSH)
    guest.do(vhost.OUT, 16, b"b" * 4096)
    guest.wire.close()
    while disk.stats()["cache"]["cuts"] == 0:
        time.sleep(0.01)
    assert disk.stats()["cache"]["cut_bytes"] == 4096
    again = connect(disk)
    assert again.do(vhost.IN, 0, length=4096) == b"a" * 4096
    assert again.do(vhost.IN, 16, length=4096) == bytes(4096)


def test_word_of_a_guest_that_was_dropped_is_not_heard(
    start: Start, connect: Connect, flash: FlashProfile
) -> None:
    # The guest has the eventfd, too, so that it stays watched after the disk has closed its own.
    disk = start(flash)
    guest = connect(disk)
    guest.do(vhost.OUT, 0, b"a" * 512)
    disk.cut()
    os.eventfd_write(guest.kick, 1)
    assert disk.stats()["cache"]["cuts"] == 1
    assert connect(disk).do(vhost.IN, 0, length=512) == bytes(512)


def test_a_disk_is_in_one_guest(start: Start, connect: Connect, flash: FlashProfile) -> None:
    disk = start(flash)
    guest = connect(disk)
    with pytest.raises(ConnectionError):
        connect(disk)
    guest.do(vhost.OUT, 0, b"a" * 512)


def test_requests_that_make_no_sense_are_refused(start: Start, connect: Connect, flash: FlashProfile) -> None:
    guest = connect(start(flash))
    last = SIZE // 512
    for kind, sector, data, length, status in (
        (vhost.IN, last, b"", 512, vhost.IOERR),
        (vhost.IN, last - 1, b"", 1024, vhost.IOERR),
        (vhost.IN, 2**63, b"", 512, vhost.IOERR),
        (vhost.IN, 0, b"", 100, vhost.IOERR),
        (vhost.IN, 0, b"", 0, vhost.IOERR),
        (vhost.OUT, last, b"a" * 512, 0, vhost.IOERR),
        (vhost.OUT, 0, b"", 0, vhost.IOERR),
        (vhost.DISCARD, 0, struct.pack("<QII", last, 1, 0), 0, vhost.IOERR),
        (vhost.DISCARD, 0, b"short", 0, vhost.UNSUPP),
        (vhost.ID, 0, b"", 20, vhost.UNSUPP),
        (77, 0, b"", 0, vhost.UNSUPP),
    ):
        assert guest.wait(guest.send(kind, sector, data, length))[0] == status, (kind, sector, length)
    assert guest.do(vhost.IN, last - 1, length=512) == bytes(512)


def _descriptor(guest: Driver, at: int, address: int, length: int, flags: int, next_: int) -> None:
    struct.pack_into("<QIHH", guest.memory, vhost.DESC + at * 16, address, length, flags, next_)


def _outside(guest: Driver) -> None:
    guest.put([(GUEST + MEMORY - 8, 16, 0), (GUEST, 1, WRITES)], 0)


def _wraps(guest: Driver) -> None:
    guest.put([(2**64 - 8, 16, 0), (GUEST, 1, WRITES)], 0)


def _circle(guest: Driver) -> None:
    _descriptor(guest, 0, GUEST + vhost.DATA, 16, NEXT, 1)
    _descriptor(guest, 1, GUEST + vhost.DATA, 16, NEXT, 0)
    guest.offer(0)


def _no_such_descriptor(guest: Driver) -> None:
    guest.offer(guest.number)


def _no_status(guest: Driver) -> None:
    guest.put([(GUEST + vhost.DATA, 16, 0)], 0)


def _answer_first(guest: Driver) -> None:
    guest.put([(GUEST + vhost.DATA, 1, WRITES), (GUEST + vhost.DATA, 16, 0)], 0)


def _table_in_table(guest: Driver) -> None:
    guest.put([(GUEST + vhost.TABLES, 16, vhost.INDIRECT)], 0, indirect=True)


def _too_many(guest: Driver) -> None:
    """One request over and over, as many as an index can say."""
    struct.pack_into("<IIQ", guest.memory, vhost.DATA, vhost.IN, 0, 0)
    guest.put([(GUEST + vhost.DATA, 16, 0), (GUEST + vhost.DATA + 512, 513, WRITES)], 0)
    struct.pack_into("<H", guest.memory, vhost.AVAIL + 2, 60_000)
    os.eventfd_write(guest.kick, 1)


def _no_memory(guest: Driver) -> None:
    guest.message(5, struct.pack("<II", 1, 0))


def _many_regions(guest: Driver) -> None:
    guest.message(5, struct.pack("<II", 9, 0) + bytes(8 * 32))


def _no_size(guest: Driver) -> None:
    guest.table(0)


def _kicks_by_a_file(guest: Driver) -> None:
    guest.message(12, struct.pack("<Q", 0), guest.memory_file)


def _more_than_there_is(guest: Driver) -> None:
    guest.table(MEMORY * 2)


def _ring_outside(guest: Driver) -> None:
    guest.message(9, struct.pack("<IIQQQQ", 0, 0, vhost.USER + MEMORY - 16, vhost.USER, vhost.USER, 0))


def _odd_number(guest: Driver) -> None:
    guest.message(8, struct.pack("<II", 0, 65))


def _long_config(guest: Driver) -> None:
    guest.message(24, struct.pack("<III", 0, 100_000, 0))


def _long_message(guest: Driver) -> None:
    guest.message(3, bytes(4096))


def _unknown(guest: Driver) -> None:
    guest.message(99)


def _half(guest: Driver) -> None:
    guest.wire.sendall(b"\3\0")
    guest.wire.shutdown(1)


@pytest.mark.parametrize(
    "nonsense",
    [
        *(_outside, _wraps, _circle, _no_such_descriptor, _no_status, _answer_first, _table_in_table),
        *(
            _too_many,
            _no_memory,
            _many_regions,
            _no_size,
            _more_than_there_is,
            _ring_outside,
            _odd_number,
            _long_config,
        ),
        *(_long_message, _unknown, _half),
    ],
)
def test_a_guest_that_talks_nonsense_is_let_go(
    start: Start, connect: Connect, hdd: HddProfile, nonsense: Callable[[Driver], None]
) -> None:
    disk = start(hdd, dilation=20)
    guest = connect(disk)
    guest.do(vhost.OUT, 8, b"k" * 512)
    guest.do(vhost.FLUSH)
    nonsense(guest)
    assert guest.gone()
    with Client(disk.socket) as client:
        assert client.read(8 * 512, 512) == b"k" * 512
    assert connect(disk).do(vhost.IN, 8, length=512) == b"k" * 512


def test_a_guest_that_does_not_hear_waits_alone(start: Start, connect: Connect, flash: FlashProfile) -> None:
    disk = start(flash)
    guest = connect(disk)
    heard, called = os.pipe()
    os.set_blocking(called, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(called, bytes(4096))
    os.set_blocking(called, True)
    guest.message(13, struct.pack("<Q", 0), called)
    for _ in range(3):
        guest.send(vhost.IN, 0, length=512)
    while disk.stats()["reads"] < 3:
        time.sleep(0.001)
    with Client(disk.socket) as client:
        assert client.read(0, 512) == bytes(512)
    os.close(heard)
    os.close(called)


def test_a_request_that_is_changed_while_it_is_under_way(
    start: Start, connect: Connect, hdd: HddProfile
) -> None:
    disk = start(hdd, dilation=100_000)  # until it is told to hurry
    guest = connect(disk)
    slot = guest.send(vhost.IN, SIZE // 1024, length=4096)
    while disk.stats()["reads"] == 0:
        time.sleep(0.001)
    _descriptor(guest, slot * 4 + 1, GUEST + MEMORY, 4096, WRITES | NEXT, slot * 4 + 2)
    disk.hurry()
    assert guest.gone()
    assert connect(disk).do(vhost.IN, 0, length=512) == bytes(512)


def test_memory_that_is_taken_away_while_a_request_is_under_way(
    start: Start, connect: Connect, hdd: HddProfile
) -> None:
    disk = start(hdd, dilation=100_000)  # until it is told to hurry
    guest = connect(disk)
    guest.send(vhost.IN, SIZE // 1024, length=4096)
    while disk.stats()["reads"] == 0:
        time.sleep(0.001)
    guest.table()
    assert guest.ask(1)
    disk.hurry()
    while disk.stats()["reply_late_us"] == 0:
        time.sleep(0.001)
    assert struct.unpack_from("<H", guest.memory, vhost.USED + 2)[0] == 0, "there is no ring to answer in"
    assert guest.ask(1)


def test_the_sockets_are_gone_with_the_disk(start: Start, flash: FlashProfile, tmp_path: Path) -> None:
    disk = start(flash)
    assert server.guest_socket(disk.socket).is_socket()
    disk.stop()
    assert not server.guest_socket(disk.socket).exists()
