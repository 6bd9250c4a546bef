"""docs/recommendation.md against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from candidates_made import candidate

from ztune.advice.hazards import hazard_rules
from ztune.advice.model import Level, Verdict
from ztune.advice.rules import OPERATORS
from ztune.analysis.metrics import ALIASES
from ztune.analysis.rank import order
from ztune.study import OBJECTIVES

TEXT = (Path(__file__).parents[2] / "docs" / "recommendation.md").read_text()


def test_every_rule_is_listed_with_its_severity() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| (\w+) \| ([\w ]+) \|$", TEXT, re.MULTILINE)
    assert listed == [(r.id, r.severity, r.about) for r in hazard_rules()]


def test_words_are_those_of_the_code() -> None:
    for word in (*get_args(Verdict), *get_args(Level)):
        assert f"| {word} |" in TEXT
    for word in (*OBJECTIVES, *ALIASES):
        assert f"`{word}`" in TEXT
    assert f"`{' '.join(OPERATORS)}`" in TEXT


def test_the_example_comes_out_as_written() -> None:
    rows = re.findall(r"^\| ([A-D]) \| (\d+) s \| (\d+) GiB \| (\d+) GiB \|$", TEXT, re.MULTILINE)
    assert len(rows) == 4
    field = [candidate(name, float(t), float(s), float(w)) for name, t, s, w in rows]
    ranked = [r.candidate.name for r in order(field, ("modelled_s", "allocated", "written"), 0.05)]
    assert f"is {', '.join(ranked)}." in " ".join(TEXT.split())
