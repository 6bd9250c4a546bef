"""Ages a trial's pools between load and settle: what ``engine/src/age.c`` does in a replay, with files.

The two draw the same random numbers in the same order, so the same files on the same pool have the same past.
docs/age.md says what happens.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ztune.errors import InputError, ZtuneError
from ztune.onhost.age import FILLER, REWRITTEN, WRITE, Age
from ztune.onhost.layout import Layout
from ztune.onhost.trial.pools import Filled, Made, Pools
from ztune.units import format_size, parse_size

UNIT, FILL_GROUP, CHURN = 128 << 10, 64 << 20, 10
TXG_WRITES, TXG_BYTES, COMMIT_WRITES = 512, 32 << 20, 128
MOST_FILLER = 64 << 30
"""Bytes that are written to fill a pool, at most: minutes on a fast disk, hours on a slow one."""
_PIECE = 1 << 20
# Checksums by which OpenZFS sees that a block was rewritten with what it holds, and leaves it where it is:
# ZCHECKSUM_FLAG_NOPWRITE in zio_checksum.c.
_NOPWRITE = ("sha256", "sha512", "skein", "edonr", "blake3")
_64 = (1 << 64) - 1


class Draw:
    """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as the engine has it."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _64

    def below(self, limit: int) -> int:
        """Return the next number, from 0 to ``limit`` - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _64
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
        return (z ^ (z >> 31)) % limit

    def shuffled(self, count: int) -> list[int]:
        """Return the numbers from 0 to ``count`` - 1 in any order."""
        out = list(range(count))
        for i in range(count - 1, 0, -1):
            k = self.below(i + 1)
            out[i], out[k] = out[k], out[i]
        return out


def check(layout: Layout, filled: Mapping[str, Filled]) -> None:
    """Raise InputError where the pools, just made, are too large to be filled, or can't be rewritten."""
    age = layout.age
    assert age is not None
    for name, pool in filled.items():
        size = pool.size * age.fill // 100
        if size > MOST_FILLER:
            raise InputError(
                f"the age can't fit: filling pool {name} to {age.fill} % takes "
                f"{format_size(size >> 30 << 30)}, and ztune writes {format_size(MOST_FILLER)} at most; "
                'give its disks a size, such as "hdd-7200:4G"'
            )
    for dataset in layout.datasets:
        values = dataset.properties
        if (
            age.rewrites
            and values.get("checksum") in _NOPWRITE
            and values.get("compression", "on") != "off"
            and set(dataset.roles) & set(REWRITTEN)
        ):
            raise InputError(
                f"dataset {dataset.name} can't age in a trial: with checksum={values['checksum']} OpenZFS "
                "does not write a block that holds the same as before; a replay can age it"
            )


@dataclass
class _Filler:
    place: Path
    files: list[tuple[int, int]] = field(default_factory=list)
    """Number in the name, bytes."""
    named: int = 0


class Aging:
    """The past of one trial's pools. ``roles``: role → its directory. ``said``: share done, what is done."""

    def __init__(
        self,
        layout: Layout,
        pools: Pools,
        roles: Mapping[str, Path],
        seed: int,
        said: Callable[[str, float], None],
    ) -> None:
        assert layout.age is not None
        self.age: Age = layout.age
        self._pools, self._roles, self._said = pools, roles, said
        self._draw = Draw(seed)
        self._zeros = bytes(_PIECE)
        self._records = {
            role: parse_size(d.properties.get("recordsize", "128K"))
            for d in layout.datasets
            for role in d.roles
        }
        self._filler: dict[str, _Filler] = {
            made.dataset.pool: _Filler(made.mountpoint) for made in fillers(pools)
        }
        self._writes = self._dirty = 0
        self._done = self._total = 0
        self.rewritten = self.commits = 0

    def run(self) -> dict[str, Any]:
        """Age the pools and return the result's ``age``.

        Raises ZtuneError where they have no room for it.
        """
        began = time.monotonic()
        self._total = self.age.rewrites * sum(path.stat().st_size for _role, path in self._files())
        for pool in self._filler:
            self._adjust(pool)
        for number in range(self.age.rewrites):
            self._round(number)
        self._pools.end_group()
        self._pools.end_group()
        return {
            "seconds": round(time.monotonic() - began, 3),
            "rewritten": self.rewritten,
            "commits": self.commits,
            "pools": [
                {
                    "name": name,
                    "size": one.size,
                    "allocated": one.allocated,
                    "free": one.size - one.allocated,
                    "filler": sum(size for _n, size in self._filler[name].files)
                    if name in self._filler
                    else 0,
                    "capacity": one.allocated * 100 // max(1, one.size),
                    **({} if one.fragmentation is None else {"fragmentation": one.fragmentation}),
                }
                for name, one in self._pools.filled().items()
            ],
        }

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that are rewritten, each with its role, in the order of their names."""
        for role in REWRITTEN:
            for folder, folders, names in os.walk(self._roles[role]) if role in self._roles else ():
                folders.sort()
                for name in sorted(names):
                    path = Path(folder) / name
                    facts = path.lstat()
                    if stat.S_ISREG(facts.st_mode) and facts.st_size > 0:
                        yield role, path

    def _round(self, number: int) -> None:
        for i in range(self.age.snapshots):
            if i * self.age.rewrites // self.age.snapshots == number:
                self._pools.snapshot(f"ztune-age-{i + 1}")
                if i < self.age.clones:
                    self._pools.clone(f"ztune-age-{i + 1}", i + 1)
        for pool, filler in self._filler.items():
            for _ in range(len(filler.files) // CHURN):
                self._remove(pool)
            self._pools.end_group()
        for role, path in list(self._files()):
            self._rewrite(role, path)
        for pool in self._filler:
            self._adjust(pool)

    # -- other files -----------------------------------------------------------------------------------

    def _adjust(self, pool: str) -> None:
        """Bring a pool to its fill: with more files, or with fewer where snapshots hold blocks."""
        filler = self._filler[pool]
        self._pools.end_group()
        now = self._pools.filled()[pool]
        target = now.size // 100 * self.age.fill
        while now.allocated > target + UNIT:
            if not filler.files:
                raise ZtuneError(
                    f"the age can't fit: the database's files and snapshots take "
                    f"{now.allocated * 100 // now.size} % of the pool {pool}, which is to be "
                    f"{self.age.fill} % full; take larger disks, fewer snapshots or a higher fill"
                )
            gone = 0
            while filler.files and gone < min(now.allocated - target, FILL_GROUP):
                gone += self._remove(pool)
            self._pools.end_group()
            now = self._pools.filled()[pool]
        while now.allocated + UNIT < target:
            more = 0
            while more < min(target - now.allocated, FILL_GROUP):
                more += self._add(pool, target - now.allocated - more)
            self._pools.end_group()
            now = self._pools.filled()[pool]
            self._tell(f"fill {pool}: {now.allocated * 100 // now.size} %")

    def _add(self, pool: str, lacks: int) -> int:
        """Make one more file, of a size that chance has chosen, but no larger than what the pool lacks."""
        filler = self._filler[pool]
        size = UNIT << self._draw.below(7)
        while size > max(UNIT, lacks):
            size >>= 1
        path = filler.place / f"filler{filler.named:08}"
        filler.files.append((filler.named, size))
        filler.named += 1
        try:
            with path.open("xb", buffering=0) as file:
                for at in range(0, size, _PIECE):
                    file.write(self._zeros[: min(_PIECE, size - at)])
        except OSError as error:
            raise self._said_of(error, pool) from None
        return size

    def _remove(self, pool: str) -> int:
        filler = self._filler[pool]
        i = self._draw.below(len(filler.files))
        number, size = filler.files[i]
        (filler.place / f"filler{number:08}").unlink()
        filler.files[i] = filler.files[-1]
        filler.files.pop()
        return size

    def _said_of(self, error: OSError, pool: str) -> Exception:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        return ZtuneError(
            f"the age can't fit: the pool {pool} has no room left at a fill of {self.age.fill} %; take "
            "larger disks or a lower fill"
        )

    # -- the database's --------------------------------------------------------------------------------

    def _rewrite(self, role: str, path: Path) -> None:
        """Write a file once more, each piece with what it holds: the database must find what it wrote."""
        in_order, record = REWRITTEN[role], self._records.get(role, 128 << 10)
        write = self.age.write or WRITE
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            count = -(-size // write)
            places = range(count) if in_order else self._draw.shuffled(count)
            for i, place in enumerate(places):
                piece = os.pread(fd, min(write, size - place * write), place * write)
                os.pwrite(fd, piece, place * write)
                self.rewritten += len(piece)
                self._done += len(piece)
                self._dirty += len(piece) if in_order else max(len(piece), record)
                self._writes += 1
                if i % COMMIT_WRITES == COMMIT_WRITES - 1 or i == count - 1:
                    os.fsync(fd)
                    self.commits += 1
                    self._tell("rewrite")
                if self._writes >= TXG_WRITES or self._dirty >= TXG_BYTES:
                    self._end_group()
        except OSError as error:
            raise self._said_of(error, "of the database") from None
        finally:
            os.close(fd)
        if self._writes:
            self._end_group()

    def _end_group(self) -> None:
        self._pools.end_group()
        self._writes = self._dirty = 0

    def _tell(self, text: str) -> None:
        self._said(text, self._done / max(1, self._total))


def fillers(pools: Pools) -> list[Made]:
    """Return the datasets that hold what fills the pools."""
    return [made for made in pools.made if made.dataset.rest == FILLER and not made.dataset.roles]
