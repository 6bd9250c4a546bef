"""The program that works on a RocksDB database: a process of its own, standard library only.

It calls RocksDB's library through its C interface (``rocksdb/c.h``), imports nothing of ztune, runs as the
database's user, under the recorder, and can be killed without harm. It reads commands from standard input,
each a line with a word, a tab and a JSON object, and answers with lines of JSON on standard output.
``rocksdb.py`` beside it is the other end.

Why not ``db_bench``: its values are pieces of one buffer of 1 MiB, so that they repeat at that distance, and
zstd with records of 1 MiB halves what nothing else can. Nor can it give reads and writes a common pace.
"""

from __future__ import annotations

import ctypes
import math
import re
import time
from typing import Any

from ztune.onhost.jobs.client_program import Load, Values, Worker, run_all, say, serve, times_of

AGAIN = 20
_TICKER = re.compile(r"^rocksdb\.([\w.\-]+) COUNT : (\d+)\s*$", re.MULTILINE)
# Of RocksDB's properties: what is 0 when its background threads have nothing left to do.
_AT_REST = (
    *("rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes"),
    *("rocksdb.compaction-pending", "rocksdb.num-running-compactions"),
)


def key_of(number: int) -> bytes:
    """Return a key of 16 bytes."""
    return b"%016d" % number


# RocksDB's C interface, as far as it is used: what each returns, and what it takes.
_FUNCTIONS = (
    ("options_create", "p", ""),
    ("options_destroy", "", "p"),
    ("options_set_create_if_missing", "", "pb"),
    ("options_enable_statistics", "", "p"),
    ("options_statistics_get_string", "p", "p"),
    ("options_set_wal_dir", "", "ps"),
    ("get_options_from_string", "", "pspe"),
    ("open", "p", "pse"),
    ("close", "", "p"),
    ("property_int", "i", "psl"),
    ("readoptions_create", "p", ""),
    ("writeoptions_create", "p", ""),
    ("writeoptions_set_sync", "", "pb"),
    ("writeoptions_disable_WAL", "", "pi"),
    ("flushoptions_create", "p", ""),
    ("flush", "", "ppe"),
    ("put", "", "ppsnsne"),
    ("get", "p", "ppsnze"),
    ("free", "", "p"),
)
_TYPES: dict[str, Any] = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "n": ctypes.c_size_t,
    "b": ctypes.c_ubyte,
    "i": ctypes.c_int,
    "l": ctypes.POINTER(ctypes.c_uint64),
    "z": ctypes.POINTER(ctypes.c_size_t),
    "e": ctypes.POINTER(ctypes.c_void_p),
    "": None,
}


class Library:
    """RocksDB's C interface."""

    def __init__(self, name: str) -> None:
        """Load the library ``name``."""
        library = ctypes.CDLL(name)
        self._of: dict[str, Any] = {}
        for function, gives, takes in _FUNCTIONS:
            found = getattr(library, f"rocksdb_{function}")
            found.restype = _TYPES[gives]
            found.argtypes = [_TYPES[one] for one in takes]
            self._of[function] = found

    def do(self, function: str, *arguments: Any) -> Any:
        """Call a function that can't fail."""
        return self._of[function](*arguments)

    def attempt(self, function: str, *arguments: Any) -> Any:
        """Call a function that may fail.

        Raises:
            OSError: it did; with RocksDB's words.
        """
        error = ctypes.c_void_p()
        given = self._of[function](*arguments, ctypes.byref(error))
        if error.value is not None:
            raise OSError(self.text(error.value))
        return given

    def text(self, address: int) -> str:
        """Return the text at ``address``, which is freed."""
        found = ctypes.string_at(address).decode(errors="replace")
        self.do("free", address)
        return found


class Client:
    """The database and what is known of it between commands."""

    def __init__(self) -> None:
        self.rocks: Library | None = None
        self.options = self.database = self.read = self.write = 0
        self.values: Values | None = None
        self.keys = 0

    def _library(self, name: str) -> Library:
        if self.rocks is None:
            self.rocks = Library(name)
        return self.rocks

    def check(self, library: str, options: str) -> dict[str, Any]:
        """Have RocksDB read ``options``, without a database."""
        rocks = self._library(library)
        base = rocks.do("options_create")
        rocks.attempt("get_options_from_string", base, options.encode(), base)
        rocks.do("options_destroy", base)
        return {}

    def open(
        self,
        library: str,
        path: str,
        wal: str,
        options: str,
        sync: bool,
        log: bool,
        keys: int,
        values: dict[str, Any],
        make: bool = False,
    ) -> dict[str, Any]:
        """Open the database, or make it."""
        rocks = self._library(library)
        base, self.options = rocks.do("options_create"), rocks.do("options_create")
        rocks.do("options_set_create_if_missing", base, make)
        rocks.do("options_enable_statistics", base)
        rocks.attempt("get_options_from_string", base, options.encode(), self.options)
        # Not by the string, where a path might hold what ends it.
        rocks.do("options_set_wal_dir", self.options, wal.encode())
        self.read, self.write = rocks.do("readoptions_create"), rocks.do("writeoptions_create")
        rocks.do("writeoptions_set_sync", self.write, sync)
        rocks.do("writeoptions_disable_WAL", self.write, not log)
        self.database = rocks.attempt("open", self.options, path.encode())
        self.values, self.keys = Values(**values), keys
        return {}

    def put(self, key: int, version: int) -> None:
        """Write a key."""
        assert self.rocks is not None and self.values is not None
        name, value = key_of(key), self.values.of(key, version)
        self.rocks.attempt("put", self.database, self.write, name, len(name), value, len(value))

    def get(self, key: int) -> int:
        """Read a key; return how long its value is."""
        assert self.rocks is not None
        length, name = ctypes.c_size_t(), key_of(key)
        found = self.rocks.attempt("get", self.database, self.read, name, len(name), ctypes.byref(length))
        if found is None:
            raise LookupError(f"key {key} is missing")
        self.rocks.do("free", found)
        return length.value

    def look(self) -> dict[str, Any]:
        """Say whether the first and the last key are there; an older version's database has others."""
        try:
            for key in (0, self.keys - 1):
                self.get(key)
        except LookupError:
            return {"whole": False}
        return {"whole": True}

    def fill(self) -> dict[str, Any]:
        """Write every key once, then some again, and wait for compaction.

        In the order of keys, which costs no compaction; then one in ``AGAIN`` in no order, so that tables of
        every level reach over all keys, as after long use.
        """
        assert self.rocks is not None
        count = self.keys
        step = next(n for n in range(round(count * 0.618), 2 * count + 2) if math.gcd(n, count) == 1)
        for done in range(count + count // AGAIN):
            if done % 5000 == 0:
                say(progress=0.95 * done / (count + count // AGAIN))
            if done < count:
                self.put(done, 0)
            else:
                self.put(done * step % count, 1)
        self.rocks.attempt("flush", self.database, self.rocks.do("flushoptions_create"))
        self.rest()
        return {}

    def rest(self) -> None:
        """Wait until RocksDB has nothing left to flush or to compact."""
        assert self.rocks is not None
        quiet, number = 0, ctypes.c_uint64()
        # Several times over: what ends may be about to begin the next.
        while quiet < 5:
            time.sleep(0.05)
            say(progress=1.0)
            busy = 0
            for name in _AT_REST:
                # A property that it doesn't have gives -1.
                if self.rocks.do("property_int", self.database, name.encode(), ctypes.byref(number)) == 0:
                    busy += number.value
            quiet = 0 if busy else quiet + 1

    def counters(self) -> dict[str, int]:
        """Return RocksDB's own counters."""
        assert self.rocks is not None
        text = self.rocks.text(self.rocks.do("options_statistics_get_string", self.options))
        return {name: int(count) for name, count in _TICKER.findall(text)}

    def run(
        self, mix: str, read_share: int, operations: int, seconds: float, rate: float, threads: int, seed: int
    ) -> dict[str, Any]:
        """Do ``operations``, or as many as go into ``seconds``; return what was done, and the times in µs."""
        before = self.counters()
        load = Load(threads, seed, seconds=seconds, rate=rate, operations=operations)
        workers = [Thread(self, load, number, mix, read_share) for number in range(threads)]
        spent = run_all(load, workers)
        # What the load left to do belongs to it.
        self.rest()
        after = self.counters()
        return {
            "seconds": spent,
            "closing_seconds": time.monotonic() - load.began - spent,
            "operations": sum(worker.done for worker in workers),
            "times_us": times_of(workers),
            "counters": {name: count - before.get(name, 0) for name, count in after.items()},
        }

    def close(self) -> dict[str, Any]:
        """Close the database."""
        database, self.database = self.database, 0
        if database:
            assert self.rocks is not None
            self.rocks.do("close", database)
        return {}


class Thread(Worker):
    """One thread of the load: its random keys."""

    def __init__(self, client: Client, load: Load, number: int, mix: str, read_share: int) -> None:
        super().__init__(load, number, kinds=("read", "write", "operation"))
        self.client, self.mix, self.read_share = client, mix, read_share

    def work(self) -> None:
        """Do operations until there are enough."""
        draw = self.random
        for due in self.starts():
            start, key = due, draw.randrange(self.client.keys)
            reads = self.mix == "update" or (self.mix == "mixed" and draw.randrange(100) < self.read_share)
            if reads:
                self.client.get(key)
                start = self.note("read", start)
            if not reads or self.mix == "update":
                self.client.put(key, 1 + draw.getrandbits(62))
                self.note("write", start)
            self.note("operation", due)


if __name__ == "__main__":
    serve(Client())
