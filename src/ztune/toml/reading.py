"""Reading a TOML file, and what is wrong with it as one sentence: file, line, key and what would be right."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ztune import files
from ztune.errors import InputError
from ztune.onhost.fields import KeyedError
from ztune.onhost.words import suggest
from ztune.toml.positions import line_of, positions

Loc = tuple[str | int, ...]
_MAX_BYTES = 4 << 20  # a study is written by hand; more is another kind of file
# pydantic's names for a key too many, of a model and of a dataclass.
_NOT_A_KEY = ("extra_forbidden", "unexpected_keyword_argument")


@dataclass(frozen=True)
class Hints:
    """What helps whoever wrote a wrong key, by where it stands."""

    keys: Callable[[Loc], Sequence[str]]
    """The keys that are there."""
    near: Callable[[Loc], str]
    """A sentence, with a blank before it, that says which was meant or where it belongs; empty for none."""
    description: Callable[[Loc], str]
    """What a missing key says, after a colon; empty for none."""

    @classmethod
    def of(cls, keys: Sequence[str]) -> Hints:
        """Return the hints of a file with one table, which has ``keys``."""
        return cls(lambda _: keys, lambda loc: suggest(str(loc[-1]), keys), lambda _: "")


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Return the parsed TOML of ``path`` and its text. Raises InputError."""
    try:
        text = files.read(path, _MAX_BYTES).decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; a TOML file is") from None
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # a whole number of 5,000 digits is a ValueError
        raise InputError(f"{path} is not TOML: {str(error) or 'nested too deeply'}") from None


def explain(error: ValidationError, raw: Any, text: str, path: Path, hints: Hints, what: str) -> str:
    """Return one sentence for pydantic's first complaint of ``raw``, which stands as ``text`` in ``path``.

    ``what``: what the whole file is, such as "a study".
    """
    problems = error.errors(include_url=False)
    # A misspelt key is also a missing one: say what was written rather than what was not.
    problem = next((p for p in problems if p["type"] in _NOT_A_KEY), problems[0])
    loc = _real(problem["loc"], raw)
    message = str(problem["msg"]).removeprefix("Value error, ")
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, KeyedError):
        loc += cause.path
    key = show_path(loc)
    kind = problem["type"]
    if kind == "missing":
        message = f"{key} is missing{hints.description(loc)}"
    elif kind in _NOT_A_KEY:
        message = f'"{loc[-1]}" is not a key of {show_path(loc[:-1]) or what}.{hints.near(loc)}'
        if not hints.near(loc):
            message = message.removesuffix(".") + f"; its keys are {', '.join(hints.keys(loc))}"
    elif kind == "too_short":
        least, has = problem["ctx"]["min_length"], problem["ctx"]["actual_length"]
        message = f"{key} has {has or 'nothing'}; it takes {least} or more"
    elif kind == "value_error":
        message = f"{key}: {message}" if key else message
    elif kind in {"union_tag_invalid", "union_tag_not_found"}:
        loc += ("kind",)
        given = problem["input"].get("kind") if isinstance(problem["input"], dict) else None
        message = (
            f"{show_path(loc)} is {given!r}; it is 'hdd' or 'flash'"
            if given
            else f"{show_path(loc)} is missing: 'hdd' or 'flash'"
        )
    else:
        shown = repr(problem["input"])
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        message = f"{key} is {shown}; {message[:1].lower()}{message[1:]}"
    line = line_of(positions(text), loc)
    return f"{path}:{line}: {message}" if line else f"{path}: {message}"


def _real(loc: Loc, raw: Any) -> Loc:
    """Return ``loc`` without the tags that pydantic puts in for unions."""
    out: list[str | int] = []
    node = raw
    for i, part in enumerate(loc):
        in_list = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if in_list or (isinstance(node, dict) and part in node):
            node = node[part]
        elif i < len(loc) - 1 or part in {"hdd", "flash"}:
            continue
        out.append(part)
    return tuple(out)


def show_path(loc: Loc) -> str:
    """Return a path as a user would write it: layout.dataset[1].recordsize, axes."data.recordsize"[2]."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part) is not None
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text
