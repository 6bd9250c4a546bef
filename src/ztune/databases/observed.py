"""What databases say of their own settings, with those of third parties: see ``onhost.look.databases``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from ztune.databases.database import every
from ztune.onhost.look import databases as look
from ztune.onhost.look.databases import SettingsReader
from ztune.onhost.look.reading import ObservedDatabase


def readers() -> Iterator[SettingsReader]:
    """Yield the readers of all databases that are here."""
    for one in every():
        modules = {known.reader: known.alone for known in one.facts.observed}
        for module, alone in modules.items():
            yield SettingsReader(one.name, partial(one.load, module), alone, one.own)


def databases(
    pids: Iterable[int] = (), roots: Iterable[str | Path] = (), user: str | None = None
) -> tuple[tuple[ObservedDatabase, ...], tuple[str, ...]]:
    """Return what ``onhost.look.databases`` does with all readers."""
    return look.databases(readers(), pids, roots, user)
