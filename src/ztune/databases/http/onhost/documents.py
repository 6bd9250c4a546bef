"""The documents of ``http``: text of many sizes, the same for the same seed, and who is asked for which.

A line is a phrase, six words and six hexadecimal digits (``filler``): text repeats, numbers don't. It
compresses about as the rows of ``postgres-oltp`` do: 1.6 with lz4 and 2.5 with zstd-3 at 8 KiB, 1.8 and 2.7
at 16 KiB, 2.0 and 3.2 at 128 KiB. The last line of a document is its mark, which no other has: an answer
that ends too early lacks it.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ztune.databases.http.onhost.service import path_of
from ztune.onhost.jobs import filler
from ztune.onhost.jobs import role_directories as places

# The mean of 2**x for x spread evenly from -2 to 2: (4 - 1/4) / (4 ln 2).
_MEAN = 1.3525
_MARK_BYTES = 24


@dataclass(frozen=True, slots=True)
class Documents:
    """How many there are, how large, and with which content."""

    total: int
    """Bytes of all, about."""
    typical: int
    """Bytes of the one in the middle; the smallest has a quarter of it, the largest four times as many."""
    seed: int

    @property
    def count(self) -> int:
        """How many there are."""
        return max(1, round(self.total / (self.typical * _MEAN)))

    def size(self, number: int) -> int:
        """Return the bytes of document ``number``, from 0."""
        return max(_MARK_BYTES, round(self.typical * math.exp2(4 * self._share(b"size", number) - 2)))

    def mark(self, number: int) -> str:
        """Return the last word of document ``number``."""
        return self._hash(b"mark", number).hex()[:16]

    def text(self, number: int) -> bytes:
        """Return document ``number``, whole."""
        size, end = self.size(number), f"\nend {self.mark(number)}\n".encode()
        lines: list[str] = []
        length, part = 0, 0
        while length < size:
            # 64 bytes of hash make six lines, of ten each.
            digest = self._hash(b"text", number, part)
            for at in range(0, 60, 10):
                words = " ".join([filler.WORDS[byte] for byte in digest[at + 1 : at + 7]])
                lines.append(f"{filler.PHRASES[digest[at]]} {words} {digest[at + 7 : at + 10].hex()}")
                length += len(lines[-1]) + 1
            part += 1
        return "\n".join(lines).encode()[: size - len(end)] + end

    def _hash(self, what: bytes, *numbers: int) -> bytes:
        key = b" ".join([what, *(b"%d" % number for number in numbers)])
        return hashlib.blake2b(key, salt=b"%d" % self.seed).digest()

    def _share(self, what: bytes, number: int) -> float:
        return int.from_bytes(self._hash(what, number)[:7], "big") / 2**56

    def write(self, root: Path, progress: Callable[[float], None]) -> None:
        """Write them all below ``root``."""
        for number in range(self.count):
            path = path_of(root, name_of(number))
            if number % 1000 == 0:
                path.parent.mkdir()
            places.write(path, self.text(number))
            if number % 100 == 0:
                progress(number / self.count)

    def found(self, root: Path) -> bool:
        """Whether all are below ``root``, with their sizes, and nothing else."""
        sizes = {path.name: path.stat().st_size for path in root.rglob("*") if path.is_file()}
        return sizes == {f"{name_of(number)}.txt": self.size(number) for number in range(self.count)}

    def asked(self, requests: int) -> Iterator[int]:
        """Yield which documents are asked for, one after another: each as often as any other, by chance."""
        draw = random.Random(f"{self.seed} {self.count}")
        for _ in range(requests):
            yield draw.randrange(self.count)


def name_of(number: int) -> str:
    """Return the name of a document, as requests have it."""
    return f"{number:07d}"
