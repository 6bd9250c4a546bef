"""Dataclasses to JSON and back by their fields: one means for whatever crosses to the trial program.

A field's metadata may say ``alias`` (its key), ``ge``, ``le`` and ``min_length``: pydantic heeds the same
where TOML comes in. Standard library alone, since it is sent to hosts.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_Made = TypeVar("_Made")
_PLAIN = frozenset({str, int, float, bool, type(None)})


class KeyedError(ValueError):
    """A ValueError that knows which key below the failing object is meant, for the path in the message."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


def shown(value: object) -> str:
    """Return ``value`` as JSON for a sentence, at most 60 characters."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def described(description: str, **rules: object) -> dict[str, object]:
    """Return a field's metadata: what it is, one line for people, and rules such as ``ge`` or ``alias``."""
    return {"description": description, **rules}


def key_of(field: Field[Any]) -> str:
    """Return the key under which a field stands in JSON and in TOML."""
    return str(field.metadata.get("alias", field.name))


@functools.cache
def _keys(kind: Any) -> tuple[tuple[str, str], ...]:
    """Return the name and the key of each field of ``kind``; none of what is no dataclass."""
    return tuple((f.name, key_of(f)) for f in fields(kind)) if is_dataclass(kind) else ()


def to_json(value: Any) -> Any:
    """Return a dataclass, or what one holds, as JSON values; keys in the order of the fields."""
    kind: Any = type(value)
    if kind in _PLAIN:  # first, as nearly all values are
        return value
    if keys := _keys(kind):
        return {key: to_json(getattr(value, name)) for name, key in keys}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def from_json(kind: type[_Made], raw: object) -> _Made:
    """Return the dataclass ``kind`` that ``raw`` says, each key checked by its field's type and metadata.

    What stands in ``raw`` as a dataclass already is taken as it is.

    Raises KeyedError with a sentence, and where below ``raw`` the fault is.
    """
    found: _Made = _made(kind, raw, {}, ())
    return found


def _made(kind: Any, raw: Any, limits: Mapping[str, Any], path: tuple[str | int, ...]) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        return raw if isinstance(raw, kind) else _object(kind, raw, path)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is types.UnionType:  # X | None is the only one there is
        return None if raw is None else _made(inner[0], raw, limits, path)
    if origin is tuple:
        if not isinstance(raw, list | tuple) or len(raw) < limits.get("min_length", 0):
            some = " with at least one entry" if limits.get("min_length") else ""
            raise KeyedError(path, f"{shown(raw)} is not a list{some}")
        return tuple(_made(inner[0], item, {}, (*path, i)) for i, item in enumerate(raw))
    if origin is dict or origin is Mapping:
        if not isinstance(raw, dict):
            raise KeyedError(path, f"{shown(raw)} is not an object")
        return {key: _made(inner[1], item, {}, (*path, key)) for key, item in raw.items()}
    if origin is Literal:
        if raw not in inner:
            raise KeyedError(path, f"{shown(raw)} is not one of {', '.join(map(str, inner))}")
        return raw
    if kind is int:
        low, high = limits.get("ge"), limits.get("le")
        right = isinstance(raw, int) and not isinstance(raw, bool)
        if not right or (low is not None and raw < low) or (high is not None and raw > high):
            within = f" from {low} to {high}" if low is not None and high is not None else ""
            raise KeyedError(path, f"{shown(raw)} is not a whole number{within}")
    elif kind is str:
        if not isinstance(raw, str) or "\0" in raw or len(raw) < limits.get("min_length", 0):
            raise KeyedError(path, f"{shown(raw)} is not text")
    elif kind is Path:
        return Path(_made(str, raw, {}, path))
    elif kind is bool and not isinstance(raw, bool):
        raise KeyedError(path, f"{shown(raw)} is neither true nor false")
    return raw


def _object(kind: Any, raw: Any, path: tuple[str | int, ...]) -> Any:
    if not isinstance(raw, dict):
        raise KeyedError(path, f"{shown(raw)} is not an object")
    known = {key_of(f): f for f in fields(kind)}
    for key in raw:
        if key not in known:
            raise KeyedError(path, f'"{key}" is not a key here; the keys are {", ".join(known)}')
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, field in known.items():
        if key in raw:
            values[field.name] = _made(hints[field.name], raw[key], field.metadata, (*path, key))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise KeyedError(path, f'"{key}" is missing')
    try:
        return kind(**values)
    except KeyedError as error:
        raise KeyedError((*path, *error.path), str(error)) from None
