"""Triples: from WordNet as it is installed, from Debian's package lists, from files."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import pytest

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.jobs import triples

OWN = """# a comment
<urn:a> <urn:p> <urn:b> .

_:x  <urn:p>\t"two words and a \\" . "@en .   # and another
<urn:a> <urn:p> <urn:a> .
"""


@pytest.mark.parametrize("packed", [False, True])
def test_own_files_are_made_even(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("own.nt.gz" if packed else "own.nt")
    path.write_bytes(gzip.compress(OWN.encode()) if packed else OWN.encode())
    found = triples.write("file", tmp_path / "made", 0, str(path))
    text = (tmp_path / "made").read_bytes()
    assert text.decode().splitlines() == [
        "<urn:a> <urn:p> <urn:b> .",
        '_:x <urn:p> "two words and a \\" . "@en .',
        "<urn:a> <urn:p> <urn:a> .",
    ]
    assert (found.lines, found.terms, found.bytes) == (3, 4, len(text))
    assert found.longest == len('"two words and a \\" . "@en')
    assert found.sha256 == hashlib.sha256(text).hexdigest()
    assert found.crc_sum == sum(zlib.crc32(line[:-2]) for line in text.splitlines())
    assert triples.write("file", tmp_path / "less", 1, str(path)).lines == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<a> <b> .\n", "line 1 is no N-Triple"),
        ("<a> <b> <c> .\n<a> <b> <c>\n", "line 2 is no N-Triple"),
        ("<a> _:b <c> .\n", "line 1"),
        ('"a" <b> <c> .\n', "line 1"),
        ("\n# nothing\n", "no triples in it"),
    ],
)
def test_what_is_no_file_of_triples(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.nt"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        triples.write("file", tmp_path / "made", 0, str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no file; name one with -p file=PATH"):
        triples.check("file", str(tmp_path / "none"))
    broken = tmp_path / "broken.nt.gz"
    broken.write_bytes(gzip.compress(OWN.encode())[:-10])
    with pytest.raises(InputError, match="can't be read"):
        triples.write("file", tmp_path / "made", 0, str(broken))


def test_a_damaged_input_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "made"
    path.write_bytes(b"<a> <b> <c> .\n<a> <b> ")
    with pytest.raises(ZtuneError, match="line 2 is no triple"):
        triples.facts(path)


def test_wordnet_is_the_same_everywhere(tmp_path: Path) -> None:
    try:
        triples.check("wordnet")
    except MissingError as error:
        pytest.skip(str(error))
    found = triples.write("wordnet", tmp_path / "made", 2000)
    assert found.sha256 == "90872d1253ab9461f5995a42d830c38ec775e35b3abc6eff1927d5627f93e87d"
    text = (tmp_path / "made").read_text(encoding="utf-8")
    assert "<urn:wn:noun:00001740> <urn:wn:word> <urn:wn:word:entity> .\n" in text
    assert "<urn:wn:noun:00001740> <urn:wn:hyponym> <urn:wn:noun:00001930> .\n" in text
    # Text that compresses as text does, not filling.
    assert 2 < len(text) / len(zlib.compress(text.encode(), 1)) < 8


def test_the_package_graph(tmp_path: Path) -> None:
    try:
        triples.check("debian")
    except MissingError as error:
        pytest.skip(str(error))
    try:
        found = triples.write("debian", tmp_path / "made", 5000)
    except InputError as error:
        pytest.skip(f"this system has no package lists: {error}")
    text = (tmp_path / "made").read_text(encoding="utf-8")
    relations = {line.split(" ", 2)[1] for line in text.splitlines()}
    assert {"<urn:deb:depends>", "<urn:deb:section>", "<urn:deb:maintainer>"} <= relations
    assert found.lines == 5000 == text.count(" .\n") and 100 < found.terms < 10_000


def test_stanzas_become_relations() -> None:
    import io

    text = b"""Package: one
Version: 1
Depends: two (>= 1), three:any | four
Tag: role::program, uitoolkit::sdl,
 works-with::db
Description: a "short" one

Package: two
Section: db
"""
    found = [line for fields in triples._stanzas(io.BytesIO(text)) for line in triples._package(fields)]
    assert found == [
        *(f"<urn:deb:one> <urn:deb:depends> <urn:deb:{name}>" for name in ("two", "three", "four")),
        *(
            f"<urn:deb:one> <urn:deb:tag> <urn:deb:tag:{tag}>"
            for tag in ("role::program", "uitoolkit::sdl", "works-with::db")
        ),
        '<urn:deb:one> <urn:deb:description> "a \\"short\\" one"',
        '<urn:deb:one> <urn:deb:version> "1"',
        "<urn:deb:two> <urn:deb:section> <urn:deb:section:db>",
    ]
