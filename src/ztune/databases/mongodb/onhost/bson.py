"""BSON (bsonspec.org, version 1.1), as far as it takes to write documents, to find a field in one, and to
sort by it.

The standard library alone: the client of a database carries this module along.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

STRING, DOCUMENT, ARRAY, OBJECT_ID, BOOLEAN, DATE = 0x02, 0x03, 0x04, 0x07, 0x08, 0x09
INT32, INT64, DOUBLE = 0x10, 0x12, 0x01
# Bytes of a value whose length its type decides.
_FIXED = {
    **{DOUBLE: 8, OBJECT_ID: 12, BOOLEAN: 1, DATE: 8, INT32: 4, INT64: 8},
    **{0x06: 0, 0x0A: 0, 0x11: 8, 0x13: 16, 0x7F: 0, 0xFF: 0},
}
# Bytes that come on top of the length that stands before a value: the length itself, and what it leaves out.
_COUNTED = {STRING: 4, 0x0D: 4, 0x0E: 4, 0x05: 5, 0x0C: 16, DOCUMENT: 0, ARRAY: 0, 0x0F: 0}
_REGEX = 0x0B
_INT = struct.Struct("<i")
_ID = b"_id\0"


class ObjectId(bytes):
    """Twelve bytes that identify a document."""


def encode(fields: Mapping[str, Any]) -> bytes:
    """Return a document with ``fields``: texts, whole numbers, floats, truth values, ``ObjectId``, lists,
    mappings.
    """
    return wrap(elements(fields.items()))


def wrap(body: bytes) -> bytes:
    """Return the document that has the elements ``body``."""
    return _INT.pack(len(body) + 5) + body + b"\0"


def elements(fields: Iterable[tuple[str, object]]) -> bytes:
    """Return ``fields`` as elements, one after the other."""
    parts = []
    for name, value in fields:
        kind, data = _value(value)
        parts.append(bytes((kind,)) + name.encode() + b"\0" + data)
    return b"".join(parts)


def _value(value: object) -> tuple[int, bytes]:
    if isinstance(value, str):
        text = value.encode()
        return STRING, _INT.pack(len(text) + 1) + text + b"\0"
    if isinstance(value, bool):
        return BOOLEAN, b"\1" if value else b"\0"
    if isinstance(value, int):
        return (INT32, _INT.pack(value)) if -(2**31) <= value < 2**31 else (INT64, struct.pack("<q", value))
    if isinstance(value, float):
        return DOUBLE, struct.pack("<d", value)
    if isinstance(value, ObjectId):
        return OBJECT_ID, bytes(value)
    if isinstance(value, Mapping):
        return DOCUMENT, encode(value)
    if isinstance(value, list | tuple):
        return ARRAY, wrap(elements((str(n), one) for n, one in enumerate(value)))
    raise TypeError(f"no BSON for {type(value).__name__}")


def field(document: bytes, name: str) -> tuple[int, bytes] | None:
    """Return type and value of a field of ``document``; ``None`` if it has none of that name.

    Raises:
        ValueError: it is no BSON.
    """
    wanted = name.encode() + b"\0"
    at, end = 4, len(document) - 1
    try:
        while at < end:
            kind = document[at]
            after = document.index(b"\0", at + 1) + 1
            size = _size(document, kind, after)
            if document[at + 1 : after] == wanted:
                return kind, document[after : after + size]
            at = after + size
    except (IndexError, struct.error):
        at = -1
    if at != end:
        raise ValueError("a document is no BSON")
    return None


def _size(document: bytes, kind: int, at: int) -> int:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in _COUNTED:
        size = int(_INT.unpack_from(document, at)[0])
        if size < 0:
            raise ValueError("a document is no BSON")
        return size + _COUNTED[kind]
    if kind == _REGEX:
        pattern = document.index(b"\0", at) + 1
        return document.index(b"\0", pattern) + 1 - at
    raise ValueError(f"a document has a field of type {kind:#x}, which BSON doesn't know")


def id_key(document: bytes) -> bytes:
    """Return the document's ``_id`` as a key that sorts, byte by byte, as numbers, dates, texts and
    ``ObjectId`` do. Floats and what is rarer keep their own bytes.

    Raises:
        ValueError: there is none, or it is no BSON.
    """
    # Nearly always the first field, and of this type.
    if document[4:9] == b"\x07" + _ID:
        return document[4:5] + document[9:21]
    found = field(document, "_id")
    if found is None:
        raise ValueError("a document has no _id")
    kind, value = found
    if kind in (INT32, INT64, DATE):
        number = int.from_bytes(value, "little", signed=True) + 2**63
        return bytes((INT64 if kind == INT32 else kind,)) + number.to_bytes(8, "big")
    return bytes((kind,)) + (value[4:-1] if kind == STRING else value)


def text(document: bytes, name: str) -> str:
    """Return a field that is text; empty if there is none."""
    found = field(document, name)
    return found[1][4:-1].decode(errors="replace") if found is not None and found[0] == STRING else ""
