"""What the kernel and the tools of OpenZFS 2.3.2 and 2.1.11 really said, read into known numbers.

The files in fixtures/VERSION were taken in a guest, on a pool of a mirror, a log and a cache device, all at
nearly the same time; ``pool-stats.b64`` is the packed list from /dev/zfs, deflated.
"""

from __future__ import annotations

import base64
import json
import platform
import struct
import zlib
from pathlib import Path

import pytest

from ztune.errors import ZtuneError
from ztune.onhost.host.process import parse_io
from ztune.onhost.probes import bpf, calls, kstat, nvlist, perf, procfs, space, vdevs, zdb
from ztune.onhost.probes.syscall_names import call_name

FIXTURES = Path(__file__).with_name("fixtures")
VERSIONS = ("2.1", "2.3")


def text(version: str, name: str) -> str:
    return (FIXTURES / version / name).read_text(encoding="utf-8")


def packed(version: str) -> bytes:
    return zlib.decompress(base64.b64decode(text(version, "pool-stats.b64")))


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.3", [(83, 297, 1105920, 3792896), (32, 294, 761856, 3792896), (7, 67, 483328, 1933312)]),
        ("2.1", [(75, 283, 1150976, 2822144), (25, 281, 835584, 2822144), (7, 60, 483328, 1462272)]),
    ],
)
def test_every_device_of_a_pool(version: str, known: list[tuple[int, ...]]) -> None:
    leaves = vdevs.leaves(nvlist.unpack(packed(version)))
    assert [leaf.class_ for leaf in leaves] == ["data", "data", "log", "cache"]
    assert [leaf.path for leaf in leaves] == [f"/dev/disk/by-id/ztune-c{i}-part1" for i in range(4)]
    found = [(x.reads, x.writes, x.read_bytes, x.write_bytes) for x in leaves]
    assert found[:3] == known
    assert len({leaf.guid for leaf in leaves}) == 4 and all(leaf.kind == "disk" for leaf in leaves)


def test_they_are_what_zpool_says_of_them() -> None:
    said: dict[str, dict[str, int]] = {}
    for line in text("2.3", "vdev-properties").splitlines():
        name, key, value = line.split("\t")
        said.setdefault(name, {})[key] = int(value)
    for leaf in vdevs.leaves(nvlist.unpack(packed("2.3")))[:3]:
        name = Path(leaf.path).name.removesuffix("-part1")
        assert said[name] == {
            "read_ops": leaf.reads,
            "write_ops": leaf.writes,
            "read_bytes": leaf.read_bytes,
            "write_bytes": leaf.write_bytes,
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_and_times_are_those_of_zpool_iostat(version: str) -> None:
    """The tables of ``zpool iostat -Hp -v -r`` and ``-w``: a block of rows per device, bounds first."""
    leaves = {leaf.path: leaf for leaf in vdevs.leaves(nvlist.unpack(packed(version)))}
    kinds = [
        f"{way}{end}"
        for way in ("sync_read", "sync_write", "async_read", "async_write")
        for end in ("", "_aggregated")
    ]
    times = ("total_read", "total_write", "disk_read", "disk_write")
    blocks = {"r": text(version, "iostat-r"), "w": text(version, "iostat-w")}
    for letter, names in (("r", kinds), ("w", list(times))):
        tables: dict[str, list[list[int]]] = {}
        rows: list[list[int]] = []
        for line in blocks[letter].splitlines():
            words = line.split()
            if len(words) == 1:
                rows = tables.setdefault(words[0], [])
            elif words:
                rows.append([int(word) for word in words])
        for path, leaf in leaves.items():
            rows = tables[Path(path).name.removesuffix("-part1")]
            assert rows
            for column, name in enumerate(names, 1):
                counts = leaf.sizes[name] if letter == "r" else leaf.times[name]
                have = {row[0]: row[column] for row in rows if row[column]}
                bounds = {int(bound): count for bound, count in vdevs.histogram(counts).items()}
                # zpool's bounds of times are upper ones: 2^(i+1) - 1.
                shown = bounds if letter == "r" else {2 * bound - 1: count for bound, count in bounds.items()}
                assert have == shown, (path, name)
    for leaf in leaves.values():
        assert sum(leaf.times["total_write"]) == leaf.writes and sum(leaf.times["total_read"]) == leaf.reads
        assert sum(sum(v) for k, v in leaf.sizes.items() if "write" in k) == leaf.writes


@pytest.mark.parametrize(
    ("version", "hits", "misses", "size", "last", "kept", "commits"),
    [("2.3", 10373, 89, 4501192, 39, 13, 84), ("2.1", 9677, 94, 4585008, 37, 10, 84)],
)
def test_kernel_statistics(
    version: str, hits: int, misses: int, size: int, last: int, kept: int, commits: int
) -> None:
    arc = kstat.parse_named(text(version, "arcstats"))
    assert (arc["hits"], arc["misses"], arc["size"]) == (hits, misses, size)
    assert ("iohits" in arc) == (version == "2.3")
    assert kstat.pick(text(version, "arcstats"), ("hits", "size")) == {"hits": hits, "size": size}
    rows = kstat.parse_txgs(text(version, "txgs"))
    assert kstat.committed(text(version, "txgs")) == last
    assert [row["state"] for row in rows] == ["C"] * kept + ["O"]
    assert kstat.parse_named(text(version, "zil"))["zil_commit_count"] == commits
    objset = kstat.parse_named(text(version, "objset"))
    assert kstat.dataset_name(text(version, "objset")) == "zt/a b"
    assert (objset["writes"], objset["nwritten"], objset["nread"]) == (40, 327680, 327680)
    # Before 2.2 a dataset has no part of the intent log of its own.
    assert ("zil_commit_count" in objset) == (version == "2.3")


def test_a_transaction_group_s_row() -> None:
    row = kstat.parse_txgs(text("2.3", "txgs"))[0]
    assert (row["txg"], row["nwritten"], row["writes"], row["stime"]) == (27, 1966080, 102, 288504363)


def test_where_objset_statistics_are(tmp_path: Path) -> None:
    (tmp_path / "zt").mkdir()
    path = tmp_path / "zt/objset-0x94"
    path.write_text(text("2.3", "objset"))
    (tmp_path / "zt/objset-0x1").write_text("")
    assert kstat.objset_files(["zt"], ["zt/a b", "zt/c"], tmp_path) == {"zt/a b": path}
    assert kstat.read("absent", tmp_path) == {} and kstat.read_text("absent", tmp_path) == ""


@pytest.mark.parametrize(
    ("version", "allocated", "normal", "blocks"),
    [("2.3", 999424, 1085440, 123), ("2.1", 1024000, 999424, 125)],
)
def test_blocks_as_zdb_counts_them(version: str, allocated: int, normal: int, blocks: int) -> None:
    found = zdb.parse_blocks(text(version, "zdb"))
    assert (found["allocated"], found["classes"]["normal"], found["blocks"]) == (allocated, normal, blocks)
    assert found["types"]["ZFS plain file"] == {
        "blocks": 21, "logical": 458752, "physical": 331776, "allocated": 335872,
    }  # fmt: skip
    # Nothing counts twice: the kinds make up the sum.
    assert sum(kind["allocated"] for kind in found["types"].values()) == allocated
    assert found["leaked"] is False
    with pytest.raises(ZtuneError, match="no sum of blocks"):
        zdb.parse_blocks(text(version, "zdb")[:120])


def test_space_of_datasets_and_pool() -> None:
    datasets = space.parse_datasets(text("2.3", "zfs-get"))
    assert datasets["zt/a b"]["usedbydataset"] == 434176 and datasets["zt"]["refcompressratio"] == 1.0
    assert "volblocksize" not in datasets["zt"]
    assert space.parse_pools(text("2.3", "zpool-list")) == {
        "zt": {"size": 251658240, "allocated": 987136, "free": 250671104, "fragmentation": 9}
    }
    # What hides behind "-" is left out, and cut lines are no rows.
    assert space.parse_pools("zt\t1\t2\t-\t-\ncut\t1") == {"zt": {"size": 1, "allocated": 2}}


def test_proc() -> None:
    disk = procfs.parse_diskstats(text("2.3", "diskstats"))[8, 0]
    assert (disk.reads, disk.read_bytes, disk.writes, disk.write_bytes) == (
        368,
        15773 * 512,
        810,
        18467 * 512,
    )
    assert (disk.flushes, disk.flush_ms, disk.queue_ms) == (48, 309, 5399)
    host = procfs.parse_stat(text("2.3", "proc-stat"))
    assert (host.user_s, host.idle_s, host.context_switches, host.forks) == (9.75, 72.74, 38138, 335)
    stat = procfs.parse_pid_stat(text("2.3", "pid-stat"))
    assert (stat.pid, stat.parent, stat.name, stat.started) == (335, 117, "sleep", 8726)
    assert (stat.user_s, stat.system_s) == (0.15, 0.07)
    odd = text("2.3", "pid-stat").replace("(sleep)", "(odd ) (1 2)")
    assert procfs.parse_pid_stat(odd).name == "odd ) (1 2" and procfs.parse_pid_stat(odd).parent == 117
    assert parse_io(text("2.3", "pid-io"))["rchar"] == 6976
    assert procfs.parse_switches(text("2.3", "pid-status")) == (58, 1)
    assert procfs.parse_schedstat(text("2.3", "pid-schedstat")) == (231436806, 3489398)


def test_older_kernels_say_less() -> None:
    old = "8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n8 1 sda1 1 2 3 4\n"
    disk = procfs.parse_diskstats(old)
    assert disk.keys() == {(8, 0)} and disk[8, 0].flushes is None and disk[8, 0].discards == 0
    with_discards = procfs.parse_diskstats("8 0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n")[8, 0]
    assert (with_discards.discards, with_discards.discard_bytes, with_discards.flushes) == (
        12,
        14 * 512,
        None,
    )
    with pytest.raises(ValueError, match="cut"):
        procfs.parse_pid_stat("1 (x) S 1 2")


def test_a_list_that_is_cut_anywhere_is_refused() -> None:
    data = packed("2.1")
    whole = nvlist.unpack(data)
    assert whole["name"] == "zt" and whole["vdev_tree"]["children"][0]["type"] == "mirror"
    for at in [*range(0, 3000, 97), *range(3000, len(data) - 64, 4999)]:
        try:
            assert nvlist.unpack(data[:at]) == whole  # only what comes after its end was cut
        except ZtuneError as error:
            assert "/dev/zfs" in str(error)


def test_a_list_with_any_byte_wrong_is_read_or_refused() -> None:
    """The module does not lie, but a list of another release may be unlike all that we know."""
    data = packed("2.1")
    for at in [*range(0, 2000, 7), *range(2000, len(data), 1201)]:
        for value in (0x00, 0x7F, 0xFF):
            try:
                found = nvlist.unpack(data[:at] + bytes([value]) + data[at + 1 :])
                vdevs.leaves(found) if isinstance(found.get("vdev_tree"), dict) else None
            except ZtuneError:
                continue


HEAD = b"\x00\x01\x00\x00" + bytes(8)


def entry(kind: int, count: int = 1) -> bytes:
    """A list whose one entry, named a, has no value."""
    return HEAD + struct.pack("<ihhii", 24, 2, 0, count, kind) + b"a\0" + bytes(6) + bytes(4)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "0 bytes, too few"),
        (b"\x01\x01" + bytes(30), "not in the native encoding"),
        (HEAD + struct.pack("<i", 8) + bytes(8), "entry of 8 bytes"),
        (HEAD + struct.pack("<i", -4) + bytes(8), "ends early"),
        (entry(99), "unknown type 99"),
        (entry(16, 1000), "too short"),
    ],
)
def test_what_is_no_list(data: bytes, sentence: str) -> None:
    with pytest.raises(ZtuneError, match=sentence):
        nvlist.unpack(data)


def test_hostile_kernel_statistics() -> None:
    for parse in (kstat.parse_named, kstat.parse_txgs, kstat.parse_assign):
        assert not parse("")
        assert not parse("x y\nz\n\0\0\n1 2 3 4 5")
    assert kstat.parse_named("a\nb\nhits 4 notanumber\nmisses 4 7\n") == {"misses": 7}
    assert kstat.committed("txg birth state\n1 2 O\n") is None
    assert kstat.dataset_name("a\nb\n") == ""
    # A last row that was cut has too few columns.
    whole = text("2.3", "txgs")
    assert len(kstat.parse_txgs(whole[: whole.index("40 ") + 30])) == 13


def test_bpftrace_s_maps() -> None:
    said = (
        '{"type": "attached_probes", "data": {"probes": 3}}\nno JSON\n'
        '{"type": "map", "data": {"@write_calls": {"34": 256}}}\n'
        '{"type": "hist", "data": {"@sizes": {"34": [{"min": 8192, "max": 16383, "count": 256}, '
        '{"min": 16384, "max": 32767, "count": 0}]}}}\n'
        '{"type": "map", "data": {"@one": 7}}\n{"type": "hist", "dat'
    )
    maps = bpf.parse_maps(said)
    assert maps["write_calls"] == {"34": 256} and maps["one"] == {"": 7}
    assert bpf.buckets(maps["sizes"]["34"]) == {"8192": 256}
    assert bpf.buckets([{"max": 0, "count": 2}]) == {"0": 2}


def test_system_calls_by_process() -> None:
    maps = {
        "calls": {"7,1": 3, "8,1": 2, "8,74": 1, "9,-1": 4},
        "ns": {"7,1": 3000, "8,1": 2000, "8,74": 5_000_000},
        "times": {"1": [{"min": 0, "max": 0, "count": 5}]},
        "names": {"7": "postgres", "8": "postgres"},
    }
    number = {"x86_64": "1,74", "aarch64": "64,82"}[platform.machine()].split(",")
    text = json.dumps(maps).replace(',1"', f',{number[0]}"').replace(',74"', f',{number[1]}"')
    text = text.replace('"1": [', f'"{number[0]}": [')
    found = calls.counted_calls(json.loads(text), {8: "postgres: walwriter"})
    assert found["calls"]["write"] == {"calls": 5, "seconds": 5e-06, "times_us": {"0": 5}}
    assert found["by_process"] == {
        "postgres": {"write": {"calls": 3, "seconds": 3e-06}},
        "postgres: walwriter": {
            "write": {"calls": 2, "seconds": 2e-06},
            "fsync": {"calls": 1, "seconds": 0.005},
        },
    }


def test_interrupts_by_source() -> None:
    x86 = """           CPU0       CPU1
 25:          1          2  IO-APIC   6-edge      ACPI:Ged
 30:         10          5  PCI-MSIX-0000:00:02.0   1-edge      nvme0q1
 31:          3          0  PCI-MSIX-0000:00:02.0   2-edge      nvme0q12
 32:          7          0  PCI-MSIX-0000:00:03.0   0-edge      virtio3-req.0
 33:          0          8  PCI-MSIX-0000:00:04.0   0-edge      eth0-TxRx-1
LOC:        100        200   Local timer interrupts
ERR:          4
"""
    assert procfs.parse_interrupts(x86) == {
        "ACPI:Ged": 3,
        "nvme0q": 18,
        "virtio3-req": 7,
        "eth0-TxRx": 8,
        "Local timer interrupts": 300,
        "ERR": 4,
    }
    arm = "        CPU0 CPU1\n 11: 5 6 GICv3 27 Level arch_timer\nIPI0: 1 2 Rescheduling interrupts\n"
    assert procfs.parse_interrupts(arm) == {"arch_timer": 11, "Rescheduling interrupts": 3}
    assert procfs.parse_interrupts("") == {}
    soft = "       CPU0 CPU1\n  HI: 0 0\n BLOCK: 3 4\n"
    assert procfs.parse_softirqs(soft) == {"HI": 0, "BLOCK": 7}


def test_perf_s_summary() -> None:
    said = """ dd (3932), 1052 events, 30.0%

   syscall            calls  errors  total       min       avg       max       stddev
                                     (msec)    (msec)    (msec)    (msec)        (%)
   --------------- --------  ------ -------- --------- --------- ---------     ------
   read                 203      0     0.248     0.001     0.001     0.006      2.91%
   openat                35     16     0.131     0.003     0.004     0.014      9.23%

 sh (3897), 120 events, 3.4%
   read                   3      0     0.008     0.002     0.003     0.004     54.16%
LOST 12 events!
"""
    assert perf.parse_summary(said) == {
        "read": {"calls": 206, "seconds": 0.000256},
        "openat": {"calls": 35, "seconds": 0.000131},
    }
    assert perf.by_process(said, {3897: "sh: waits"}) == {
        "dd": {
            "read": {"calls": 203, "seconds": 0.000248},
            "openat": {"calls": 35, "seconds": 0.000131},
        },
        "sh: waits": {"read": {"calls": 3, "seconds": 0.000008}},
    }
    assert perf.lost(said) == 12 and perf.lost("") == 0


def test_names_of_system_calls() -> None:
    assert [call_name(n, "x86_64") for n in (0, 1, 17, 18, 74, 334, 426)] == [
        *("read", "write", "pread64", "pwrite64", "fsync", "rseq", "io_uring_enter"),
    ]
    assert call_name(63, "aarch64") == "read" and call_name(82, "aarch64") == "fsync"
    assert "99999" in call_name(99999, "x86_64") and "0" in call_name(0, "vax")
