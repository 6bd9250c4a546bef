"""What came of the settings of the database that a run tried on top of the layout it found (``offers``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ztune.onhost.fields import from_json, to_json
from ztune.units import listed

KEY = "offers"
"""Where a run's ``outcome`` keeps what came of them."""


@dataclass(frozen=True)
class OfferedSettings:
    """What came of a run's offers, each as it is written: ``full_page_writes=off``.

    ``tried``: with a recording; ``left_out``: → why; ``waiting``: those beyond the limit. ``now``: of the
    recorded database, setting → value.
    """

    tried: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    now: Mapping[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Return it for people; "" where nothing was offered."""
        said = []
        if self.tried:
            verb = "was" if len(self.tried) == 1 else "were"
            said.append(f"On top of it {listed(self.tried)} {verb} tried.")
        said += [f"{text} was not tried: {why}." for text, why in self.left_out.items()]
        if self.waiting:
            more = len(self.tried) + len(self.waiting)
            said.append(f"Not tried: {listed(self.waiting)}; --settings {more} does, a recording each.")
        return " ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return dict(to_json(self))


def kept(outcome: Mapping[str, Any]) -> OfferedSettings:
    """Return what came of a run's offers, from its ``outcome``."""
    return from_json(OfferedSettings, outcome.get(KEY) or {})
