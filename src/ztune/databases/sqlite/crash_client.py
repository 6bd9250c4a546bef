"""The program that works on an SQLite database in a crash test: one process for each connection.

Standard library only; it imports nothing of ztune and runs as the database's user. Commands are lines of
standard input, a word, a tab and a JSON object; answers are lines of JSON on standard output. ``sqlite.py``
beside it is the other end.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any

from ztune.onhost.jobs.client_program import serve

# "+": by the tables; integrity_check compares them with their indexes.
LEDGER = "SELECT +client, number, source, target, delta, payload, checksum FROM ledger NOT INDEXED"
ACCOUNTS = "SELECT id, balance, version, last_client, last_number, note FROM account NOT INDEXED"
UPDATE = (
    "UPDATE account SET balance = balance + ?, version = version + 1, last_client = ?, last_number = ?,"
    " note = ? WHERE id = ?"
)


class Worker:
    """One connection."""

    def __init__(self) -> None:
        self.made: sqlite3.Connection | None = None
        self.note = 0

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection; there is one after ``open``."""
        assert self.made is not None
        return self.made

    def load(
        self, path: str, pragmas: dict[str, str], schema: list[str], accounts: int, notes: list[str]
    ) -> dict[str, Any]:
        """Make the database: page size and vacuum mode are its own from then on, and so is a WAL."""
        made = sqlite3.connect(path, isolation_level=None)
        for name, value in pragmas.items():
            made.execute(f"PRAGMA {name} = {value}").fetchall()
        made.execute("BEGIN")
        for statement in schema:
            made.execute(statement)
        made.executemany(
            "INSERT INTO account VALUES (?, 0, 0, 0, 0, ?)",
            ((n, f"{notes[n % len(notes)]} {n}") for n in range(1, accounts + 1)),
        )
        made.execute("COMMIT")
        made.close()
        return {}

    def open(self, path: str, pragmas: dict[str, str], busy_ms: int, note: int) -> dict[str, Any]:
        """Connect; the first read recovers what a cut has left."""
        self.note = note
        self.made = made = sqlite3.connect(path, isolation_level=None)
        made.execute(f"PRAGMA busy_timeout = {busy_ms}")
        for name, value in pragmas.items():
            made.execute(f"PRAGMA {name} = {value}").fetchall()
        (rows,) = made.execute("SELECT count(*) FROM account").fetchone()
        answers = {name: made.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas}
        return {"accounts": rows, "settings": {name: str(value) for name, value in answers.items()}}

    def commit(self, row: list[Any]) -> dict[str, Any]:
        """Do one transaction."""
        client, number, source, target, delta, payload, _ = row
        made = self.connection
        made.execute("BEGIN IMMEDIATE")
        made.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for account, change in ((source, -delta), (target, delta)):
            made.execute(UPDATE, (change, client, number, payload[: self.note], account))
        made.execute("COMMIT")
        return {}

    def checkpoint(self) -> dict[str, Any]:
        """Bring the log into the database and begin it anew."""
        self.connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        return {}

    def read(self) -> dict[str, Any]:
        """Return both tables and what SQLite's own check says."""
        made = self.connection
        entries = []
        texts = {}
        for client, number, source, target, delta, payload, checksum in made.execute(LEDGER):
            text = f"{client}:{number}:{source}:{target}:{delta}:{payload}"
            whole = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == checksum
            entries.append((client, number, source, target, delta, whole))
            texts[client, number] = (payload[: self.note], source, target)
        accounts = []
        for id_, balance, version, client, number, note in made.execute(ACCOUNTS):
            text, source, target = texts.get((client, number), ("", 0, 0))
            accounts.append(
                (id_, balance, version, version == 0 or (note == text and id_ in (source, target)))
            )
        said = [row[0] for row in made.execute("PRAGMA integrity_check")]
        return {"entries": entries, "accounts": accounts, "said": said}


if __name__ == "__main__":
    serve(Worker())
