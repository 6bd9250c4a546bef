"""LDIF (RFC 2849): read entry by entry, copied from a user's file, and what is in it.

An entry's content is counted in a way that does not depend on the order of entries, attributes and values,
nor on what a directory server adds and spells anew, so a server's export can be held against its import.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ztune.errors import InputError, ZtuneError
from ztune.onhost.jobs import role_directories as places

Values = list[tuple[bytes, bytes]]
"""Names of attributes, in lower case, with a value each."""

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9.-]*(;[A-Za-z0-9-]+)*")
# A server sets or changes these itself: what it keeps of a password, classes that it adds from the schema,
# and RFC 4512's and the servers' operational attributes.
_SERVERS_OWN = frozenset(
    b"objectclass userpassword authpassword entryuuid nsuniqueid entryid entrydn parentid creatorsname "
    b"modifiersname createtimestamp modifytimestamp numsubordinates hassubordinates subschemasubentry "
    b"tombstonenumsubordinates structuralobjectclass entrycsn contextcsn pwdchangedtime pwdupdatetime "
    b"passwordexpirationtime dsentrydn etag".split()
)
_SAFE = re.compile(r"(?![ :<])[\x01-\x09\x0b\x0c\x0e-\x7f]*(?<! )")
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LdifFacts:
    """What is in an LDIF file."""

    entries: int
    content: int
    """Sum of the CRC-32 of each entry's name and values: the same for the same entries in any order."""
    bytes: int
    sha256: str
    suffix: str
    """Name of the first entry, below which all others lie."""
    longest: int
    """Bytes of the longest entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file."""

    line: int
    """Where it begins, from 1."""
    text: bytes
    """As it stands there, with the end of its last line."""
    dn: bytes
    values: Values


def line(name: str, value: str) -> bytes:
    """Return the line of one value, as base64 where RFC 2849 wants it."""
    if _SAFE.fullmatch(value):
        return f"{name}: {value}\n".encode()
    return f"{name}:: ".encode() + base64.b64encode(value.encode()) + b"\n"


def written(dn: str, classes: Iterable[str], values: Mapping[str, str]) -> bytes:
    """Return the lines of an entry."""
    lines = [("dn", dn), *(("objectClass", name) for name in classes), *values.items()]
    return b"".join(line(name, value) for name, value in lines)


def write(target: Path, entries: Iterable[bytes]) -> int:
    """Write entries to the new file ``target``, with an empty line behind each; return how many."""
    count = 0
    with places.create(target) as out:
        for text in entries:
            out.write(text + b"\n")
            count += 1
    return count


def own(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the entries of a user's file (``.gz`` too) as they stand there, at most ``limit`` (0: all).

    Raises:
        InputError: it can't be read, or isn't LDIF that can be imported; the sentence names the line.
    """
    base: list[bytes] = []
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for entry in itertools.islice(entries(file), limit or None):
                name = rdns(entry.dn)
                if not base:
                    base = name
                elif name[-len(base) :] != base:
                    raise InputError(
                        f"line {entry.line}: {_shown(entry.dn)} does not lie below the first entry; "
                        "give one tree, with its root first"
                    )
                yield entry.text
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None


def facts(path: Path) -> LdifFacts:
    """Read the LDIF file ``path`` and return what is in it.

    Raises:
        ZtuneError: it can't be read, or is none.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            size = file.tell()
            file.seek(0)
            count = longest = total = 0
            suffix = b""
            for entry in entries(file):
                suffix = suffix or entry.dn
                count += 1
                longest = max(longest, len(entry.text))
                total += content(entry)
    except OSError as error:
        raise ZtuneError(f"{path}: can't be read: {error.strerror}") from None
    return LdifFacts(count, total, size, digest.hexdigest(), suffix.decode("utf-8", "replace"), longest)


def counted(file: Iterable[bytes]) -> tuple[int, int]:
    """Return how many entries an export has, and the sum of their content."""
    count = total = 0
    for entry in entries(file):
        count += 1
        total += content(entry)
    return count, total


def content(entry: Entry) -> int:
    """Return the CRC-32 of an entry's name and of the values that are not the server's own."""
    name = rdns(entry.dn)
    # A server adds the values of the name where the entry lacks them.
    found = {part.partition(b"=")[::2] for part in name[0].split(b"+")} if name else set()
    found |= {(key, _plain(value)) for key, value in entry.values}
    lines = sorted(
        key + b":" + value for key, value in found if key not in _SERVERS_OWN and not key.startswith(b"ds-")
    )
    return zlib.crc32(b"\n".join([b",".join(name), *lines]))


def rdns(dn: bytes) -> list[bytes]:
    """Return the parts of a name, in one way of writing: lower case, without escapes and needless blanks."""
    parts: list[bytes] = []
    for part in re.split(rb"(?<!\\),", dn):
        pairs = (pair.partition(b"=") for pair in re.split(rb"(?<!\\)\+", part))
        parts.append(b"+".join(sorted(_pair(key, value) for key, _, value in pairs)))
    return parts


def _pair(key: bytes, value: bytes) -> bytes:
    return key.strip().lower() + b"=" + _plain(value)


def _unescaped(match: re.Match[bytes]) -> bytes:
    found: bytes = match[1]
    return bytes([int(found, 16)]) if len(found) == 2 else found


def _plain(value: bytes) -> bytes:
    # Matching rules take no notice of case and of how many blanks there are. Values that are names lose those
    # after commas, and are escaped in another way.
    text = _ESCAPE.sub(_unescaped, value) if b"\\" in value else value
    return b" ".join(text.lower().split()).replace(b", ", b",")


def entries(file: Iterable[bytes]) -> Iterator[Entry]:
    """Yield every entry of an LDIF file.

    Raises:
        InputError: a line is not LDIF, or not that of an entry; the sentence names it.
    """
    lines: list[bytes] = []
    began = 0
    for number, raw in enumerate(itertools.chain(file, [b"\n"]), 1):
        if raw.strip(b"\r\n"):
            if not lines:
                began = number
            lines.append(raw.rstrip(b"\r\n") + b"\n")
        elif lines:
            entry = _entry(began, lines)
            if entry is not None:
                yield entry
            lines = []


def _entry(began: int, raw: list[bytes]) -> Entry | None:
    """Return the entry in the lines ``raw``; ``None`` where they are comments or the version only."""
    logical: list[tuple[int, bytes]] = []
    comment = False
    for number, line in enumerate(raw, began):
        text = line.rstrip(b"\n")
        if text.startswith(b" "):
            if not logical and not comment:
                raise InputError(f"line {number} continues a line that is not there")
            if not comment:
                logical[-1] = (logical[-1][0], logical[-1][1] + text[1:])
        elif text.startswith(b"#"):
            comment = True
        else:
            comment = False
            logical.append((number, text))
    skipped = 0
    if logical and logical[0][1].lower().startswith(b"version:"):
        skipped = logical[1][0] - began if len(logical) > 1 else 0
        logical = logical[1:]
    if not logical:
        return None
    pairs = [_line(number, text) for number, text in logical]
    name, dn = pairs[0]
    if name != b"dn":
        raise InputError(f"line {logical[0][0]}: an entry begins with `dn: NAME`, not with {_shown(name)}")
    if len(pairs) == 1 or pairs[1][0] == b"changetype":
        raise InputError(
            f"line {logical[0][0]}: {_shown(dn)} is no entry but a change; only entries are imported"
        )
    return Entry(began, b"".join(raw[skipped:]), dn, pairs[1:])


def _line(number: int, text: bytes) -> tuple[bytes, bytes]:
    name, colon, value = text.partition(b":")
    if not colon or not _NAME.fullmatch(name):
        raise InputError(f"line {number} is not LDIF: {_shown(text)}; write `attribute: value`")
    if value.startswith(b"<"):
        raise InputError(f"line {number}: a value that is to be read from a URL is not taken")
    if value.startswith(b":"):
        try:
            return name.lower(), base64.b64decode(value[1:].strip(), validate=True)
        except binascii.Error:
            raise InputError(f"line {number} is not LDIF: the value is no base64") from None
    return name.lower(), value.lstrip(b" ")


def _shown(text: bytes) -> str:
    shown = text[:60].decode("utf-8", "replace")
    return repr(shown + "…" if len(text) > 60 else shown)
