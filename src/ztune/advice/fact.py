"""What a fact of an observation is: a name that rules ask for, its meaning in words, and its unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ztune.analysis.units import amount, count, show
from ztune.units import format_size

Unit = Literal["size", "bytes", "bytes/s", "count", "per s", "share", "percent", "s", "ratio", "text", "flag"]
"""size and bytes are both bytes; a size is shown exactly ("8K"), bytes with three digits ("1.50 GiB"). A
share is 0 to 1. A text may be a list of texts."""
NUMBERS: tuple[Unit, ...] = (
    "size", "bytes", "bytes/s", "count", "per s", "share", "percent", "s", "ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """``words`` name it in "Not known: …" and stand before its value: "share of the pool in use 91%"."""

    words: str
    unit: Unit = "text"


@dataclass(frozen=True)
class Subject:
    """What rules of one scope are asked about: a role, a dataset, a pool, the host, a database.

    ``about`` names it: {"role": "data", "dataset": "tank/pg"}; the host has no name. ``facts`` are those of
    its scope, None where not known.
    """

    scope: str
    about: dict[str, str]
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """Its name in words: "role data (tank/pg)"."""
        name = self.about.get(self.scope)
        if name is None:
            return "this host"
        text = f"{self.scope} {name}"
        return (
            f"{text} ({self.about['dataset']})" if self.scope == "role" and "dataset" in self.about else text
        )


def shown(value: Any, unit: Unit) -> str:
    """Return a known ``value`` as people read it."""
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    match unit:
        case "size":
            return format_size(value)
        case "bytes":
            return amount(value)
        case "bytes/s":
            return f"{amount(value)}/s"
        case "count":
            return count(value)
        case "per s":
            return f"{value:,.1f}/s" if value < 100 else f"{value:,.0f}/s"
        case "share":
            return show(value, "share")
        case "percent":
            return f"{value}%"
        case "s":
            return show(value, "s")
        case "ratio":
            return f"{value:.3g}"
        case "flag":
            return "yes" if value else "no"
    return str(value)
