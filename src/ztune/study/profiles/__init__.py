"""Finds disk profiles: those that come with ztune (the TOML files here) and the user's own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from ztune import paths
from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.study.profile import PROFILE, Cache, FlashProfile, HddProfile
from ztune.toml.reading import Hints, explain, read_toml


def _shipped() -> Path:
    return Path(str(resources.files("ztune.study.profiles")))


def folders() -> list[Path]:
    """Return the folders that hold profiles, the user's own first."""
    return [paths.home() / "profiles", _shipped()]


@functools.cache
def shipped_caches() -> Mapping[str, Cache]:
    """Return what becomes of the write caches of ztune's own profiles, for layouts that don't say it."""
    return {path.stem: load(path).declared_cache for path in _shipped().glob("*.toml")}


def load(path: Path) -> HddProfile | FlashProfile:
    """Return the profile in the TOML file ``path``. Raises InputError with one sentence."""
    return _load_shipped(path) if path.parent == _shipped() else _load(path)


def _load(path: Path) -> HddProfile | FlashProfile:
    raw, text = read_toml(path)
    raw.setdefault("name", path.stem)
    try:
        return PROFILE.validate_python(raw)
    except ValidationError as error:
        model = HddProfile if raw.get("kind") == "hdd" else FlashProfile
        hints = Hints.of(list(model.model_fields))
        raise InputError(explain(error, raw, text, path, hints, f"a {raw.get('kind')} profile")) from None


_load_shipped = functools.cache(_load)  # a claim's layouts name the same few hundreds of times


def names() -> list[str]:
    """Return the names of all profiles that can be found, sorted."""
    return sorted({f.stem for folder in folders() if folder.is_dir() for f in folder.glob("*.toml")})


def find(name: str) -> HddProfile | FlashProfile:
    """Return the profile ``name``, or that in the file ``name``. Raises InputError with the known names."""
    if name.endswith(".toml"):
        return load(Path(name))
    for folder in folders():
        path = folder / f"{name}.toml"
        if path in set(folder.glob("*.toml")):
            profile = load(path)
            if profile.name != name:
                raise InputError(
                    f'{path}: name is "{profile.name}"; a profile is called as its file, "{name}"'
                )
            return profile
    known = names()
    if "/" in name:
        raise InputError(f'{name}: the file of a profile has a name that ends in ".toml"')
    raise InputError(f'there is no profile "{name}"; there are {", ".join(known)}.{suggest(name, known)}')
