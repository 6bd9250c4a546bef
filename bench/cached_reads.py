"""How long reads of what is cached take: trace/first_reads.py tells them by that from reads of a disk.

    python bench/cached_reads.py DIR…

Each DIR is a dataset with the records and the compression that are in question. A file of 64 MiB is written
there, read once, and then here and there. Without ztune, so that a guest of the lab runs it too. The file is
removed.
"""

import os
import random
import sys
import time
from pathlib import Path

MIB = 1 << 20
CALLS = {8192: 2000, 131072: 600}  # bytes of a read, and how many


def rows(size: int) -> bytes:
    """Return bytes such as a table's rows are: words of a vocabulary, numbers, and some that are zero."""
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnop", k=dice.randrange(3, 12))) for _ in range(2000)]
    made = bytearray()
    while len(made) < size:
        made += f"{dice.randrange(10**9)}|{dice.choice(words)} {dice.choice(words)}|".encode() + bytes(6)
    return bytes(made[:size])


def main() -> None:
    """Print a line for each directory and size of a read."""
    block, file_size = rows(4 * MIB), 64 * MIB
    for folder in map(Path, sys.argv[1:]):
        path = folder / "cached-reads"
        with path.open("wb") as out:
            for i in range(file_size // len(block)):
                turned = random.Random(i).randrange(len(block))
                out.write(block[turned:] + block[:turned])
            out.flush()
            os.fsync(out.fileno())
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        for at in range(0, file_size, MIB):
            os.pread(descriptor, MIB, at)
        for size, calls in CALLS.items():
            dice, buffer, took = random.Random(2), bytearray(size), []
            for _ in range(calls):
                at = dice.randrange(file_size // size) * size
                began = time.perf_counter_ns()
                os.preadv(descriptor, [buffer], at)
                took.append((time.perf_counter_ns() - began) / 1000)
            took.sort()
            parts = (f"{share} % {took[len(took) * share // 100]:,.0f}" for share in (10, 50, 90))
            print(f"{folder.name}: {size >> 10} KiB, µs: {', '.join(parts)}", flush=True)
        os.close(descriptor)


main()
