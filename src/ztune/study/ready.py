"""The ready studies that come with ztune (the folder ``studies/``), and the user's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from ztune import paths
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.study.loader import load_study
from ztune.study.study import Study


def folders() -> list[Path]:
    """Return the folders that hold studies, the user's own (``studies`` in the state directory) first."""
    shipped = Path(str(resources.files("ztune.study"))) / "ready"  # a link to studies/ in the source tree
    return [paths.home() / "studies", shipped]


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
    return load_study(known[name])
