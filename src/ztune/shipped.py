"""What the databases' folders declare, as plain values: standard library only, since it is sent to hosts too.

``ztune.databases.database`` reads the same files with every field checked.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

FACTS = "database.toml"
"""The file in a database's folder."""

_others: dict[str, Mapping[str, Any]] = {}


@functools.cache
def _own() -> dict[str, dict[str, Any]]:
    found = {}
    for folder in sorted(resources.files("ztune.databases").iterdir(), key=lambda one: one.name):
        file = folder / FACTS
        if file.is_file():
            found[folder.name] = tomllib.loads(file.read_text("utf-8"))
    return found


def folders() -> dict[str, Mapping[str, Any]]:
    """Return the facts of every database: its folder's name → what its file says."""
    return {**_own(), **_others}


def add(name: str, facts: Mapping[str, Any]) -> None:
    """Add the facts of a third party's database, which has its folder elsewhere."""
    _others[name] = facts


def packages() -> dict[str, Mapping[str, str]]:
    """Return what databases need → family of operating systems → names of its packages. Ours come first."""
    found: dict[str, Mapping[str, str]] = {}
    for facts in folders().values():
        for thing, names in facts.get("packages", {}).items():
            found.setdefault(thing, names)
    return found


def jobs() -> dict[str, str]:
    """Return the short names of jobs of ztune's own → ``module:Class``."""
    return {
        name: f"ztune.databases.{folder}.{reference}"
        for folder, facts in _own().items()
        for name, reference in facts.get("jobs", {}).items()
    }
