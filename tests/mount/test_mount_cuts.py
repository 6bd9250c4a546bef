"""What of files' content is there after a power cut: all that was synced, in the order of what was done."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mount_ground import SMALL, Mounted, spec
from mount_libc import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, fallocate

pytestmark = pytest.mark.timeout(240)

OLD, NEW = b"o" * 65536, b"N" * 20000


def undisturbed(**properties: str) -> dict[str, Any]:
    """Return a layout whose transaction groups wait for a sync: what is between two is in the log alone."""
    table = spec(tunables={"zfs_txg_timeout": 300})
    for dataset in table["datasets"]:
        dataset["properties"].update(properties)
    return table


def after_a_cut(mounted: Mounted) -> dict[str, bytes]:
    """Cut the power; return what the files on the dataset with small records hold then."""
    mounted.kill()
    mounted.start()
    return {path.name: path.read_bytes() for path in mounted.places[SMALL].iterdir()}


def shorten(path: Path) -> None:
    os.truncate(path, 4096)


def punch(path: Path) -> None:
    _allocate(path, PUNCH_HOLE | KEEP_SIZE)


def zero(path: Path) -> None:
    _allocate(path, ZERO_RANGE)


def _allocate(path: Path, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    fallocate(fd, mode, 0, 32768)
    os.close(fd)


CHANGES: list[Callable[[Path], None]] = [shorten, punch, zero]


def test_a_synchronous_write_is_replayed_behind_what_came_before(own_mount: Callable[..., Mounted]) -> None:
    mounted = own_mount(undisturbed())
    top = mounted.places[SMALL]
    paths = {change: top / change.__name__ for change in CHANGES}
    for path in paths.values():
        path.write_bytes(OLD)
    mounted.sync()
    for change, path in paths.items():
        fd = os.open(path, os.O_WRONLY | os.O_DSYNC)
        change(path)
        os.pwrite(fd, NEW, 0)
        os.close(fd)
    written = {path.name: path.read_bytes() for path in paths.values()}
    assert all(data.startswith(NEW) for data in written.values())
    assert after_a_cut(mounted) == written


@pytest.mark.parametrize(("direct", "kept"), [("disabled", 64), ("standard", 0)])
def test_of_direct_io_with_a_log_device_is_lost_what_the_kernel_loses(
    own_mount: Callable[..., Mounted], direct: str, kept: int
) -> None:
    """As in tests/lab/test_lab_direct_cut.py: a sync does not flush the disks that such writes went to."""
    table = undisturbed(recordsize="16K", compression="off", direct=direct)
    log = {"class": "log", "kind": "stripe", "disks": [{"profile": "flash", "size": 1 << 30}]}
    table["pools"][0]["vdevs"].append(log)
    mounted = own_mount(table, cache="lazy")
    fd = os.open(mounted.places[SMALL] / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    with mmap.mmap(-1, 16384) as page:
        for letter in (b"o", b"N"):
            page[:] = letter * 16384
            for place in range(64):
                os.pwrite(fd, page, place * 16384)
                os.fsync(fd)
            if letter == b"o":
                mounted.sync()
    os.close(fd)
    assert after_a_cut(mounted)["file"].count(b"N") == kept * 16384


class Changed:
    """A file that is changed at random, with what it has held since it was synced last."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.random = path, random.Random(seed)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.synchronous = os.open(path, os.O_RDWR | os.O_DSYNC)
        self.direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.fsync(self.fd)
        self.states = [b""]

    def step(self) -> None:
        r, was = self.random, self.states[-1]
        at, size = r.randrange(400_000), r.choice([1, 100, 4096, 8192, 40_000, 140_000])
        writes, rare = ["write", "write direct"] * 4, ["punch", "zero", "name"]
        match r.choice([*writes, *["write synced", "sync", "cut"] * 2, *rare]):
            case "write" | "write synced" as how:
                data = r.randbytes(size)
                self._becomes(was[:at].ljust(at, b"\0") + data + was[at + size :])
                os.pwrite(self.synchronous if how == "write synced" else self.fd, data, at)
                if how == "write synced":
                    self._synced()
            case "write direct":
                at, size = at // 4096 * 4096, -(-size // 4096) * 4096
                with mmap.mmap(-1, size) as page:  # as O_DIRECT asks for memory
                    page[:] = r.randbytes(size)
                    self._becomes(was[:at].ljust(at, b"\0") + page[:] + was[at + size :])
                    os.pwrite(self.direct, page, at)
            case "sync":
                os.fsync(self.fd)
                self._synced()
            case "cut":
                self._before_less()
                at = r.choice([0, at])
                self._becomes(was[:at].ljust(at, b"\0"))
                os.ftruncate(self.fd, at)
            case "punch" | "zero" as how:
                self._before_less()
                end = min(at + size, len(was)) if how == "punch" else at + size
                self._becomes(
                    was[:at].ljust(min(at, end), b"\0") + bytes(max(end - at, 0)) + was[end:][: len(was)]
                )
                fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE if how == "punch" else ZERO_RANGE, at, size)
            case _:
                os.setxattr(self.path, "user.word", r.randbytes(8))

    def _before_less(self) -> None:
        """What OpenZFS loses otherwise is in docs/durability.md, "What was found in OpenZFS"."""
        os.fsync(self.fd)
        self._synced()

    def _becomes(self, state: bytes) -> None:
        self.states.append(state)

    def _synced(self) -> None:
        del self.states[:-1]

    def close(self) -> None:
        for fd in (self.fd, self.synchronous, self.direct):
            os.close(fd)

    def lost(self) -> str:
        """Return what is there that it has not held since; nothing if all is well."""
        got = self.path.read_bytes()
        if got in self.states:
            return ""
        sizes = [len(state) for state in self.states]
        # A write of many records, under way or not synced, may be there in part.
        if not any(
            min(pair) <= len(got) <= max(pair) for pair in zip(sizes, sizes[1:] or sizes, strict=False)
        ):
            return f"{self.path.name} has {len(got)} bytes, which is none of {sizes}"
        # Records of the log may hold what was written after them: each byte counts.
        for at in range(0, len(got), 4096):
            part = got[at : at + 4096]
            there = [state[at : at + 4096] for state in self.states]
            for n, byte in enumerate(part) if part not in there else ():
                if not any(n < len(one) and one[n] == byte for one in there):
                    return f"{self.path.name} holds {byte:#x} at byte {at + n}, which it has not held since"
        return ""


@pytest.mark.timeout(1200)  # with --long
def test_no_synced_byte_is_lost_in_a_cut(
    own_mount: Callable[..., Mounted], request: pytest.FixtureRequest
) -> None:
    """Each file is changed by a thread until the power is cut; a byte is the last synced or a later one."""
    for seed in range(200 if request.config.getoption("--long") else 12):
        r = random.Random(seed)
        table = spec()
        table["datasets"][0]["properties"] = {
            "recordsize": r.choice(["4K", "8K", "128K", "1M"]),
            "compression": r.choice(["off", "lz4"]),
            "logbias": r.choice(["latency", "throughput"]),
            "sync": r.choice(["standard", "standard", "always"]),
            "direct": r.choice(["standard", "standard", "always"]),
        }
        if r.random() < 0.4:
            # Else it would lose what the kernel loses: tests/lab/test_lab_direct_cut.py.
            table["datasets"][0]["properties"]["direct"] = "disabled"
            log = {"class": "log", "kind": "stripe", "disks": [{"profile": "flash", "size": 1 << 30}]}
            table["pools"][0]["vdevs"].append(log)
        how = {"disks": r.choice(["instant", "profile"]), "cache": r.choice(["volatile", "none", "lazy"])}
        mounted = own_mount(table, **how)
        files = [Changed(mounted.places[SMALL] / f"file{n}", seed * 10 + n) for n in range(3)]
        left = itertools.count(r.randrange(20, 400), -1)

        def change(file: Changed, left: Iterator[int] = left, mounted: Mounted = mounted) -> None:
            with contextlib.suppress(OSError):
                while True:
                    if next(left) == 0:
                        mounted.mount.cut()
                    file.step()

        with ThreadPoolExecutor(len(files)) as threads:
            for done in [threads.submit(change, file) for file in files]:
                done.result()
        for file in files:
            file.close()
        mounted.kill()
        mounted.start()
        lost = [what for file in files if (what := file.lost())]
        assert not lost, (seed, table["datasets"][0]["properties"], how)
        mounted.stop()
