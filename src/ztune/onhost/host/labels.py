"""What lies on a disk, read from its own bytes: ZFS labels, partition tables, file systems, members of RAID.

No program is started: under emulation one costs most of a second, and the host need not have them.
Sources: the OpenZFS on-disk format (vdev_label.c: four labels of 256 KiB, a name/value list 16 KiB into
each), XDR name/value lists (nvpair.c), UEFI 2.10 §5.3 for GPT, the super-block layouts of each file system.
"""

from __future__ import annotations

import os
import struct
import uuid
from dataclasses import dataclass
from typing import Any

LABEL = 256 << 10
_BLANK = 8 << 10  # the first bytes of a vdev: ZFS never writes there
_NVLIST_AT = 16 << 10
_NVLIST_LEN = 112 << 10
ZFS_PARTITION = uuid.UUID("6a898cc3-1dd2-11b2-99a6-080020736631")
RESERVED_PARTITION = uuid.UUID("6a945a3b-1dd2-11b2-99a6-080020736631")
HEAD = 2 << 20
"""A disk's first bytes that must be empty: partition tables, super-blocks, labels of the first partition."""
TAIL = 16 << 20
"""Its last: GPT's copy, ZFS's last labels (behind which is a partition of 8 MiB), RAID members."""
POOL_DESTROYED = 2  # pool_state_t


@dataclass(frozen=True, slots=True)
class PoolLabel:
    """What a ZFS label says of its pool."""

    name: str
    guid: str
    state: int
    """0 active, 1 exported, 2 destroyed, 3 spare, 4 L2ARC."""
    comment: str
    hostname: str


class _Xdr:
    """Just enough of an XDR reader for name/value lists."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def u32(self) -> int:
        (value,) = struct.unpack_from(">I", self.data, self.at)
        self.at += 4
        return int(value)

    def text(self) -> str:
        length = self.u32()
        if length > 4096:
            raise ValueError("too long")
        raw = self.data[self.at : self.at + length]
        self.at += (length + 3) & ~3
        return raw.decode("utf-8", errors="replace")


def parse_nvlist(data: bytes) -> dict[str, Any]:
    """Return the texts and 64-bit numbers at the top of an XDR name/value list; ValueError if it is none."""
    if len(data) < 12 or data[0] != 1:
        raise ValueError("not an XDR name/value list")
    xdr = _Xdr(data)
    xdr.at = 12  # encoding, byte order, reserved; version; flags
    found: dict[str, Any] = {}
    try:
        while True:
            start = xdr.at
            size = xdr.u32()
            xdr.u32()
            if size == 0:
                return found
            name, kind = xdr.text(), xdr.u32()
            count = xdr.u32()
            if kind == 8 and count == 1:  # DATA_TYPE_UINT64
                (found[name],) = struct.unpack_from(">Q", xdr.data, xdr.at)
            elif kind == 9 and count == 1:  # DATA_TYPE_STRING
                found[name] = xdr.text()
            if size < 16:
                raise ValueError("damaged")
            xdr.at = start + size
    except struct.error:
        raise ValueError("cut short") from None


def pool_label(fd: int, start: int, size: int) -> PoolLabel | None:
    """Return the ZFS label of a vdev that begins at byte ``start`` of ``fd`` and is ``size`` bytes long.

    The first of its four copies that can be read; None if none can.
    """
    end = start + size // LABEL * LABEL
    for at in (start, start + LABEL, end - 2 * LABEL, end - LABEL):
        if at < start:
            continue
        data = os.pread(fd, _NVLIST_LEN, at + _NVLIST_AT)
        try:
            values = parse_nvlist(data)
        except ValueError:
            continue
        if "pool_guid" in values or "state" in values or "guid" in values:
            return PoolLabel(
                str(values.get("name", "")),
                str(values.get("pool_guid", "")),
                int(values.get("state", 0)),
                str(values.get("comment", "")),
                str(values.get("hostname", "")),
            )
    return None


@dataclass(frozen=True, slots=True)
class Partition:
    """One entry of a GPT, in bytes."""

    type: uuid.UUID
    start: int
    size: int


def gpt(fd: int) -> list[Partition] | None:
    """Return the partitions of a GUID partition table; None without one. Sectors of 512 or 4096 bytes."""
    for sector in (512, 4096):
        header = os.pread(fd, 92, sector)
        if header[:8] != b"EFI PART" or len(header) < 92:
            continue
        table, count, width = struct.unpack_from("<QII", header, 72)
        found = []
        for i in range(min(count, 256)):
            entry = os.pread(fd, 128, table * sector + i * width)
            if len(entry) < 128 or entry[:16] == bytes(16):
                continue
            first, last = struct.unpack_from("<QQ", entry, 32)
            found.append(
                Partition(uuid.UUID(bytes_le=entry[:16]), first * sector, (last - first + 1) * sector)
            )
        return found
    return None


def whole_disk_pool(fd: int) -> tuple[bool, PoolLabel | None]:
    """Return whether the partition table is exactly what ``zpool create`` writes on a whole disk, and the
    label in its first partition.
    """
    table = gpt(fd)
    if table is None or [p.type for p in table] != [ZFS_PARTITION, RESERVED_PARTITION]:
        return False, None
    return True, pool_label(fd, table[0].start, table[0].size)


def written_over(fd: int) -> bool:
    """Return whether somebody else wrote where the pool's vdev begins, whatever label is still behind it: on
    a disk that was empty ZFS leaves the first 8 KiB of a vdev as they are.
    """
    table = gpt(fd) if whole_disk_pool(fd)[0] else None
    return any(os.pread(fd, _BLANK, table[0].start if table else 0))


def bare_table(fd: int, size: int) -> bool:
    """Return whether a disk's first and last 16 MiB hold the partition table that ``zpool create`` writes on
    a whole disk, and nothing else: no label, and nothing of what others put into a partition.
    """
    if not whole_disk_pool(fd)[0]:
        return False
    sector = 512 if os.pread(fd, 8, 512) == b"EFI PART" else 4096
    entries = 16 << 10  # UEFI 2.10 §5.3: at least that much, and no more for two partitions
    first, last = 2 * sector + entries, size - sector - entries
    return _first_data(fd, [(first, min(last, TAIL)), (max(first, size - TAIL), last)]) is None


@dataclass(frozen=True, slots=True)
class FilesystemLabel:
    """An ext4 or xfs super-block."""

    type: str
    uuid: str
    label: str


def filesystem(fd: int) -> FilesystemLabel | None:
    """Return the ext2/3/4 or xfs file system that begins at byte 0; None without one."""
    head = os.pread(fd, 4096, 0)
    if head[:4] == b"XFSB":
        return FilesystemLabel("xfs", str(uuid.UUID(bytes=head[32:48])), _c_text(head[108:120]))
    if head[1024 + 56 : 1024 + 58] == b"\x53\xef":
        base = 1024
        return FilesystemLabel(
            "ext4",
            str(uuid.UUID(bytes=head[base + 104 : base + 120])),
            _c_text(head[base + 120 : base + 136]),
        )
    return None


def _c_text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", errors="replace")


# What, where, the magic bytes. Negative offsets count from the end of the disk.
_SIGNATURES: tuple[tuple[str, int, bytes], ...] = (
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("a btrfs file system", 0x10040, b"_BHRfS_M"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("a swap area", 4086, b"SWAP-SPACE"),
    ("a swap area", 65526, b"SWAPSPACE2"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT"),
    ("a FAT file system", 82, b"FAT32"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    (
        "a bcachefs or bcache member",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    ("an ISO 9660 file system", 32769, b"CD001"),
    ("an Oracle ASM disk", 32, b"ORCLDISK"),
    ("a Ceph OSD", 0, b"bluestore block device"),
    ("a JFS file system", 32768, b"JFS1"),
    ("a reiserfs file system", 65588, b"ReIsEr"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("an md RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", 4096, b"\xfc\x4e\x2b\xa9"),
    ("an Intel RAID member", -1024, b"Intel Raid ISM Cfg"),
    ("a DDF RAID member", -512, b"\xde\x11\xde\x11"),
)


def signature(fd: int, size: int) -> str:
    """Return what a person would call the contents of a disk of ``size`` bytes; empty if nothing is known."""
    zfs, label = whole_disk_pool(fd)
    if label is None:
        label = pool_label(fd, 0, size)
    if label is not None:
        state = {0: "in use or not exported", 1: "exported", 2: "destroyed"}.get(
            label.state, "a spare or cache"
        )
        return f'a label of the ZFS pool "{label.name}" ({state})'
    if zfs or gpt(fd) is not None:
        return "a partition table (GPT)"
    found = filesystem(fd)
    if found is not None:
        return f"an {found.type} file system{f' ({found.label})' if found.label else ''}"
    at = [(what, offset if offset >= 0 else size + offset, magic) for what, offset, magic in _SIGNATURES]
    # md version 1.0 sits 8 to 12 KiB before the end, on a 4 KiB boundary; 0.90 in the last whole 64 KiB.
    at += [
        ("an md RAID member", (size // 512 - 16 & ~7) * 512, b"\xfc\x4e\x2b\xa9"),
        ("an md RAID member", (size & ~0xFFFF) - 0x10000, b"\xfc\x4e\x2b\xa9"),
    ]
    for what, offset, magic in at:
        if offset >= 0 and os.pread(fd, len(magic), offset) == magic:
            return what
    if os.pread(fd, 2, 510) == b"\x55\xaa":
        return "a partition table (MBR) or boot sector"
    return ""


def first_data(fd: int, size: int) -> int | None:
    """Return the first byte that is not zero in the disk's head and tail; None if both are empty."""
    regions = [(0, min(size, HEAD))]
    if size > HEAD:
        regions.append((max(HEAD, size - TAIL), size))
    return _first_data(fd, regions)


def _first_data(fd: int, regions: list[tuple[int, int]]) -> int | None:
    chunk = 1 << 20
    zeros = bytes(chunk)
    for start, end in regions:
        for at in range(start, end, chunk):
            data = os.pread(fd, min(chunk, end - at), at)
            if data != zeros[: len(data)]:
                return at + len(data) - len(data.lstrip(b"\0"))
    return None
