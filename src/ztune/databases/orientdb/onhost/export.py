"""A JSON export of OrientDB: how many records of which class it holds, counted without OrientDB."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from ztune.errors import InputError

# The last alternative is a text whose end was not read yet.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]|-?\d+|"', re.DOTALL)
_CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
# Where OrientDB keeps its own records; no import takes them over.
_ITS_OWN = ("internal", "index", "manindex")
_WANTED = {"clusters": ("name", "id"), "records": ("@class", "@rid")}


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """What is in an export."""

    bytes: int
    """Of the file as it is, packed or not."""
    sha256: str
    """Of the same."""
    records: int
    classes: dict[str, int]
    """Records by class, those of none under the empty name; without OrientDB's own."""


def is_packed(path: Path) -> bool:
    """Return whether the file is packed with gzip: by its content, as OrientDB finds out.

    Raises:
        InputError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP
    except OSError as error:
        raise InputError(
            f"{path}: can't be read: {error.strerror}; name an export with -p export=PATH"
        ) from None


def pin(path: Path) -> str:
    """Return ``BYTES:SHA256`` of the file; it is read once as long as it doesn't change.

    Raises:
        InputError: it can't be read.
    """
    try:
        now = path.stat()
        return _pin(path, now.st_mtime_ns, now.st_size)
    except OSError as error:
        raise InputError(
            f"{path}: can't be read: {error.strerror}; name an export with -p export=PATH"
        ) from None


@lru_cache
def _pin(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{file.tell()}:{digest}"


def facts(path: Path) -> ExportFacts:
    """Read the export ``path`` to its end and return what is in it.

    Raises:
        InputError: it can't be read, or is no export of OrientDB.
    """
    size, _, digest = pin(path).partition(":")
    found: Counter[str] = Counter()
    own: set[str] = set()
    packed = is_packed(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as file:
            for kind, item in _items(file):
                if kind == "records":
                    cluster = item.get("@rid", "").removeprefix("#").partition(":")[0]
                    if "@class" in item or cluster not in own:
                        found[item.get("@class", "")] += 1
                elif item.get("name", "").lower() in _ITS_OWN:
                    own.add(item.get("id", ""))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, ValueError) as error:
        raise InputError(f"{path}: is no export of OrientDB: {error}") from None
    return ExportFacts(int(size), digest, found.total(), dict(sorted(found.items())))


def _tokens(file: IO[str]) -> Iterator[str]:
    """Yield texts with their quotation marks, whole numbers, brackets and colons; the rest is of no matter.

    Raises:
        ValueError: a string has no end.
    """
    rest = ""
    while text := file.read(max(_CHUNK, len(rest))):
        rest += text
        for match in _TOKEN.finditer(rest):
            if match[0] == '"':
                rest = rest[match.start() :]
                break
            yield match[0]
        else:
            rest = ""
    if rest:
        raise ValueError("it ends within a text")


def _items(file: IO[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each item of the lists in ``_WANTED``, as the list's name and what is wanted of its own fields.

    Raises:
        ValueError: it isn't an object with a list of ``records``, or brackets don't match.
    """
    stack: list[str] = []
    last = key = ""  # the last text or number, and the last text that was followed by a colon
    kind, seen = "", False  # the list that we are in, if it is wanted; whether there were records
    item: dict[str, str] = {}
    for token in _tokens(file):
        if token in "{[":
            if not stack and token != "{":
                raise ValueError("it doesn't begin with an object")
            if len(stack) == 1:
                kind = key if key in _WANTED else ""
                seen = seen or kind == "records"
            elif len(stack) == 2:
                item = {}
            stack.append(token)
            key = ""
        elif token in "}]":
            if not stack or stack.pop() != ("{" if token == "}" else "["):
                raise ValueError("its brackets don't match")
            if len(stack) == 2 and kind:
                yield kind, item
            key = ""
        elif token == ":":
            key = last
        else:
            last = token.strip('"')
            if len(stack) == 3 and kind and key in _WANTED[kind]:
                item.setdefault(key, str(json.loads(token)))
            key = ""
    if stack or not seen:
        raise ValueError("it ends too early" if stack else "it has no records")
