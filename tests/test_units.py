"""How many there are of something, in words, and what is a number."""

from __future__ import annotations

import pytest

from ztune.units import counted, plural, whole


def test_more_than_one() -> None:
    nouns = ("row", "entry", "vertex", "key", "batch", "index", "pass")
    assert [plural(noun) for noun in nouns] == [
        "rows",
        "entries",
        "vertices",
        "keys",
        "batches",
        "indexes",
        "passes",
    ]


def test_a_number_with_its_noun() -> None:
    assert [counted(n, "entry") for n in (0, 1, 2000)] == ["0 entries", "1 entry", "2,000 entries"]
    assert counted(2, "read or write", "reads and writes") == "2 reads and writes"


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "²", "٣", "1" * 21, "9" * 5000, "1_0", " 1"])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole(text) is None
    assert whole("18446744073709551615") == 2**64 - 1 and whole("0") == 0
