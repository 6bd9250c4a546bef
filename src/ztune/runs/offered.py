"""What came of the settings of the database that a run tried on top of the layout it found (``offers``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KEY = "offers"
"""Where a run's ``outcome`` keeps what came of them."""


@dataclass(frozen=True)
class OfferedSettings:
    """What came of a run's offers, each as it is written: ``full_page_writes=off``.

    ``tried``: with a recording; ``left_out``: → why; ``waiting``: those beyond the limit. ``now``: of the
    recorded database, setting → value.
    """

    tried: tuple[str, ...] = ()
    left_out: Mapping[str, str] | None = None
    waiting: tuple[str, ...] = ()
    now: Mapping[str, str] | None = None

    def sentence(self) -> str:
        """Return it for people; "" where nothing was offered."""
        said = []
        if self.tried:
            said.append(f"On top of it {listed(self.tried)} {_was(self.tried)} tried.")
        said += [f"{text} was not tried: {why}." for text, why in (self.left_out or {}).items()]
        if self.waiting:
            more = len(self.tried) + len(self.waiting)
            said.append(f"Not tried: {listed(self.waiting)}; --settings {more} does, a recording each.")
        return " ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return asdict(self)


def kept(outcome: Mapping[str, Any]) -> OfferedSettings:
    """Return what came of a run's offers, from its ``outcome``."""
    found = outcome.get(KEY) or {}
    return OfferedSettings(
        tuple(found.get("tried", ())),
        found.get("left_out") or {},
        tuple(found.get("waiting", ())),
        found.get("now") or {},
    )


def listed(found: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return ", ".join(found[:-1]) + (" and " if len(found) > 1 else "") + found[-1]


def _was(found: Collection[str]) -> str:
    return "was" if len(found) == 1 else "were"
