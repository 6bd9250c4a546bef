"""The program that works on an SQLite database: a process of its own, standard library only.

It imports nothing of ztune, runs as the database's user, under the recorder, and can be killed without harm.
It reads commands from standard input, each a line with a word, a tab and a JSON object, and answers with
lines of JSON on standard output. ``sqlite.py`` beside it is the other end.

Writers stand in line for one lock before they ask SQLite for its own: an application with several threads
does that, since SQLite has one writer at a time and its busy handler would sleep.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from typing import Any

from ztune.onhost.jobs.client_program import Load, Worker, run_all, say, serve, times_of

SCHEMA = (
    (
        "CREATE TABLE account (id INTEGER PRIMARY KEY, branch INTEGER NOT NULL, balance INTEGER NOT NULL,"
        " note TEXT NOT NULL)"
    ),
    (
        "CREATE TABLE history (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, delta INTEGER NOT NULL,"
        " at REAL NOT NULL, note TEXT NOT NULL)"
    ),
    "CREATE INDEX history_account ON history (account)",
)
READ = "SELECT balance, note FROM account WHERE id = ?"
UPDATE = "UPDATE account SET balance = balance + ?, note = ? WHERE id = ?"
INSERT = "INSERT INTO history (account, delta, at, note) VALUES (?, ?, ?, ?)"


def note(phrases: list[str], seed: int, key: int) -> str:
    """Return four phrases and twelve hexadecimal digits, drawn from a hash of the key: text repeats,
    identifiers don't.
    """
    digest = hashlib.blake2b(b"%d" % key, digest_size=10, salt=b"%d" % seed).digest()
    return " ".join([phrases[byte] for byte in digest[:4]]) + " " + digest[4:].hex()


class Client:
    """The database and what is known of it between commands."""

    def __init__(self) -> None:
        self.path = ""
        self.phrases: list[str] = []
        self.seed = 0
        self.rows = 0
        self.pragmas: dict[str, str] = {}
        self.busy_ms = 60_000
        self.keeper: sqlite3.Connection | None = None
        self.turn = threading.Lock()

    def connect(self) -> sqlite3.Connection:
        """Open a connection with the settings asked for."""
        # Each connection stays with its thread, but for the last close.
        made = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        made.execute(f"PRAGMA busy_timeout = {self.busy_ms}")
        for name, value in self.pragmas.items():
            made.execute(f"PRAGMA {name} = {value}").fetchall()
        return made

    def load(
        self, path: str, page_size: int, rows: int, seed: int, phrases: list[str], pragmas: dict[str, str]
    ) -> dict[str, Any]:
        """Make and fill the database, without the brakes that only matter for survival."""
        made = sqlite3.connect(path, isolation_level=None)
        for name, value in {**pragmas, "page_size": str(page_size)}.items():
            made.execute(f"PRAGMA {name} = {value}")
        made.execute("PRAGMA journal_mode = OFF")
        made.execute("PRAGMA synchronous = OFF")
        for statement in SCHEMA:
            made.execute(statement)

        def filled() -> Iterator[tuple[int, int, int, str]]:
            for key in range(1, rows + 1):
                if key % 20_000 == 0:
                    say(progress=key / rows)
                yield key, key % 1000, 0, note(phrases, seed, key)

        made.execute("BEGIN")
        made.executemany("INSERT INTO account VALUES (?, ?, ?, ?)", filled())
        made.execute("COMMIT")
        [found] = made.execute("SELECT count(*) FROM account").fetchone()
        # On the disk before the copy is taken.
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA user_version = 1")
        made.close()
        return {"rows": found}

    def open(
        self,
        path: str,
        pragmas: dict[str, str],
        seed: int,
        phrases: list[str],
        busy_ms: int,
        settings: list[str],
    ) -> dict[str, Any]:
        """Open the database as it will be used; return its settings, as SQLite has them, and its state."""
        self.path, self.pragmas, self.seed, self.phrases = path, pragmas, seed, phrases
        self.busy_ms = busy_ms
        # As long as one connection is open the WAL is kept when the others close.
        self.keeper = self.connect()
        # By the ends of the keys and the short table: nothing that would read the whole database into caches.
        [self.rows] = self.keeper.execute("SELECT coalesce(max(id), 0) FROM account").fetchone()
        [history] = self.keeper.execute("SELECT count(*) FROM history").fetchone()
        return {
            "settings": {name: self.setting(name) for name in settings},
            "rows": self.rows,
            "history": history,
        }

    def setting(self, name: str) -> str:
        """Return a setting as SQLite has it now."""
        assert self.keeper is not None
        row = self.keeper.execute(f"PRAGMA {name}").fetchone()
        return "" if row is None else str(row[0])

    def state(self) -> dict[str, Any]:
        """Return what the checks compare; reads everything."""
        assert self.keeper is not None
        ask = self.keeper.execute
        [rows] = ask("SELECT count(*) FROM account").fetchone()
        [history, deltas] = ask("SELECT count(*), coalesce(sum(delta), 0) FROM history").fetchone()
        [balance] = ask("SELECT coalesce(sum(balance), 0) FROM account").fetchone()
        [pages] = ask("PRAGMA page_count").fetchone()
        return {"rows": rows, "history": history, "deltas": deltas, "balance": balance, "pages": pages}

    def run(
        self,
        seconds: float,
        rate: float,
        clients: int,
        reads: int,
        updates: int,
        inserts: int,
        seed: int,
        log: bool,
    ) -> dict[str, Any]:
        """Do transactions for ``seconds``; return how many, what they added and each one's time in µs."""
        load = Load(clients, seed, seconds=seconds, rate=rate)
        workers = [Writer(self, load, number, (reads, updates, inserts)) for number in range(clients)]
        spent = run_all(load, workers)
        return {
            "transactions": sum(worker.done for worker in workers),
            "inserted": sum(worker.inserted for worker in workers),
            "added": sum(worker.added for worker in workers),
            "seen": sum(worker.seen for worker in workers),
            "seconds": spent,
            "times_us": times_of(workers)["transaction"] if log else [],
        }

    def checkpoint(self) -> dict[str, Any]:
        """Bring everything from the WAL into the database; nothing to do in other journal modes."""
        assert self.keeper is not None
        began = time.monotonic()
        busy, pages, moved = self.keeper.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        return {"busy": busy, "pages": pages, "moved": moved, "seconds": time.monotonic() - began}

    def verify(self) -> dict[str, Any]:
        """Return the state and SQLite's own word on whether the file is sound."""
        assert self.keeper is not None
        found = [row[0] for row in self.keeper.execute("PRAGMA integrity_check").fetchall()]
        return {**self.state(), "integrity": "; ".join(found)[:300]}

    def close(self) -> dict[str, Any]:
        """Close the last connection, so that the database is one file."""
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None
        return {}


class Writer(Worker):
    """One client: a connection, its random keys, its counts."""

    def __init__(self, client: Client, load: Load, number: int, mix: tuple[int, int, int]) -> None:
        super().__init__(load, number, kinds=("transaction",))
        self.client, self.mix = client, mix
        self.added = self.inserted = self.seen = 0

    def work(self) -> None:
        """Do transactions until the time is over."""
        with contextlib.closing(self.client.connect()) as connection:
            for start in self.starts():
                self._transaction(connection)
                self.note("transaction", start)

    def _transaction(self, connection: sqlite3.Connection) -> None:
        reads, updates, inserts = self.mix
        rows, draw = self.client.rows, self.random
        for _ in range(reads):
            if connection.execute(READ, (draw.randint(1, rows),)).fetchone() is None:
                raise LookupError("a row of account is missing")
            self.seen += 1
        if not updates and not inserts:
            return
        changes = [(draw.randint(1, rows), draw.randint(-5000, 5000)) for _ in range(updates or 1)]
        text = [
            note(self.client.phrases, self.client.seed, draw.getrandbits(62))
            for _ in range(updates + inserts)
        ]
        with self.client.turn:
            connection.execute("BEGIN IMMEDIATE")
            for n in range(updates):
                key, delta = changes[n]
                connection.execute(UPDATE, (delta, text[n], key))
            for n in range(inserts):
                key, delta = changes[n % len(changes)]
                # Only what was added to a balance counts: the sums must agree.
                delta = sum(d for _, d in changes) if n == 0 and updates else 0
                connection.execute(INSERT, (key, delta, time.time(), text[updates + n]))
            connection.execute("COMMIT")
        if updates:
            self.added += sum(delta for _, delta in changes)
        self.inserted += inserts


if __name__ == "__main__":
    serve(Client())
