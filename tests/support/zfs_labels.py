"""What OpenZFS writes on a disk, made by hand: labels, and the partition table of a whole disk."""

from __future__ import annotations

import struct
import uuid

from ztune.onhost.host import labels


def nvlist(**values: object) -> bytes:
    """Return an XDR name/value list, as nvlist_pack writes it."""
    out = struct.pack(">BBBBII", 1, 1, 0, 0, 0, 1)

    def text(word: str) -> bytes:
        raw = word.encode()
        return struct.pack(">I", len(raw)) + raw + bytes(-len(raw) % 4)

    for name, value in values.items():
        kind, data = (8, struct.pack(">Q", value)) if isinstance(value, int) else (9, text(str(value)))
        body = text(name) + struct.pack(">II", kind, 1) + data
        out += struct.pack(">II", len(body) + 8, len(body) + 8) + body
    return out + bytes(8)


def table(size: int, *types: uuid.UUID) -> dict[int, bytes]:
    """Return a GPT with one partition for each type, from 1 MiB on: byte → what is there. Sectors of 512."""
    last = size // 512 - 1
    first, end = 2048, last - 33 - (16 << 10)
    entries = b""
    for type_, start, stop in zip(types, (first, end + 1), (end, last - 33), strict=False):
        entries += type_.bytes_le + uuid.uuid4().bytes_le + struct.pack("<QQ", start, stop) + bytes(80)
    entries = entries.ljust(16 << 10, b"\0")
    found: dict[int, bytes] = {510: b"\x55\xaa"}
    for mine, other, array in ((1, last, 2), (last, 1, last - 32)):
        header = b"EFI PART" + struct.pack("<IIIIQQQQ", 0x10000, 92, 0, 0, mine, other, 34, last - 33)
        header += uuid.uuid4().bytes_le + struct.pack("<QIII", array, 128, 128, 0)
        found |= {mine * 512: header, array * 512: entries}
    return found


def whole_disk(size: int) -> dict[int, bytes]:
    """Return the partition table that ``zpool create`` writes on a whole disk."""
    return table(size, labels.ZFS_PARTITION, labels.RESERVED_PARTITION)


def four(start: int, size: int, packed: bytes) -> dict[int, bytes]:
    """Return the four labels of a vdev: byte → the name/value list that is there."""
    end = start + size // labels.LABEL * labels.LABEL
    places = (start, start + labels.LABEL, end - 2 * labels.LABEL, end - labels.LABEL)
    return {at + (16 << 10): packed for at in places}
