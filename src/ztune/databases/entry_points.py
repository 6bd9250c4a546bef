"""What third parties' packages offer under a group of entry points, however broken one of them is."""

from __future__ import annotations

from importlib import metadata
from importlib.metadata import EntryPoint

from ztune.errors import ZtuneError

WORKLOADS = "ztune.workloads"
"""The old group, of workloads without a database's folder."""


def by_package(group: str) -> list[tuple[str, list[EntryPoint], str]]:
    """Return package, entry points of ``group``, and why its file of them can't be read, or nothing."""
    try:
        points = metadata.entry_points(group=group)
        return [(package(point), [point], "") for point in points]
    except Exception:
        pass  # One package's file is broken, which breaks the reading of all: they are read one by one.
    found = []
    seen: set[str] = set()
    for dist in metadata.distributions():
        name = "?"
        try:
            name = str(dist.name or "?")
            if name in seen:  # the first on the path is the one that is imported
                continue
            seen.add(name)
            found.append((name, [point for point in dist.entry_points if point.group == group], ""))
        except Exception as error:
            found.append((name, [], one_line(error)))
    return found


def package(point: EntryPoint) -> str:
    """Return the name of the package that offers ``point``."""
    name = point.dist.name if point.dist is not None else None
    return str(name or point.value)


def one_line(error: BaseException) -> str:
    """Return what ``error`` says, on one line and printable; its kind where it says nothing."""
    said = " ".join(str(error).split())
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)[:300]
    # A KeyError says the key alone.
    plain = isinstance(error, ImportError | ZtuneError) and text
    return text if plain else f"{type(error).__name__}{': ' if text else ''}{text}"
