"""What a setting that is a switch may be called: one table for all databases."""

from __future__ import annotations

# PostgreSQL's manual, Setting Parameters. PostgreSQL takes their beginnings too. Elsewhere these mean other
# things, as "f" may be "fast" to MariaDB, so they are not known here.
_SWITCH = {
    **dict.fromkeys(("on", "true", "yes", "1"), "on"),
    **dict.fromkeys(("off", "false", "no", "0"), "off"),
}


def switch(value: str) -> str | None:
    """Return "on" or "off", whichever ``value`` of a switch means; None where it is neither."""
    return _SWITCH.get(value.lower())
