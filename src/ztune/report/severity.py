"""Hazards as all reports show them: in one colour each, those of one rule joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ztune.advice.model import Hazard
from ztune.units import listed

SEVERITY = {"danger": "bold red", "warning": "yellow", "note": "cyan"}


def grouped(hazards: Iterable[Hazard]) -> list[Hazard]:
    """Return one hazard for each rule and source; sentences of the same rule are joined."""
    found: dict[str, list[Hazard]] = {}
    for hazard in hazards:
        found.setdefault(hazard.id, []).append(hazard)
    return [
        several[0].model_copy(update={"sentence": _joined([h.sentence for h in several])})
        for several in found.values()
    ]


def _joined(sentences: Sequence[str]) -> str:
    """Return sentences as one that names all where they differ in one name alone; else one after another."""
    columns = list(zip(*(text.split(" ") for text in sentences), strict=False))
    apart = [i for i, words in enumerate(columns) if len(set(words)) > 1]
    if len({text.count(" ") for text in sentences}) > 1 or len(apart) != 1:
        return " ".join(dict.fromkeys(sentences))
    words, at = sentences[0].split(" "), apart[0]
    names = list(dict.fromkeys(word.rstrip(":,.") for word in columns[at]))
    if at <= 1:  # "Pool a has …": the verb is that of one
        return f"{sentences[0]} The same holds for {listed(names[1:])}."
    words[at] = listed(names) + words[at][len(names[0]) :]
    return " ".join(words)
