"""A WiredTiger database in use, to be recorded: documents are read and changed at random, at a given pace.

    PYTHONPATH=BINDING python bench/wiredtiger_load.py fill DIR --size 8G
    PYTHONPATH=BINDING ztune record --path DIR --out wt.trace -- \\
        python bench/wiredtiger_load.py run DIR --rate 400 --seconds 30
    python bench/sampling.py --arc 1G --rate 0 --parts 2 --layouts 3 wt.trace

BINDING is where `ztune setup mongo-restore` put WiredTiger's: cache/software/secantusdb-*/TAG in the state
directory. Documents have 1 KiB, pages of 32 KiB as MongoDB's; four in five accesses go to a fifth of them.
A third of the operations change a document, and wait until that is in the log on the disk; the others read
one. Every 10 s a checkpoint writes the pages that were changed. WiredTiger's cache has 64 MiB.
"""

from __future__ import annotations

import argparse
import importlib
import random
import threading
import time
from pathlib import Path
from typing import Any

import started

from ztune.units import parse_size

DOCUMENT, THREADS = 1024, 4
TABLE = "table:documents"
CONNECTION = (
    "create,cache_size=64M,checkpoint=(wait=10),log=(enabled,file_max=64MB,prealloc=false),"
    "file_extend=(log=0),session_max=100"
)
WORDS = [
    f"{word}{number}" for word in ("order", "street", "customer", "amount", "status") for number in range(97)
]


def document(chance: random.Random) -> bytes:
    """Return the text of a document, which compresses about as such text does."""
    text = "".join(f'"{chance.choice(WORDS)}":"{chance.getrandbits(32):x}",' for _ in range(60))
    return text.encode()[:DOCUMENT]


def fill(engine: Any, folder: Path, size: int) -> None:
    """Make the database, of about ``size`` bytes."""
    folder.mkdir(parents=True)
    connection = engine.wiredtiger_open(str(folder), CONNECTION)
    session = connection.open_session()
    session.create(TABLE, "key_format=q,value_format=u,leaf_page_max=32KB,block_compressor=none")
    cursor, chance = session.open_cursor(TABLE, None, "bulk"), random.Random(1)
    some = [document(chance) for _ in range(5000)]
    for key in range(size // DOCUMENT):
        # No two alike, but not each made anew, which takes long.
        cursor[key] = some[key % len(some)][:-8] + key.to_bytes(8, "big")
    cursor.close()
    connection.close()


def run(engine: Any, folder: Path, rate: float, seconds: float) -> None:
    """Read and change documents, ``rate`` a second in all, for ``seconds``."""
    connection = engine.wiredtiger_open(str(folder), CONNECTION)
    session = connection.open_session()
    cursor = session.open_cursor(TABLE)
    cursor.prev()
    count = cursor.get_key() + 1
    session.close()
    done, stop = [0] * THREADS, threading.Event()

    def client(number: int) -> None:
        chance, mine = random.Random(number), connection.open_session()
        cursor, began = mine.open_cursor(TABLE), time.monotonic()
        while (now := time.monotonic() - began) < seconds and not stop.is_set():
            due = done[number] * THREADS / rate
            if due > now:
                time.sleep(due - now)
            few = chance.random() < 0.8
            # Of 160 documents, which are five pages, the first 32.
            key = chance.randrange(count // 160) * 160 + chance.randrange(32 if few else 160)
            if chance.random() < 1 / 3:
                mine.begin_transaction()
                cursor[key] = document(chance)
                mine.commit_transaction("sync=on")
            else:
                cursor[key]
                cursor.reset()
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        connection.close()
    print(f"{sum(done) / seconds:.1f} operations a second on {count} documents")


def main() -> None:
    """Do what was asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("fill", "run"))
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--size", type=parse_size, default=8 << 30, help="of the database (fill)")
    parser.add_argument("--rate", type=float, default=400.0, help="operations a second (run)")
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    engine = importlib.import_module("wiredtiger")
    if given.action == "fill":
        fill(engine, given.folder, given.size)
    else:
        run(engine, given.folder, given.rate, given.seconds)


if __name__ == "__main__":
    started.script(main)
