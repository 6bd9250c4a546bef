"""What a cluster's ``global/pg_control`` says: read, where ``pg_controldata`` would be a program to run.

Source: ``src/include/catalog/pg_control.h`` of PostgreSQL 9.5 to 18. What lies before ``floatFormat`` differs
between them, what follows it does not, up to the checksum over all; that tells whether it was understood.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from ztune.errors import ZtuneError
from ztune.onhost.host import noatime

_SIZE = 512  # bytes at most: one sector
_FLOAT = struct.pack("=d", 1234567.0)
_CRC: Final = {
    **{942: 48, 960: 48},  # 9.5, 9.6
    **{1002: 80, 1100: 80, 1201: 80, 1300: 80, 1700: 80},  # 10 on: after 32 bytes more
    1800: 84,
}
"""Version of the format → bytes from ``floatFormat`` to the checksum."""
_TRIES = 3


def read(data: Path) -> dict[str, str]:
    """Return what the files of the cluster in ``data`` are made of, by the names of its settings.

    Raises:
        ZtuneError: the file can't be read, or has another format.
    """
    path = data / "global" / "pg_control"
    for _ in range(_TRIES):
        try:
            content = noatime.beginning(path, _SIZE)
        except OSError as error:
            raise ZtuneError(f"{path}: {error.strerror}") from None
        # A running server may just be writing it.
        if found := parse(content):
            return found
    raise ZtuneError(f"{path} has a format that is not known, or is damaged")


def parse(content: bytes) -> dict[str, str] | None:
    """Return what ``pg_control`` says; None where its format is not known or its checksum is wrong."""
    at = content.find(_FLOAT)
    if at < 0 or len(content) < 12:
        return None
    (version,) = struct.unpack_from("=I", content, 8)
    end = at + _CRC.get(version, len(content))
    if len(content) < end + 4 or struct.unpack_from("=I", content, end)[0] != _crc32c(content[:end]):
        return None
    block, _, wal_block, wal_segment = struct.unpack_from("=4I", content, at + 8)
    (checksums,) = struct.unpack_from("=I", content, at + 44)
    return {
        "block_size": str(block),
        "wal_block_size": str(wal_block),
        "wal_segment_size": str(wal_segment),
        "data_checksums": "on" if checksums else "off",
    }


def _crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
