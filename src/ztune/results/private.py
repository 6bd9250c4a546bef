"""What may leave this machine: numbers, words of ztune's own, and nothing that somebody named.

Everything here says what is let through; what is not known stays. Names of hosts and users, paths, commands,
texts of errors, and the names of pools, datasets, layouts, studies and disk profiles of the user's own do not
pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ztune.databases import database, registry
from ztune.errors import InputError
from ztune.onhost.layout import Layout
from ztune.results.row import WITHHELD, Scalar
from ztune.study import FlashProfile, HddProfile, profiles
from ztune.units import parse_size

_NUMBERS = re.compile(r"\d+(?:\.\d+){1,2}(?:-\d+\b)?")
_ENGINE = re.compile(r"\d+(?:\.\d+)*(?:\+[0-9a-f]{6,40})?")
_SYSTEM = re.compile(r"(Linux|FreeBSD|SunOS)\b")
_CPU = re.compile(r"[\w ()@.,+-]{1,80}")
_MACHINE = re.compile(r"[a-z0-9_]{1,16}")
_AMOUNT = re.compile(r"-?\d+(?:\.\d+)? ?(?:[KMGTPE]i?B?|[kmgt]b?|B|ms|us|s|min|h|d|%)?")
_SWITCHES = {"on", "off", "true", "false", "yes", "no", "none", "default", "auto"}


def version(text: object) -> str:
    """Return the number in the text of a version: "2.3.2-1~bpo12" → "2.3.2-1"; empty without one."""
    found = _NUMBERS.search(str(text or ""))
    return "" if found is None else found[0]


def engine(text: object) -> str:
    """Return the version of an engine or a mount of ztune's; empty for what is none."""
    return _whole(_ENGINE, text)


def kernel(text: object) -> str:
    """Return system and number: "Linux 6.1.0-28-amd64" → "Linux 6.1.0-28". Local names at its end stay."""
    system = _SYSTEM.match(str(text or ""))
    return f"{system[1] if system else 'Linux'} {version(text)}" if version(text) else ""


def cpu(text: object) -> str:
    """Return the model of a processor; empty for what does not look like one."""
    return _whole(_CPU, text)


def machine(text: object) -> str:
    """Return an architecture such as x86_64."""
    return _whole(_MACHINE, text)


def _whole(pattern: re.Pattern[str], text: object) -> str:
    return str(text) if pattern.fullmatch(str(text or "")) else ""


def count(value: object) -> int | None:
    """Return a whole number, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def workload(name: object) -> str:
    """Return the name of a workload of ztune's; empty for any other."""
    found = database.of_workload(name) if isinstance(name, str) else None
    return str(name) if found is not None and found.own else ""


def parameters(name: str, given: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the parameters of ztune's workload ``name``: numbers, sizes, switches, choices.

    Of a text only whether it is the default's: else it is "withheld". Parameters that the workload has no
    more are left out.
    """
    out: dict[str, Scalar] = {}
    for one in registry.get(name).Parameters.docs() if name else ():
        value = given.get(one.name)
        if isinstance(value, bool | int | float):
            out[one.name] = value
        elif isinstance(value, str) and (one.type != "text" or value != one.default):
            words = set(one.allowed.split(", ")) if one.type == "choice" else _SWITCHES
            fine = one.type != "text" and (value in words or value == one.default or _is_size(value))
            out[one.name] = value if fine else WITHHELD
    return out


def _is_size(value: str) -> bool:
    try:
        parse_size(value)
    except ValueError:
        return False
    return True


def layout(given: Layout, called: Mapping[str, str], of: str = "") -> Layout:
    """Return ``given`` without names of the user's: pools are pool1, pool2 …, datasets are called by their
    first role, profiles as ``called`` says.

    A setting of a database that ztune does not know is left out, and a value that is neither an amount nor
    one of its words is "withheld". ``of``: the workload, whose parameters are treated so too.
    """
    pools = {pool.name: f"pool{i}" for i, pool in enumerate(given.pools, start=1)}
    return replace(
        given,
        name="base",
        description="",
        declared=None,
        disks={},
        pools=tuple(
            replace(
                pool,
                name=pools[pool.name],
                vdevs=tuple(replace(vdev, profile=called.get(vdev.profile, "own")) for vdev in pool.vdevs),
            )
            for pool in given.pools
        ),
        datasets=tuple(
            replace(one, name=f"{pools[one.pool]}/{one.key}" if one.rest else pools[one.pool])
            for one in given.datasets
        ),
        database={
            name: value if _plain(name, value) else WITHHELD
            for name, value in given.database.items()
            if name in _settings()
        },
        workload={name: str(value) for name, value in parameters(of, given.workload).items()},
    )


def _plain(name: str, value: str) -> bool:
    words = _SWITCHES | _settings()[name]
    return value.lower() in words or _AMOUNT.fullmatch(value) is not None


@cache
def _settings() -> dict[str, frozenset[str]]:
    """Return every setting that a database of ztune's knows → the words that it knows as its values."""
    found: dict[str, set[str]] = {}

    def add(names: Iterable[str], words: Iterable[str] = ()) -> None:
        for name in names:
            found.setdefault(name, set()).update(words)

    for one in database.own():
        facts = one.facts
        add([*facts.durability.neutral, *facts.settings.reload, *facts.settings.anew, *facts.settings.pages])
        for name, setting in facts.durability.settings.items():
            add([name], setting.answers(name))
        for both in facts.durability.combined:
            for name, words in both.settings.items():
                add([name], words)
    return {name: frozenset(words) for name, words in found.items()}


def profile_names(given: Mapping[str, HddProfile | FlashProfile]) -> dict[str, str]:
    """Return for each profile of a study how it is called elsewhere: ztune's by its name, the user's own
    ``own-hdd``, ``own-flash``, ``own-flash-2`` …
    """
    out: dict[str, str] = {}
    for name, profile in sorted(given.items()):
        if _shipped(name) == profile:
            out[name] = name
            continue
        own = f"own-{profile.kind}"
        same = sum(other.startswith(own) for other in out.values())
        out[name] = f"{own}-{same + 1}" if same else own
    return out


@cache
def _shipped(name: str) -> HddProfile | FlashProfile | None:
    """Return ztune's own profile of that name; a file of the user's in its place is none."""
    path = Path(profiles.folders()[-1]) / f"{name}.toml"
    try:
        return profiles.load(path) if path.is_file() else None
    except InputError:
        return None
