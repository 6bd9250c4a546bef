"""BSON and the dumps that mongodump writes: read whole, or refused in one sentence."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import pytest
from mongo_dumps import END, WHOLE, archive, doc, header, packed

from ztune.databases.mongodb.onhost import bson, documents, dumps
from ztune.errors import InputError, MissingError

# What bsonspec.org itself shows as an example.
HELLO = b"\x16\x00\x00\x00\x02hello\x00\x06\x00\x00\x00world\x00\x00"
ARRAY = (
    b"1\x00\x00\x00\x04BSON\x00&\x00\x00\x00\x020\x00\x08\x00\x00\x00awesome\x00"
    b"\x011\x00333333\x14@\x102\x00\xc2\x07\x00\x00\x00\x00"
)


def test_bson_is_what_its_specification_shows() -> None:
    assert bson.encode({"hello": "world"}) == HELLO
    assert bson.encode({"BSON": ["awesome", 5.05, 1986]}) == ARRAY
    assert bson.text(HELLO, "hello") == "world" and bson.text(HELLO, "other") == ""
    with pytest.raises(TypeError, match="no BSON for set"):
        bson.encode({"a": set()})


def test_a_field_is_found_behind_all_others() -> None:
    value = {
        "text": "ü", "yes": True, "small": -5, "large": 2**40, "float": 1.5, "in": {"_id": 1},
        "list": [1, "x"], "oid": bson.ObjectId(b"123456789012"),
    }  # fmt: skip
    # A regular expression, binary data, null and a decimal, which are only ever passed over.
    rare = b"\x0bre\0a.*\0i\0" + b"\x05bin\0\2\0\0\0\0hi" + b"\x0anone\0" + b"\x13dec\0" + bytes(16)
    made = bson.wrap(bson.elements(value.items()) + rare + bson.elements([("_id", 7)]))
    assert bson.field(made, "_id") == (bson.INT32, struct.pack("<i", 7))
    assert bson.field(made, "small") == (bson.INT32, struct.pack("<i", -5))
    assert bson.field(made, "nothing") is None
    for broken in (made[:-1] + b"\7\0", made.replace(b"\x0bre\0", b"\x44re\0"), HELLO[:12] + b"\0"):
        with pytest.raises(ValueError, match="BSON"):
            bson.field(broken, "nothing")


def test_identifiers_sort_as_their_values_do() -> None:
    for values in (
        [-(2**40), -1, 0, 5, 2**31, 2**40],
        ["", "a", "ab", "b"],
        [bson.ObjectId(bytes([n] * 12)) for n in range(3)],
    ):
        keys = [bson.id_key(bson.encode({"_id": value})) for value in values]
        assert keys == sorted(keys) and len(set(keys)) == len(keys)
    # The first field or not, of any width, it is the same.
    assert bson.id_key(bson.encode({"x": 1, "_id": "k"})) == bson.id_key(bson.encode({"_id": "k"}))
    with pytest.raises(ValueError, match="no _id"):
        bson.id_key(HELLO)


def test_an_archive_is_read_but_for_the_server_s_own(tmp_path: Path) -> None:
    path = tmp_path / "own.gz"
    path.write_bytes(WHOLE)
    assert dumps.is_archive(path)
    assert list(dumps.documents(path)) == [
        ("shop.a", doc(1)),
        ("shop.a", doc(2)),
        ("shop.b", doc(1)),
        ("shop.a", doc(3)),
    ]
    found = documents.facts(path)
    assert (found.documents, found.namespaces) == (4, {"shop.a": 3, "shop.b": 1})
    assert found.bytes == 4 * len(doc(1)) and found.archive_bytes == len(WHOLE)
    assert found.sha256 == hashlib.sha256(WHOLE).hexdigest()
    # The same documents in other collections are something else.
    other = dumps.checksum("shop.b", doc(1)) + sum(dumps.checksum("shop.b", doc(n)) for n in (1, 2, 3))
    assert found.crc_sum != other


def test_a_large_document_is_read_over_the_ends_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "own.bson.gz"
    large = bson.encode({"_id": 1, "text": "x" * (3 << 20)})
    path.write_bytes(packed(large + doc(2) + large, 1))
    assert [len(found) for _, found in dumps.documents(path)] == [len(large), len(doc(2)), len(large)]
    assert not dumps.is_archive(path)


DATA = packed(doc(1) + doc(2))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (doc(1), "not packed by gzip"),
        (b"", "no documents in it"),
        (DATA[:-9], "cut off or damaged"),
        (DATA[:20] + b"\0\0\0\0" + DATA[24:], "damaged"),
        (packed(doc(1) + doc(2)[:-3]), "ends in the middle of a document"),
        (packed(doc(1) + b"\1\0"), "ends in the middle of a document"),
        (packed(doc(1)[:-1] + b"x"), "no BSON document"),
        (packed(b"hello world, this is text"), "no BSON document"),
        (packed(doc(1) + END), "no BSON document"),
        (packed(HELLO), "a document has no _id"),
        (packed(b""), "no documents in it"),
        (packed(dumps.MAGIC + bson.encode({"version": "0.1"})), "before its first collection"),
        (archive(header("a"), doc(1)), "in the middle of the collection shop.a"),
        (archive(header("a"), doc(1), END), "before the end of the collection shop.a"),
        (archive(header("a", end=True), END), "no documents in it"),
    ],
    # gzip notes the time: two processes that name the tests by their bytes have other tests.
    ids=lambda value: value if isinstance(value, str) else "dump",
)
def test_what_is_no_whole_dump_is_told_in_one_sentence(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "own.gz"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        documents.write("file", tmp_path / "made", 0, 1, str(path))
    text = str(caught.value)
    assert said in text and text.startswith(str(path)) and "\n" not in text


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match="is no file; name a dump with -p file=PATH"):
        documents.check("file", "/nowhere")


@pytest.mark.parametrize(("kind", "first"), [("wordnet", "synset"), ("debian", "Package")])
def test_real_documents_with_identifiers_of_their_own(tmp_path: Path, kind: str, first: str) -> None:
    path = tmp_path / "made.gz"
    try:
        found = documents.write(kind, path, 1500, 1)
    except (MissingError, InputError) as error:
        pytest.skip(str(error))
    assert found.documents == 1500 and found.namespaces == {dumps.NAMESPACE: 1500}
    made = [document for _, document in dumps.documents(path)]
    assert len({bson.id_key(document) for document in made}) == 1500
    assert bson.text(made[0], first)
    # As real text with the names of its fields does; neither filling nor noise.
    ratio = found.bytes / len(zlib.compress(b"".join(made), 1))
    assert 2.5 < ratio < 6
    # The seed decides the identifiers, and they alone.
    again = documents.write(kind, tmp_path / "again.gz", 1500, 1)
    other = documents.write(kind, tmp_path / "other.gz", 1500, 2)
    assert again == found and other.crc_sum != found.crc_sum and other.bytes == found.bytes
    if kind == "wordnet":
        assert found.crc_sum == 3198170154101
