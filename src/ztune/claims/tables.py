"""A TOML file as frozen dataclasses; what is wrong with it is one sentence with file, line and key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ztune.errors import InputError
from ztune.onhost.words import suggest
from ztune.study import Layout, profiles, ready
from ztune.study.layout import plain, with_settings
from ztune.study.tables import fields_of
from ztune.toml.positions import line_of, positions
from ztune.toml.reading import Hints, Loc, explain, read_toml, show_path

STRICT = {"extra": "forbid", "allow_inf_nan": False}
"""What pydantic refuses in each table."""

Scalar = str | int | float | bool
T = TypeVar("T")


# To make one takes longer than all that a file has to be checked for.
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


class File:
    """A TOML file that was read: its text stays, so that errors name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw, self._text = read_toml(path)

    def parse(self, model: type[T], inner: Mapping[str, type], what: str) -> T:
        """Return the file as ``model``. ``inner``: the model of each table in it; ``what``: what the file is.

        Raises InputError.
        """

        def keys(loc: Loc) -> list[str]:
            table = next((p for p in reversed(loc[:-1]) if p in inner), "")
            found = fields_of(inner[str(table)] if table else model)
            return [field.alias or name for name, field in found.items()]

        def description(loc: Loc) -> str:
            table = next((p for p in reversed(loc[:-1]) if p in inner), "")
            for name, field in fields_of(inner[str(table)] if table else model).items():
                if loc[-1] in {name, field.alias} and field.description:
                    return f": {field.description[:1].lower()}{field.description[1:].rstrip('.')}"
            return ""

        hints = Hints(keys, lambda loc: suggest(str(loc[-1]), keys(loc)), description)
        try:
            found: T = _adapter(model).validate_python(self.raw)
            return found
        except ValidationError as error:
            raise InputError(explain(error, self.raw, self._text, self.path, hints, what)) from None

    def wrong(self, loc: Loc, message: str) -> InputError:
        """Return the error that ``message`` is wrong at ``loc``."""
        line = line_of(positions(self._text), loc)
        return InputError(f"{self.path}{f':{line}' if line else ''}: {show_path(loc)}: {message}")

    def changed(self, base: Layout, changes: Mapping[str, Any], name: str, loc: Loc) -> Layout:
        """Return ``base`` with ``changes``, called ``name``; ``loc``: where they stand. Raises InputError."""
        for key in changes:
            if key.startswith("workload."):  # the recording would be of a job without it
                raise self.wrong(
                    loc, f'"{key}" is a parameter of the workload; those stand in `parameters`, not in `set`'
                )
        try:
            found = with_settings(base, changes, name)
            for profile in found.profiles():
                profiles.find(profile)
        except ValueError as error:
            raise self.wrong(loc, plain(error)) from None
        except InputError as error:
            raise self.wrong(loc, str(error)) from None
        return found


def files(folder: str) -> dict[str, Path]:
    """Return name → file of the TOML files in ``folder`` of ``studies``, the user's own before ztune's."""
    found: dict[str, Path] = {}
    for studies in reversed(ready.folders()):
        found.update({f.stem: f for f in sorted((studies / folder).glob("*.toml"))})
    return dict(sorted(found.items()))


def twice(names: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the place and the name of each that an earlier one has too."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            yield i, name
        seen.add(name)
