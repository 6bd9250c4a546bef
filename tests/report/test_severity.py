"""Hazards of one rule are said once, with all names, where they differ in a name alone."""

from __future__ import annotations

import pytest

from ztune.advice.model import Hazard
from ztune.report.severity import grouped


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        (
            ("atime is on for a/d: reads.", "atime is on for a/w: reads."),
            "atime is on for a/d and a/w: reads.",
        ),
        (("Pool a has one disk.", "Pool b has one disk."), "Pool a has one disk. The same holds for b."),
        (("a is full.", "b is full.", "c is full."), "a is full. The same holds for b and c."),
        (("It is 16K on a/d.", "It is 8K on a/w."), "It is 16K on a/d. It is 8K on a/w."),
        (("All of it.", "All of it."), "All of it."),
        (("One.",), "One."),
    ],
)
def test_one_sentence_for_several(sentences: tuple[str, ...], said: str) -> None:
    hazards = [
        Hazard(id="atime-on", severity="note", about="atime", sentence=text, source="") for text in sentences
    ]
    assert [h.sentence for h in grouped(hazards)] == [said]
