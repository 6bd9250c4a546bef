"""How many there are of something, in words."""

from __future__ import annotations

from ztune.units import counted, plural


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
