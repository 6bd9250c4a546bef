"""The input of a restore: a dump of documents made of WordNet or Debian's package lists, or one's own.

Nothing is invented but the documents' identifiers: names, descriptions and glosses are the sources' own, so
they compress as real text does.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ztune.databases.mongodb.onhost import bson, dumps
from ztune.errors import InputError
from ztune.onhost.jobs import role_directories as places
from ztune.onhost.jobs import triples

_LISTS = {"Tag", "Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances", "Conflicts", "Breaks",
          "Replaces", "Provides", "Built-Using"}  # fmt: skip
_NUMBERS = {"Installed-Size", "Size"}
_FIRST_SECOND = 1_600_000_000
_AT_ONCE = 1000
"""Documents that are packed together; and, for their identifiers, made in one second."""


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """What is in a dump."""

    documents: int
    bytes: int
    """Of the documents, unpacked."""
    crc_sum: int
    """Sum of the CRC-32 of each document in its collection: the same for the same documents in any order."""
    namespaces: dict[str, int]
    """``database.collection`` → documents."""
    archive_bytes: int
    sha256: str
    """Of the file, as it is."""


def check(kind: str, own: str = "") -> None:
    """Raise MissingError or InputError if the documents of ``kind`` can't be had here."""
    if kind != "file":
        triples.check(kind)
    elif not Path(own).is_file():
        raise InputError(f"{own or '(no file named)'} is no file; name a dump with -p file=PATH")


def facts(path: Path, name: str = "") -> DocumentFacts:
    """Read the dump ``path`` to its end and return what is in it.

    Args:
        path: the dump.
        name: how an error calls it, if not by its path.

    Raises:
        InputError: it is no dump, not a whole one, or holds no documents.
    """
    count = size = total = 0
    namespaces: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        packed = path.stat().st_size
        for namespace, document in dumps.documents(path):
            bson.id_key(document)
            count += 1
            size += len(document)
            total += dumps.checksum(namespace, document)
            namespaces[namespace] = namespaces.get(namespace, 0) + 1
    except (dumps.DumpError, ValueError) as error:
        raise InputError(f"{name or path}: no gzip archive that mongodump wrote: {error}") from None
    except OSError as error:
        raise InputError(f"{name or path}: can't be read: {error.strerror}") from None
    if not count:
        raise InputError(f"{name or path}: there are no documents in it")
    return DocumentFacts(count, size, total, namespaces, packed, digest)


def write(
    kind: str,
    target: Path,
    count: int,
    seed: int,
    own: str = "",
    progress: Callable[[float], None] | None = None,
) -> DocumentFacts:
    """Write the dump ``target`` and return what is in it.

    Args:
        kind: ``wordnet``, ``debian`` or ``file``.
        target: a new file.
        count: how many documents; they begin again when the source is at its end. Not for a ``file``.
        seed: decides the documents' identifiers.
        own: path of a dump, for ``file``: it is copied as it is.
        progress: called with the share done.

    Raises:
        InputError: the user's file is no dump, or this system has no package lists.
        MissingError: what the documents come from isn't here.
    """
    check(kind, own)
    if kind == "file":
        try:
            places.copy(Path(own), target)
        except OSError as error:
            raise InputError(f"{own}: can't be copied to {target}: {error.strerror}") from None
        return facts(target, own)
    machine = hashlib.blake2b(b"%d" % seed, digest_size=5).digest()
    bodies = _endless(kind)
    # As mongodump packs, at gzip's default level; without name and time, so that the same is the same.
    with places.create(target) as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as out:
        for first in range(0, count, _AT_ONCE):
            last = min(first + _AT_ONCE, count)
            out.write(b"".join(_document(n, machine, next(bodies)) for n in range(first, last)))
            if progress is not None:
                # Reading it again takes its time too.
                progress(0.7 * first / count)
    return facts(target)


def _document(number: int, machine: bytes, body: bytes) -> bytes:
    """Return a document with an identifier as a client would make it: seconds, machine, counter."""
    seconds = _FIRST_SECOND + number // _AT_ONCE
    made = seconds.to_bytes(4, "big") + machine + (number & 0xFFFFFF).to_bytes(3, "big")
    return bson.wrap(bson.elements([("_id", bson.ObjectId(made))]) + body)


def _endless(kind: str) -> Iterator[bytes]:
    kept = []
    for body in _synsets() if kind == "wordnet" else _packages():
        kept.append(body)
        yield body
    if not kept:
        raise InputError(f"input={kind}: this system has no such documents; run `apt-get update` first")
    while True:
        yield from kept


def _synsets() -> Iterator[bytes]:
    """Yield the fields of a document for every synset of WordNet."""
    for synset in triples.synsets():
        pointers = [{"relation": relation, "synset": other} for relation, other in synset.pointers]
        meaning, *examples = synset.gloss.split('; "')
        yield bson.elements(
            [
                ("synset", synset.name),
                ("words", [word.replace("_", " ") for word in synset.words]),
                ("pointers", pointers),
                ("gloss", meaning),
                ("examples", [example.strip('"') for example in examples]),
            ]
        )


def _packages() -> Iterator[bytes]:
    """Yield the fields of a document for every package that this system's package lists have."""
    for fields in triples.packages():
        yield bson.elements((name, _package_value(name, text)) for name, text in fields.items())


def _package_value(name: str, text: str) -> str | int | list[str]:
    if name in _LISTS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if name in _NUMBERS and text.isdigit():
        return int(text)
    return text
