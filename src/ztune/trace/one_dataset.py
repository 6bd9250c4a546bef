"""Which roles can't have datasets of their own, by what the trace shows: a dataset is a directory of its own.

Files of one directory are on one dataset, whatever their roles; a rename or a hard link from one dataset to
another fails (rename(2), link(2): EXDEV). Where a setting of the database puts a role elsewhere, its
``database.toml`` says so, and its files beside others are no obstacle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ztune.databases.database import of_layouts
from ztune.onhost.words import ROLES
from ztune.trace.manifest import Manifest
from ztune.trace.roles import Present, databases_of, names_in


@dataclass(frozen=True)
class Together:
    """Two roles that need one dataset. ``why``: a sentence that names the files which show it."""

    roles: tuple[str, str]
    why: str


def together(manifest: Manifest) -> list[Together]:
    """Return the pairs of roles that share a directory, or whose files move between directories of both.

    One reason for each pair: renames come before directories, as no setting changes them.
    """
    files = [file for file in manifest.files if file.role is not None]
    by_folder: dict[str, dict[str, str]] = {}
    for file in files:
        assert file.role is not None
        by_folder.setdefault(_folder(file.path), {}).setdefault(file.role, file.path)
    found: dict[tuple[str, str], Together] = {}

    def note(one: str, other: str, why: str) -> None:
        pair = (one, other) if ROLES.index(one) < ROLES.index(other) else (other, one)
        found.setdefault(pair, Together(pair, why))

    for file in files:
        assert file.role is not None
        for name in file.names:
            folder = _folder(name.path)
            if folder == _folder(file.path) or file.role in by_folder.get(folder, {}):
                continue
            for role, other_path in by_folder.get(folder, {}).items():
                note(
                    file.role,
                    role,
                    f"the database moved or linked {name.path}, beside {other_path} ({role}), to {file.path} "
                    f"({file.role}), which can't be done from one dataset to another",
                )
    present = Present(names_in(manifest))
    beside: dict[str, list[str]] = {}
    for file in files:
        beside.setdefault(_folder(file.path), []).append(file.path)
    for roles in by_folder.values():
        if len(roles) == 1:
            continue
        apart = _apart(beside[_folder(next(iter(roles.values())))], present)
        names = sorted(roles, key=ROLES.index)
        for i, one in enumerate(names):
            for other in names[i + 1 :]:
                if not {one, other} & set(apart):
                    note(
                        one,
                        other,
                        f"{_last(roles[one])} ({one}) and {_last(roles[other])} ({other}) are in one "
                        f"directory, {_folder(roles[one])}, which is on one dataset",
                    )
    return list(found.values())


def _apart(paths: Iterable[str], present: Present) -> Mapping[str, str]:
    """Return the roles that settings of the databases with files at ``paths`` put elsewhere → the setting."""
    known = of_layouts(set(databases_of(paths, present)))
    return {role: setting for one in known for role, setting in one.facts.apart.items()}


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _last(path: str) -> str:
    return path.rpartition("/")[2]
