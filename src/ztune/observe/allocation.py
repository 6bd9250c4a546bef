"""What ZFS allocates for a block: its rule for compressed ones, sectors, and RAID-Z's parity and padding.

Source: OpenZFS 2.3, zio_get_compression_max_size and zio_write_compress in module/zfs/zio.c,
vdev_raidz_asize in vdev_raidz.c, vdev_draid_asize in vdev_draid.c, vdev_set_deflate_ratio in vdev.c. Releases
before 2.3 differ for blocks whose size is no power of two (files of one record) by a sector at most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ztune.observe.model import ObservedVdev

EMBEDDED: Final = 112
"""Bytes of a compressed block that fit into the pointer to it (BPE_PAYLOAD_SIZE): nothing is allocated."""
HEADER: Final = {"lz4": 4, "zstd": 4}
"""Bytes that ZFS's format has more than the library's: lz4 its length, zstd 8 bytes for a magic of 4."""
_SMALLEST = 512
_DEFLATE = 1 << 17


@dataclass(frozen=True, slots=True)
class Allocation:
    """How blocks lie on the vdevs that hold a dataset's data."""

    sector: int = 4096
    """1 << ashift."""
    width: int = 1
    """Devices over which a row of a block goes, with parity: RAID-Z's disks, dRAID's group; 1: no parity."""
    parity: int = 0
    draid: bool = False

    @classmethod
    def of(cls, vdev: ObservedVdev) -> Allocation:
        """Return that of a top-level vdev: 4 KiB sectors, and no parity, where it does not tell."""
        sector = 1 << vdev.ashift if vdev.ashift else 4096
        kind = re.fullmatch(r"(?:raidz|draid)([1-3])", vdev.kind)
        parity = int(kind[1]) if kind else 0
        if parity and vdev.kind.startswith("raidz") and len(vdev.disks) > parity:
            return cls(sector, len(vdev.disks), parity)
        match = re.match(r"draid[1-3]:([0-9]{1,3})d:", vdev.name)
        if parity and match:
            return cls(sector, int(match[1]) + parity, parity, draid=True)
        return cls(sector)

    def __str__(self) -> str:
        if not self.parity:
            return f"{self.sector}-byte sectors"
        return f"{'draid' if self.draid else 'raidz'}{self.parity} of {self.width}"

    @property
    def unit(self) -> int:
        """Bytes that the size of a compressed block is a multiple of."""
        return self.sector * (self.width - self.parity if self.draid else 1)

    def allocated(self, size: int) -> int:
        """Return the bytes allocated for ``size`` bytes of a block on the disks, parity included.

        As ``zpool list`` counts them: a mirror's copies once.
        """
        if size <= 0:
            return 0
        data = self.width - self.parity
        if self.draid:
            return -(-size // (data * self.sector)) * self.width * self.sector
        sectors = -(-size // self.sector)
        if self.parity:
            sectors += self.parity * -(-sectors // data)
            sectors = -(-sectors // (self.parity + 1)) * (self.parity + 1)
        return sectors * self.sector

    def expansion(self, size: int) -> float:
        """Return what is allocated for a block of ``size``, as a multiple of its sectors."""
        return self.allocated(size) / (-(-size // self.sector) * self.sector)

    @property
    def ideal(self) -> float:
        """That multiple of a block so large that no padding counts."""
        return self.width / (self.width - self.parity)

    def used(self, allocated: int) -> int:
        """Return the bytes that ``du`` and ``zfs get used`` show for ``allocated``: parity taken off.

        By one ratio for all blocks, that of blocks of 128 KiB: small blocks seem larger than they are.
        """
        ratio = _DEFLATE // (self.allocated(_DEFLATE) // _SMALLEST)
        return allocated // _SMALLEST * ratio

    def stored(self, size: int, compressed: int | None) -> int:
        """Return the bytes allocated for a block of ``size``, which compresses to ``compressed``.

        ``compressed``: with ZFS's own header; None: compression is off; 0: all zeros, which are a hole.
        """
        if compressed is None:
            return self.allocated(size)
        if compressed == 0:
            return 0
        # It must save an eighth, and a whole sector.
        most = (size - size // 8) // self.unit * self.unit
        if most < self.unit:
            most = EMBEDDED
        if compressed > most:
            return self.allocated(size)
        if compressed <= EMBEDDED:
            return 0
        return self.allocated(-(-compressed // self.unit) * self.unit)
