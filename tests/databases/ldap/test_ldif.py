"""LDIF: a user's file is read and refused, content is counted the same however it is written; subscribers."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path

import lz4.block
import pytest

from ztune.databases.ldap.onhost import ldif, subscribers
from ztune.errors import InputError, ZtuneError

OWN = b"""version: 1

# of a small firm
dn: o=firm
objectClass: organization
o: firm

dn: cn=Doe\\, Jane,o=firm
objectClass: person
cn: Doe, Jane
sn:: RMO2ZQ==
description: two
 lines

"""
# The same as a server might write it.
AGAIN = b"""# entry-id: 2
dn: CN=Doe\\2C Jane, o=Firm
SN:: ZMO2ZQ==
DESCRIPTION: Twolines
objectClass: top
objectClass: person
creatorsName: cn=somebody
ds-sync-state: 12

dn: o=firm
o: firm
entryUUID: 1234
"""


def test_content_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "own.ldif"
    path.write_bytes(OWN)
    found = ldif.facts(path)
    assert (found.entries, found.suffix, found.bytes) == (2, "o=firm", len(OWN))
    assert found.sha256 == hashlib.sha256(OWN).hexdigest()
    assert ldif.counted(io.BytesIO(AGAIN)) == (2, found.content)
    for before, after in ((b"Twolines", b"Twoline"), (b"Jane", b"Joan"), (b"o: firm", b"o: firm\nl: Kiel")):
        count, content = ldif.counted(io.BytesIO(AGAIN.replace(before, after)))
        assert count == 2 and content != found.content
    assert ldif.counted(io.BytesIO(b"")) == (0, 0)
    with pytest.raises(ZtuneError, match="can't be read: No such file"):
        ldif.facts(tmp_path / "none")


@pytest.mark.parametrize("packed", [False, True])
def test_a_users_file_is_copied_entry_by_entry(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("own.ldif.gz" if packed else "own.ldif")
    path.write_bytes(gzip.compress(OWN) if packed else OWN)
    target = tmp_path / "made.ldif"
    assert ldif.write(target, ldif.own(path, 0)) == 2
    # Without the version, which stands alone; comments stay.
    assert target.read_bytes() == OWN.partition(b"\n\n")[2]
    # With ends of lines as other systems have them.
    path.write_bytes(gzip.compress(OWN.replace(b"\n", b"\r\n")) if packed else OWN.replace(b"\n", b"\r\n"))
    again = tmp_path / "again.ldif"
    assert ldif.write(again, ldif.own(path, 0)) == 2 and again.read_bytes() == target.read_bytes()
    assert ldif.write(target, ldif.own(path, 1)) == 1 and ldif.facts(target).entries == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"dn: o=a\no: a\n\nhello\n", "line 4 is not LDIF: 'hello'; write `attribute: value`"),
        (b"o: a\n", "line 1: an entry begins with `dn: NAME`, not with 'o'"),
        (b" x\n", "line 1 continues a line that is not there"),
        (b"dn: o=a\nchangetype: delete\n", "line 1: 'o=a' is no entry but a change"),
        (b"dn: o=a\n", "is no entry but a change"),
        (b"dn: o=a\njpegPhoto:< file:///etc/passwd\n", "line 2: a value that is to be read from a URL"),
        (b"dn: o=a\no:: %%%\n", "line 2 is not LDIF: the value is no base64"),
        (b"dn: o=a\no: a\n\ndn: o=b\no: b\n", "line 4: 'o=b' does not lie below the first entry"),
        (b"\x00\x01\x02 binary\n", "line 1 is not LDIF"),
    ],
)
def test_what_is_no_ldif_is_named_with_its_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "bad.ldif"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        ldif.write(tmp_path / "made.ldif", ldif.own(path, 0))
    assert said in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_broken_archive_is_told(tmp_path: Path) -> None:
    path = tmp_path / "own.ldif.gz"
    path.write_bytes(gzip.compress(OWN * 100)[:60])
    with pytest.raises(InputError, match="can't be read: "):
        list(ldif.own(path, 0))


def test_lines_are_base64_where_they_must_be() -> None:
    assert ldif.line("cn", "Anna Huber") == b"cn: Anna Huber\n"
    for value in ("Jürgen", " blank", "blank ", ":colon", "<url", "two\nlines"):
        raw = ldif.line("cn", value)
        assert raw.startswith(b"cn:: ") and raw.count(b"\n") == 1
        [entry] = ldif.entries(io.BytesIO(b"dn: o=a\n" + raw))
        assert entry.values == [(b"cn", value.encode())]


def test_subscribers_are_the_same_everywhere_and_compress_as_real_data(tmp_path: Path) -> None:
    path = tmp_path / "telco.ldif"
    assert ldif.write(path, subscribers.entries(500, 16, 1)) == 500
    found = ldif.facts(path)
    assert found.sha256 == "6b015ea6f39d0c54e7c43fd2b3717ad51b83e40ce087db0bc6b4bedb6b16fad3"
    assert (found.entries, found.suffix) == (500, subscribers.SUFFIX)
    assert 4000 < found.bytes / 500 < 4800 and found.longest < 5500
    names = [entry.dn for entry in ldif.entries(path.open("rb"))]
    assert len(set(names)) == 500
    data = path.read_bytes()
    blocks = [data[at : at + 16384] for at in range(0, len(data) - 16384, 16384)]
    packed = sum(len(lz4.block.compress(block, store_size=False)) for block in blocks)
    assert 1.8 < len(blocks) * 16384 / packed < 2.6
    assert 2.6 < len(blocks) * 16384 / sum(len(zlib.compress(block)) for block in blocks) < 3.8
    ldif.write(path, subscribers.entries(500, 16, 2))
    assert ldif.facts(path).content != found.content
    ldif.write(path, subscribers.entries(500, 0, 1))
    assert ldif.facts(path).bytes < found.bytes / 3
