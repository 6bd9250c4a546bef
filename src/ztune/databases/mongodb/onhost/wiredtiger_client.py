"""The program in which WiredTiger restores a dump: a process of its own, as the database's user.

It is run by a Python that has WiredTiger's binding, with this module, ``dumps`` and ``bson`` beside it and
nothing else of ztune's. It reads commands from standard input, each a line with a word, a tab and a JSON
object, and answers with lines of JSON on standard output; ``wiredtiger.py`` is the other end.

A collection is laid out as MongoDB does it: a table of documents by number, and one that leads from their
``_id`` to that number.
"""

from __future__ import annotations

import importlib
import threading
import time
import zlib
from array import array
from pathlib import Path
from typing import Any

from ztune.databases.mongodb.onhost import bson, dumps
from ztune.onhost.jobs.client_program import say, serve

# What one transaction of WiredTiger's holds at most: like mongod, which divides a batch into such groups.
GROUP_DOCUMENTS = 500
GROUP_BYTES = 256 * 1024


class Table:
    """A collection's table and its index, open for inserting."""

    def __init__(self, session: Any, number: int) -> None:
        self.documents = session.open_cursor(f"table:collection-{number}")
        self.index = session.open_cursor(f"table:index-{number}", None, "overwrite=false")
        self.last = 0

    def insert(self, document: bytes) -> None:
        """Insert a document and its identifier."""
        self.last += 1
        self.documents.set_key(self.last)
        self.documents.set_value(document)
        self.documents.insert()
        self.index.set_key(bson.id_key(document))
        self.index.set_value(self.last.to_bytes(8, "big"))
        self.index.insert()


class Client:
    """The database and what is known of it between commands."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.home = self.config = self.collection = self.index = ""
        self.connection: Any = None
        self.numbers: dict[str, int] = {}
        """Namespace → the number of its tables."""

    def open(self, home: str, config: str, collection: str, index: str) -> dict[str, Any]:
        """Make the database in ``home``, as the configurations say; return WiredTiger's version."""
        self.engine = importlib.import_module("wiredtiger")
        self.home, self.config, self.collection, self.index = home, config, collection, index
        self.connection = self.engine.wiredtiger_open(home, f"create,{config}")
        # What is wrong in them must not show in the middle of the work.
        session = self.connection.open_session()
        for table in (collection, index):
            session.create("table:probe", f"exclusive,{table}")
            session.drop("table:probe")
        session.close()
        return {"version": ".".join(map(str, self.engine.wiredtiger_version()[1:]))}

    def _table(self, session: Any, namespace: str) -> Table:
        number = len(self.numbers)
        session.create(f"table:collection-{number}", f"exclusive,{self.collection}")
        session.create(f"table:index-{number}", f"exclusive,{self.index}")
        self.numbers[namespace] = number
        return Table(session, number)

    def restore(
        self, archive: str, batch: int, total: int, sync: bool, flush_seconds: float
    ) -> dict[str, Any]:
        """Insert every document of ``archive``.

        Args:
            archive: the dump.
            batch: documents that are acknowledged together.
            total: documents that are expected, to say how far it is.
            sync: wait for the log at the end of each batch.
            flush_seconds: else flush it so often, in the background; 0: never.
        """
        began = time.monotonic()
        session = self.connection.open_session()
        tables: dict[str, Table] = {}
        waits = array("Q")
        count = in_batch = in_group = size = 0
        with Flusher(self.connection, 0 if sync else flush_seconds) as flusher:
            started = began
            for namespace, document in dumps.documents(Path(archive)):
                if namespace not in tables:
                    if in_group:
                        # A table can't be made within a transaction.
                        session.commit_transaction()
                        in_group = size = 0
                    tables[namespace] = self._table(session, namespace)
                if not in_group:
                    session.begin_transaction()
                try:
                    tables[namespace].insert(document)
                except self.engine.WiredTigerError as error:
                    raise RuntimeError(f"document {count + 1} of {namespace}: {error}") from None
                count += 1
                in_batch += 1
                in_group += 1
                size += len(document)
                if in_batch < batch and in_group < GROUP_DOCUMENTS and size < GROUP_BYTES:
                    continue
                session.commit_transaction()
                in_group = size = 0
                if in_batch == batch:
                    in_batch = 0
                    if sync:
                        session.log_flush("sync=on")
                    now = time.monotonic()
                    waits.append(round((now - started) * 1e6))
                    started = now
                    if count % 20_000 < batch:
                        say(progress=min(0.99, count / total))
                    flusher.check()
            if in_group:
                session.commit_transaction()
            if sync and in_batch:
                session.log_flush("sync=on")
        session.close()
        return {"documents": count, "seconds": time.monotonic() - began, "batch_us": list(waits)}

    def checkpoint(self) -> dict[str, Any]:
        """Write what is still in memory, and sync it."""
        began = time.monotonic()
        session = self.connection.open_session()
        session.checkpoint()
        session.close()
        return {"seconds": time.monotonic() - began}

    def statistics(self, names: list[str]) -> dict[str, Any]:
        """Return WiredTiger's own counts of the connection: field of ``stat.conn`` → value."""
        session = self.connection.open_session()
        cursor = session.open_cursor("statistics:")
        fields = self.engine.stat.conn
        found = {name: cursor[getattr(fields, name)][2] for name in names if hasattr(fields, name)}
        session.close()
        return found

    def verify(self) -> dict[str, Any]:
        """Close the database, open it again, and return what is in it; reads everything.

        ``entries`` counts the index; ``linked`` is the sum of its entries' checksums and ``wanted`` what the
        documents say it must be.
        """
        self.connection.close()
        self.connection = self.engine.wiredtiger_open(self.home, self.config)
        session = self.connection.open_session()
        found = {"documents": 0, "crc_sum": 0, "entries": 0, "linked": 0, "wanted": 0}
        for namespace, number in self.numbers.items():
            for table in (f"table:collection-{number}", f"table:index-{number}"):
                session.verify(table)
            cursor = session.open_cursor(f"table:collection-{number}")
            for key, document in cursor:
                found["documents"] += 1
                found["crc_sum"] += dumps.checksum(namespace, document)
                found["wanted"] += zlib.crc32(key.to_bytes(8, "big"), zlib.crc32(bson.id_key(document)))
                if found["documents"] % 20_000 == 0:
                    say(progress=0.5)
            cursor.close()
            cursor = session.open_cursor(f"table:index-{number}")
            for key, value in cursor:
                found["entries"] += 1
                found["linked"] += zlib.crc32(value, zlib.crc32(key))
            cursor.close()
        session.close()
        return found

    def close(self) -> dict[str, Any]:
        """Close the database, which writes a checkpoint."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        return {}


class Flusher:
    """A thread that flushes the log every so often, as mongod's does."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._end = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Flusher:
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._seconds:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        try:
            session = self._connection.open_session()
            while not self._end.wait(self._seconds):
                session.log_flush("sync=on")
            session.close()
        except Exception as error:
            self._error = error


if __name__ == "__main__":
    serve(Client(), plain=(dumps.DumpError,))
