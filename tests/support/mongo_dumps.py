"""Dumps as mongodump writes them."""

from __future__ import annotations

import gzip

from ztune.databases.mongodb.onhost import bson, dumps

END = b"\xff\xff\xff\xff"


def packed(data: bytes, level: int = 9) -> bytes:
    """Without the time: it would be in the names of tests, which must be the same in all processes."""
    return gzip.compress(data, level, mtime=0)


def doc(number: int) -> bytes:
    return bson.encode({"_id": number, "text": f"number {number}"})


def header(name: str, *, end: bool = False, database: str = "shop") -> bytes:
    return bson.encode({"db": database, "collection": name, "EOF": end, "CRC": 2**40})


def archive(*parts: bytes) -> bytes:
    first = bson.encode({"concurrent_collections": 4, "version": "0.1", "server_version": "5.0.9"})
    about = bson.encode({"db": "shop", "collection": "a", "metadata": "{}", "size": 5})
    return packed(dumps.MAGIC + first + about + END + b"".join(parts))


WHOLE = archive(
    *(header("a"), doc(1), doc(2), END),
    *(header("b"), doc(1), END),
    *(header("system.version", database="admin"), doc(9), END),
    *(header("a"), doc(3), END),
    *(header("b", end=True), END),
    *(header("a", end=True), END),
    *(header("system.version", database="admin", end=True), END),
)
