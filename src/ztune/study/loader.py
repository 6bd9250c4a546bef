"""TOML in, Study out; every error one sentence with file, line, key and what would be right."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ztune.databases.declared import Declared
from ztune.errors import InputError
from ztune.onhost.layout import Dataset, KeyedError, Pool, Vdev
from ztune.onhost.words import suggest
from ztune.output import line, shown
from ztune.study import profiles as _profiles
from ztune.study.layout import Layout, fields_of
from ztune.study.positions import line_of, positions
from ztune.study.profile import FlashProfile, HddProfile
from ztune.study.properties import PROPERTIES
from ztune.study.study import NamedLayout, Objective, Study
from ztune.study.tunables import TUNABLES

Loc = tuple[str | int, ...]
# pydantic's names for a key too many, of a model and of a dataclass.
_NOT_A_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_MAX_BYTES = 4 << 20  # a study is written by hand; more is another kind of file
_TOML_PATH = re.compile(r"[^\s+:]+\.toml\b")
# Which model describes the table at a path (numbers left out), for "did you mean".
_MODELS: dict[tuple[str, ...], type] = {
    (): Study,
    ("objective",): Objective,
    ("layout",): Layout,
    ("layout", "pool"): Pool,
    ("layout", "pool", "vdev"): Vdev,
    ("layout", "dataset"): Dataset,
    ("layout", "durability"): Declared,
    ("layouts",): NamedLayout,
}


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Return the parsed TOML of ``path`` and its text. Raises InputError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has more than {_MAX_BYTES >> 20} MiB; it is no study or profile")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; a TOML file is") from None
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # a whole number of 5,000 digits is a ValueError
        raise InputError(f"{path} is not TOML: {str(error) or 'nested too deeply'}") from None


def load_study(path: Path) -> Study:
    """Return the study in the TOML file ``path``, checked, with every profile it uses resolved into it.

    Raises InputError with one sentence that names file, line, key, value, and what would be right.
    """
    raw, text = read_toml(path)
    return parse_study(raw, text, path)


def parse_study(raw: dict[str, Any], text: str, path: Path) -> Study:
    """Check a parsed study; ``text``: its source, for line numbers; ``path``: where paths in it start."""
    extra = _resolve_paths(raw, path)
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise InputError(explain(error, raw, text, path)) from None
    _check_text(raw, text, path)
    for loc, layout in study.with_arcs():
        try:
            layout.check_arc()
        except ValueError as error:
            line = line_of(positions(text), loc)
            raise InputError(f"{path}:{line or ''}{':' if line else ''} {show_path(loc)}: {error}") from None
    return resolve_profiles(study, extra, str(path))


def resolve_profiles(
    study: Study, extra: Mapping[str, HddProfile | FlashProfile] | None = None, where: str = ""
) -> Study:
    """Return ``study`` with the profiles of all its layouts in it, and no others. Raises InputError."""
    layouts = [study.layout]
    layouts += [study.layout.with_settings({key: v}) for key, values in study.axes.items() for v in values]
    layouts += [study.layout.with_settings(named.set) for named in study.layouts]
    names = sorted({name for layout in layouts for name in layout.profiles()})
    known = {**study.profiles, **(extra or {})}
    found: dict[str, HddProfile | FlashProfile] = {}
    for name in names:
        try:
            found[name] = known[name] if name in known else _profiles.find(name)
        except InputError as error:
            raise InputError(f"{where}: {error}" if where else str(error)) from None
    return study.model_copy(update={"profiles": found})


def _check_text(raw: dict[str, Any], text: str, path: Path) -> None:
    """Refuse control characters; a name, which is printed everywhere, has no line breaks either.

    Not in the models: they read stored runs too, which may be older than this.
    """
    for loc, value in _texts(raw, ()):
        known = shown(value) if loc[-1] != "name" else line(value)
        if known != value:
            at = line_of(positions(text), loc)
            raise InputError(
                f'{path}{f":{at}" if at else ""}: {line(show_path(loc))} is "{line(value)}"; text in a study '
                "has no control characters, and a name no line breaks"
            )


def _texts(node: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    """Yield every key and every text below ``node``, with where it stands."""
    if isinstance(node, str):
        yield loc, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield (*loc, key), key
            yield from _texts(value, (*loc, key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _texts(value, (*loc, i))


def _resolve_paths(raw: dict[str, Any], path: Path) -> dict[str, HddProfile | FlashProfile]:
    """Replace profile paths in the raw study by the profiles' names; return those profiles."""
    found: dict[str, HddProfile | FlashProfile] = {}

    def replace(value: Any) -> Any:
        if not isinstance(value, str) or ".toml" not in value:
            return value

        def one(match: re.Match[str]) -> str:
            profile = _profiles.load(path.parent / match[0])
            found[profile.name] = profile
            return profile.name

        return _TOML_PATH.sub(one, value)

    layout = raw.get("layout")
    for pool in _tables(layout.get("pool")) if isinstance(layout, dict) else []:
        for vdev in _tables(pool.get("vdev")):
            if "profile" in vdev:
                vdev["profile"] = replace(vdev["profile"])
    axes = raw.get("axes")
    if isinstance(axes, dict):
        for key, values in axes.items():
            if isinstance(values, list):
                axes[key] = [replace(v) for v in values]
    for named in _tables(raw.get("layouts")):
        changes = named.get("set")
        if isinstance(changes, dict):
            named["set"] = {key: replace(v) for key, v in changes.items()}
    return found


def _tables(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def explain(
    error: ValidationError,
    raw: Any,
    text: str,
    path: Path,
    keys: Sequence[str] | None = None,
    what: str = "a study",
) -> str:
    """Return one sentence for pydantic's first complaint; ``keys``: those of ``what``, if no study."""
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
        message = f"{key} is missing{_description(loc)}"
    elif kind in _NOT_A_KEY:
        message = f'"{loc[-1]}" is not a key of {show_path(loc[:-1]) or what}.{_near(loc, keys)}'
        if not _near(loc, keys):
            message = message.removesuffix(".") + f"; its keys are {', '.join(keys or _keys(loc))}"
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


def _model(loc: Loc) -> type | None:
    return _MODELS.get(tuple(p for p in loc if isinstance(p, str)))


def _keys(loc: Loc) -> list[str]:
    model = _model(loc[:-1])
    if model is None:
        return sorted({*HddProfile.model_fields, *FlashProfile.model_fields})
    names = [field.alias or name for name, field in fields_of(model).items()]
    return [*names, *PROPERTIES] if model is Dataset else names


def _near(loc: Loc, keys: Sequence[str] | None = None) -> str:
    name = str(loc[-1])
    if keys is not None:
        return suggest(name, keys)
    if name in TUNABLES:
        return " Tunables stand in [layout.tunables]."
    if name in PROPERTIES:
        return " Properties stand in [[layout.dataset]]."
    return suggest(name, _keys(loc))


def _description(loc: Loc) -> str:
    model = _model(loc[:-1])
    for name, field in (fields_of(model) if model else {}).items():
        if loc[-1] in {name, field.alias} and field.description:
            return f": {field.description[:1].lower()}{field.description[1:].rstrip('.')}"
    return ""
