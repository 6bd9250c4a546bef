"""The ready studies that come with ztune (the folder ``studies/``), and the user's own."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path

from ztune import paths
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.study import profiles
from ztune.study.loader import load_study
from ztune.study.study import Study


def folders() -> list[Path]:
    """Return the folders that hold studies, the user's own (``studies`` in the state directory) first."""
    return [paths.home() / "studies", _shipped()]


@functools.cache
def _shipped() -> Path:
    return Path(str(resources.files("ztune.study"))) / "ready"  # a link to studies/ in the source tree


_load_shipped = functools.cache(load_study)


def unchanging(path: Path) -> bool:
    """Say whether the study, publication or claims in ``path`` say the same as long as this process runs:
    the file comes with ztune, and none of the user's own replaces one that it may name.
    """
    if not path.is_relative_to(_shipped()):
        return False
    return not any(
        (shipped / each.relative_to(own)).exists()
        for own, shipped in (folders(), profiles.folders())
        for depth in ("*.toml", "*/*.toml")
        for each in own.glob(depth)
    )


def files() -> dict[str, Path]:
    """Return name → file of all ready studies, sorted by name."""
    found: dict[str, Path] = {}
    for folder in reversed(folders()):
        found.update({f.stem: f for f in sorted(folder.glob("*.toml"))})
    return dict(sorted(found.items()))


def is_path(name: str) -> bool:
    """Say whether ``name`` means a file rather than a ready study."""
    try:
        return name.endswith(".toml") or Path(name).is_file()
    except OSError:  # too long to be a file's
        return False


def find(name: str) -> Study:
    """Return the study in the file ``name``, or the ready study of that name. Raises InputError."""
    if is_path(name):
        return load_study(Path(name))
    known = files()
    if name not in known:
        raise InputError(
            f'there is no study "{name}"; name a TOML file, or one of '
            f"{', '.join(known)}.{suggest(name, known)}"
        )
    path = known[name]
    return _load_shipped(path) if unchanging(path) else load_study(path)
