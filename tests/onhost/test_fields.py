"""Dataclasses to JSON and back by their fields, and what is refused on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from ztune.onhost.fields import KeyedError, from_json, to_json


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    count: int = field(default=1, metadata={"ge": 1, "le": 9})


@dataclass(frozen=True)
class Outer:
    name: str = field(metadata={"alias": "called", "min_length": 1})
    parts: tuple[Inner, ...] = field(metadata={"alias": "part", "min_length": 1})
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    where: Path | None = None
    sure: bool = False


WHOLE: dict[str, Any] = {
    "called": "x",
    "part": [{"kind": "b", "count": 2}, {"kind": "a", "count": 1}],
    "sizes": {"s": [1, 2]},
    "where": "/srv",
    "sure": True,
}


def test_there_and_back() -> None:
    made = from_json(Outer, WHOLE)
    assert made == Outer("x", (Inner("b", 2), Inner()), {"s": (1, 2)}, Path("/srv"), True)
    assert to_json(made) == WHOLE and list(to_json(made)) == list(WHOLE)
    assert from_json(Outer, json.loads(json.dumps(to_json(made)))) == made
    assert from_json(Outer, {"called": "x", "part": [{}]}) == Outer("x", (Inner(),))


@pytest.mark.parametrize(
    ("changes", "path", "sentence"),
    [
        ({"called": ""}, ("called",), '"" is not text'),
        ({"called": "a\0b"}, ("called",), "is not text"),
        ({"called": 1}, ("called",), "1 is not text"),
        ({"part": []}, ("part",), "[] is not a list with at least one entry"),
        ({"part": [1]}, ("part", 0), "1 is not an object"),
        ({"part": [{"kind": "c"}]}, ("part", 0, "kind"), '"c" is not one of a, b'),
        ({"part": [{}, {"count": 10}]}, ("part", 1, "count"), "10 is not a whole number from 1 to 9"),
        ({"part": [{"count": True}]}, ("part", 0, "count"), "true is not a whole number from 1 to 9"),
        ({"part": [{"colour": 1}]}, ("part", 0), '"colour" is not a key here; the keys are kind, count'),
        ({"sizes": {"s": ["1"]}}, ("sizes", "s", 0), '"1" is not a whole number'),
        ({"sizes": {"s": 1}}, ("sizes", "s"), "1 is not a list"),
        ({"sizes": []}, ("sizes",), "[] is not an object"),
        ({"where": 1}, ("where",), "1 is not text"),
        ({"sure": "yes"}, ("sure",), '"yes" is neither true nor false'),
    ],
)
def test_each_fault_says_where_it_is(changes: dict[str, Any], path: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(KeyedError) as caught:
        from_json(Outer, {**WHOLE, **changes})
    assert caught.value.path == path and sentence in str(caught.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(KeyedError, match='"part" is missing'):
        from_json(Outer, {"called": "x"})
