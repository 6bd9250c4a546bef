"""Triples (subject, predicate, object) as N-Triples: from Debian's packages, from WordNet, or of one's own.

Every line is ``SUBJECT PREDICATE OBJECT .`` with single spaces, so that a reader divides it at the first two.
Nothing is invented: names, descriptions and glosses are the sources' own, so they compress as real text does.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.jobs import role_directories as places
from ztune.packages import install_command

WORDNET = Path("/usr/share/wordnet")
_PARTS = ("noun", "verb", "adj", "adv")
# The symbols of wndb(5) and what its manual calls them; an unknown one is kept as it is.
_POINTERS = {
    **{"!": "antonym", "@": "hypernym", "@i": "instance-hypernym", "~": "hyponym", "~i": "instance-hyponym"},
    **{"#m": "member-holonym", "#s": "substance-holonym", "#p": "part-holonym", "%m": "member-meronym"},
    **{"%s": "substance-meronym", "%p": "part-meronym", "=": "attribute", "+": "derivation"},
    **{";c": "domain-topic", "-c": "member-topic", ";r": "domain-region", "-r": "member-region"},
    **{";u": "domain-usage", "-u": "member-usage", "*": "entailment", ">": "cause", "^": "also"},
    **{"$": "verb-group", "&": "similar", "<": "participle", "\\": "pertainym"},
}
_RELATIONS = (
    *("Pre-Depends", "Depends", "Recommends", "Suggests", "Enhances", "Conflicts", "Breaks", "Replaces"),
    *("Provides",),
)
_TEXTS = (
    *("Maintainer", "Description", "Version", "Architecture", "Source", "Priority", "Homepage", "Multi-Arch"),
    *("Installed-Size", "Size", "Filename"),
)
_TERM = r"(?:<[^<>\"{}|^`\\\s]*>|_:[^\s]+)"
_LINE = re.compile(
    rf"\s*({_TERM})\s+(<[^<>\"{{}}|^`\\\s]*>)\s+"
    rf"({_TERM}|\"(?:[^\"\\]|\\.)*\"(?:@[A-Za-z0-9-]+|\^\^<[^<>\s]*>)?)\s*\.\s*(?:#.*)?"
)


@dataclass(frozen=True, slots=True)
class TripleFacts:
    """What is in a file of triples."""

    lines: int
    terms: int
    """Different subjects and objects: the vertices of the graph."""
    crc_sum: int
    """Sum of the CRC-32 of each triple: the same for the same triples in any order."""
    bytes: int
    sha256: str
    longest: int
    """Bytes of the longest subject or object."""


def facts(path: Path) -> TripleFacts:
    """Read the file ``path`` and return what is in it.

    Raises:
        ZtuneError: it isn't there or no file of triples as ``write`` makes them.
    """
    digest = hashlib.sha256()
    seen: set[bytes] = set()
    lines = total = size = 0
    try:
        with path.open("rb") as file:
            for raw in file:
                digest.update(raw)
                size += len(raw)
                text = raw[:-3]
                parts = text.split(b" ", 2)
                if len(parts) != 3 or not raw.endswith(b" .\n"):
                    raise ZtuneError(f"{path}: line {lines + 1} is no triple; load it anew")
                seen.update((parts[0], parts[2]))
                total += zlib.crc32(text)
                lines += 1
    except OSError as error:
        raise ZtuneError(f"{path}: can't be read: {error.strerror}; load it anew") from None
    return TripleFacts(lines, len(seen), total, size, digest.hexdigest(), max(map(len, seen), default=0))


def write(
    kind: str, target: Path, limit: int, own: str = "", *, progress: Callable[[float], None] | None = None
) -> TripleFacts:
    """Write the triples of ``kind`` to ``target`` and return what is in it.

    Args:
        kind: ``debian``, ``wordnet`` or ``file``.
        target: a new file.
        limit: the most triples, from the beginning; 0: all.
        own: path of an N-Triples file (``.gz`` too), for ``file``.
        progress: called with the share done, where it is known.

    Raises:
        InputError: the file isn't one of N-Triples; the sentence names the line.
        MissingError: what the triples come from isn't here.
    """
    found = {"debian": _debian, "wordnet": _wordnet}[kind]() if kind != "file" else _file(Path(own))
    count = 0
    with places.create(target) as out:
        for line in itertools.islice(found, limit or None):
            out.write(line.encode() + b" .\n")
            count += 1
            if progress is not None and limit and count % 10_000 == 0:
                progress(min(0.99, count / limit))
    if not count:
        raise InputError(f"{own or kind}: there are no triples in it")
    return facts(target)


def _iri(kind: str, name: str) -> str:
    return f"<urn:{kind}:{quote(name, safe='.+-_~:')}>"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def check(kind: str, own: str = "") -> None:
    """Raise MissingError or InputError if the triples of ``kind`` can't be had here."""
    if kind == "wordnet" and not (WORDNET / "data.noun").is_file():
        raise MissingError(
            f"WordNet was not found in {WORDNET}; install it with `{install_command('wordnet')}`, "
            "or take -p input=debian or a file of your own"
        )
    if kind == "debian" and shutil.which("apt-cache") is None:
        raise MissingError("apt-cache was not found: the package graph is Debian's; take -p input=wordnet")
    if kind == "file" and not Path(own).is_file():
        raise InputError(f"triples: {own or '(no file named)'} is no file; name one with -p file=PATH")


@dataclass(frozen=True, slots=True)
class Synset:
    """A meaning, as WordNet has it: a line of its data files."""

    name: str
    """Part of speech and offset in the file, such as ``noun:00001740``."""
    words: tuple[str, ...]
    pointers: tuple[tuple[str, str], ...]
    """Relation and name of another synset."""
    gloss: str


def synsets() -> Iterator[Synset]:
    """Yield every synset, in the order of the files.

    Raises:
        MissingError: WordNet isn't here.
    """
    check("wordnet")
    letters = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
    for part in _PARTS:
        with (WORDNET / f"data.{part}").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("  "):
                    continue
                head, _, gloss = line.partition("|")
                fields = head.split()
                at = 4 + 2 * int(fields[3], 16)
                words = tuple(fields[4:at:2])
                pointers = []
                for i in range(int(fields[at])):
                    symbol, offset, pos = fields[at + 1 + 4 * i : at + 4 + 4 * i]
                    pointers.append(
                        (_POINTERS.get(symbol, quote(symbol, safe="")), f"{letters[pos]}:{offset}")
                    )
                yield Synset(f"{part}:{fields[0]}", words, tuple(pointers), gloss.strip())


def _wordnet() -> Iterator[str]:
    """Yield synset–word, synset–relation–synset and synset–gloss, in the order of the files."""
    for synset in synsets():
        me = _iri("wn", synset.name)
        for word in synset.words:
            yield f"{me} <urn:wn:word> {_iri('wn', 'word:' + word)}"
        for relation, other in synset.pointers:
            yield f"{me} <urn:wn:{relation}> {_iri('wn', other)}"
        yield f"{me} <urn:wn:gloss> {_literal(synset.gloss)}@en"


def packages() -> Iterator[dict[str, str]]:
    """Yield the fields of every package that this system's package lists have.

    Raises:
        MissingError: this is no Debian.
    """
    check("debian")
    with subprocess.Popen(
        ["apt-cache", "dumpavail"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as popen:
        assert popen.stdout is not None
        try:
            yield from _stanzas(popen.stdout)
        finally:
            popen.kill()


def _debian() -> Iterator[str]:
    """Yield package–relation–package, –tag, –section, and –maintainer, –description and what else is known
    of every package.
    """
    for fields in packages():
        yield from _package(fields)


def _stanzas(pipe: IO[bytes]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    last = ""
    for raw in itertools.chain(pipe, [b"\n"]):
        line = raw.decode("utf-8", errors="replace").rstrip("\n")
        if not line:
            if "Package" in fields:
                yield fields
            fields = {}
        elif line[0] == " ":
            fields[last] = f"{fields.get(last, '')} {line.strip()}"
        else:
            last, _, value = line.partition(":")
            fields[last] = value.strip()


def _package(fields: dict[str, str]) -> Iterator[str]:
    me = _iri("deb", fields["Package"])
    for relation in _RELATIONS:
        for text in re.split(r"[,|]", fields.get(relation, "")):
            name = text.strip().partition(" ")[0].partition(":")[0]
            if name:
                yield f"{me} <urn:deb:{relation.lower()}> {_iri('deb', name)}"
    for tag in filter(None, (text.strip() for text in fields.get("Tag", "").split(","))):
        yield f"{me} <urn:deb:tag> {_iri('deb', 'tag:' + tag)}"
    if "Section" in fields:
        yield f"{me} <urn:deb:section> {_iri('deb', 'section:' + fields['Section'])}"
    for key in _TEXTS:
        if fields.get(key):
            yield f"{me} <urn:deb:{key.lower()}> {_literal(fields[key])}"


def _file(path: Path) -> Iterator[str]:
    check("file", str(path))
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            for number, line in enumerate(file, 1):
                if not line.strip() or line.lstrip().startswith("#"):
                    continue
                match = _LINE.fullmatch(line.rstrip("\n"))
                if match is None:
                    raise InputError(
                        f"{path}: line {number} is no N-Triple; write `<subject> <predicate> <object> .`"
                    )
                yield " ".join(match.groups())
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
