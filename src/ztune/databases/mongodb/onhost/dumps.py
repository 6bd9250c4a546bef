"""Reads what ``mongodump --gzip`` writes: the documents of a collection (``.bson.gz``), or an archive
(``--archive``) with those of several.

A ``.bson`` file is documents one after the other. An archive, by mongo-tools' specification of the format, is
a magic number, a header and a description of each collection, a terminator, then segments of documents, each
behind a header that names its collection and before a terminator.

The standard library alone, but for ``bson`` beside it: the client of a database carries this module along.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from ztune.databases.mongodb.onhost import bson

DATABASE, COLLECTION = "ztune", "documents"
NAMESPACE = f"{DATABASE}.{COLLECTION}"
"""Where the documents of a ``.bson`` file go, which doesn't say it itself."""
OWN_DATABASES = ("admin", "config", "local")
"""What a server keeps in these is its own, and no part of a restore."""
MAGIC = b"\x6d\xe2\x99\x81"
_TERMINATOR = b"\xff\xff\xff\xff"
_LARGEST = (16 << 20) + (16 << 10)
"""Bytes of the largest document, MongoDB's own overhead included."""
_READ = 1 << 20


class DumpError(Exception):
    """The file is no such dump, or not a whole one."""


def documents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the namespace (``database.collection``) and the bytes of every document, in the file's order,
    but for the server's own databases.

    Raises:
        DumpError: it can't be read, or not to its end; the text says what is wrong, and does not name it.
    """
    try:
        with gzip.open(path, "rb") as file:
            yield from _documents(_Items(file))
    except gzip.BadGzipFile as error:
        raise DumpError(f"it is not packed by gzip, or is damaged: {error}") from None
    except (EOFError, zlib.error) as error:
        raise DumpError(f"it is cut off or damaged: {error}") from None
    except OSError as error:
        raise DumpError(f"can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise DumpError(str(error)) from None


def is_archive(path: Path) -> bool:
    """Whether the file is an archive; one that can't be read is none."""
    try:
        with gzip.open(path, "rb") as file:
            return file.read(4) == MAGIC
    except (OSError, EOFError, zlib.error):
        return False


def checksum(namespace: str, document: bytes) -> int:
    """Return a number for a document in its collection; the sum of these is the same in any order."""
    return zlib.crc32(document, zlib.crc32(namespace.encode()))


class _Items:
    """The documents and terminators of a file, one by one."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._data = b""
        self._at = 0

    def _have(self, count: int) -> bool:
        """Read on until ``count`` bytes are at hand; false if the file ends before."""
        while len(self._data) - self._at < count:
            more = self._file.read(_READ)
            if not more:
                return False
            self._data = self._data[self._at :] + more
            self._at = 0
        return True

    def take_magic(self) -> bool:
        """Whether the file begins as an archive does; passes over it."""
        if not self._have(4) or self._data[:4] != MAGIC:
            return False
        self._at = 4
        return True

    def next(self) -> bytes | None:
        """Return the next document, nothing for a terminator, ``None`` at the end."""
        if not self._have(4):
            if len(self._data) > self._at:
                raise DumpError("it ends in the middle of a document")
            return None
        at = self._at
        head = self._data[at : at + 4]
        if head == _TERMINATOR:
            self._at += 4
            return b""
        size = int.from_bytes(head, "little", signed=True)
        if not 5 <= size <= _LARGEST:
            raise DumpError("it holds what is no BSON document")
        if not self._have(size):
            raise DumpError("it ends in the middle of a document")
        at = self._at
        self._at = at + size
        document = self._data[at : at + size]
        if document[-1]:
            raise DumpError("it holds what is no BSON document")
        return document


def _documents(items: _Items) -> Iterator[tuple[str, bytes]]:
    if items.take_magic():
        yield from _archive(items)
        return
    while (document := items.next()) is not None:
        if not document:
            raise DumpError("it holds what is no BSON document")
        yield NAMESPACE, document


def _archive(items: _Items) -> Iterator[tuple[str, bytes]]:
    # The header and the descriptions of the collections: their indexes are not made again.
    while head := items.next():
        pass
    if head is None:
        raise DumpError("it ends before its first collection")
    unfinished: set[str] = set()
    while (header := items.next()) is not None:
        if not header:
            raise DumpError("a segment has no header")
        database = bson.text(header, "db")
        namespace = f"{database}.{bson.text(header, 'collection')}"
        unfinished.add(namespace)
        while document := items.next():
            if database not in OWN_DATABASES:
                yield namespace, document
        if document is None:
            raise DumpError(f"it ends in the middle of the collection {namespace}")
        if bson.field(header, "EOF") == (bson.BOOLEAN, b"\1"):
            unfinished.discard(namespace)
    if unfinished:
        raise DumpError(f"it ends before the end of the collection {min(unfinished)}")
