"""TOML in, Study out; every error one sentence with file, line, key and what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from ztune.errors import InputError
from ztune.onhost.layout import FACTOR_CLASS
from ztune.output import line, shown
from ztune.study import profiles as _profiles
from ztune.study.hints import HINTS
from ztune.study.layout import check_arc, with_settings
from ztune.study.profile import FlashProfile, HddProfile
from ztune.study.study import Study
from ztune.toml.positions import line_of, positions
from ztune.toml.reading import Loc, explain, read_toml, show_path

MAX_COMBINATIONS = 10_000
"""Of one cross: each is made and checked where a study is read, which takes a millisecond."""
_TOML_PATH = re.compile(r"[^\s+:]+\.toml\b")


def load_study(path: Path) -> Study:
    """Return the study in the TOML file ``path``, checked, with every profile it uses resolved into it.

    Raises InputError with one sentence that names file, line, key, value, and what would be right.
    """
    raw, text = read_toml(path)
    return parse_study(raw, text, path)


def parse_study(raw: dict[str, Any], text: str, path: Path) -> Study:
    """Check a parsed study; ``text``: its source, for line numbers; ``path``: where paths in it start."""
    extra = _resolve_paths(raw, path)
    _check_crosses(raw, text, path)
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise InputError(explain(error, raw, text, path, HINTS, "a study")) from None
    _check_text(raw, text, path)
    _check_parameters(study, raw, text, path)
    for loc, layout in study.with_arcs():
        try:
            check_arc(layout)
        except ValueError as error:
            line = line_of(positions(text), loc)
            raise InputError(f"{path}:{line or ''}{':' if line else ''} {show_path(loc)}: {error}") from None
    return resolve_profiles(study, extra, str(path))


def resolve_profiles(
    study: Study, extra: Mapping[str, HddProfile | FlashProfile] | None = None, where: str = ""
) -> Study:
    """Return ``study`` with the profiles of all its layouts in it, and no others. Raises InputError."""
    changes: list[Mapping[str, object]] = [{key: v} for key, values in study.axes.items() for v in values]
    changes += [named.set for named in study.layouts]
    layouts = [study.layout]
    # Other disks come with these factors alone.
    layouts += [
        with_settings(study.layout, change)
        for change in changes
        if any(key.rpartition(".")[2] in FACTOR_CLASS for key in change)
    ]
    names = sorted({name for layout in layouts for name in layout.profiles()})
    known = {**study.profiles, **(extra or {})}
    found: dict[str, HddProfile | FlashProfile] = {}
    for name in names:
        try:
            found[name] = known[name] if name in known else _profiles.find(name)
        except InputError as error:
            raise InputError(f"{where}: {error}" if where else str(error)) from None
    caches: dict[str, str] = {name: profile.declared_cache for name, profile in found.items()}
    return study.model_copy(update={"profiles": found, "layout": replace(study.layout, disks=caches)})


def _check_crosses(raw: Mapping[str, Any], text: str, path: Path) -> None:
    """Refuse a cross of more layouts than could be looked at. Before the models, which make each of them."""
    axes, crosses = raw.get("axes"), raw.get("cross")
    if not isinstance(axes, dict) or not isinstance(crosses, list):
        return  # the models say so
    for i, keys in enumerate(crosses):
        named = [axes.get(key) for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
        many = math.prod(len(values) for values in named if isinstance(values, list))
        if many > MAX_COMBINATIONS:
            at = line_of(positions(text), ("cross", i))
            raise InputError(
                f"{path}{f':{at}' if at else ''}: cross[{i}]: it makes {many:,} combinations, and "
                f"{MAX_COMBINATIONS:,} are the most; name fewer axes, or give them fewer values"
            )


def _check_parameters(study: Study, raw: dict[str, Any], text: str, path: Path) -> None:
    """Refuse parameters that the study's workload does not take. Not in the models either, for the same
    reason as control characters.
    """

    # Here, as few studies have such factors, and what knows all workloads takes long to load.
    from ztune.databases import registry

    def refuse(loc: Loc, why: str) -> NoReturn:
        at = line_of(positions(text), loc)
        raise InputError(f"{path}{f':{at}' if at else ''}: {show_path(loc)}: {why}") from None

    if study.layout.workload:
        refuse(
            ("layout", "workload"), "the base's parameters stand in [parameters]; axes and layouts vary them"
        )
    changes: list[tuple[Loc, dict[str, str | int]]] = [
        *((("axes", key, i), {key: v}) for key, vs in study.axes.items() for i, v in enumerate(vs)),
        *((("layouts", i, "set"), named.set) for i, named in enumerate(study.layouts)),
    ]
    for loc, factors in changes:
        given = {key.partition(".")[2]: v for key, v in factors.items() if key.startswith("workload.")}
        if not given:
            continue
        first = loc if loc[0] == "axes" else (*loc, f"workload.{next(iter(given))}")
        if study.workload is None:
            refuse(first, 'no workload is named, whose parameter that could be; add workload = "…"')
        try:
            registry.get(study.workload).Parameters.parse(study.workload, {**study.parameters, **given})
        except InputError as error:
            wrong = next((name for name in given if repr(name) in str(error)), None)
            if wrong is None:
                for name in study.parameters:
                    if repr(name) in str(error):
                        refuse(("parameters", name), str(error))
            refuse(first if loc[0] == "axes" or wrong is None else (*loc, f"workload.{wrong}"), str(error))


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


def _texts(node: object, loc: Loc) -> Iterator[tuple[Loc, str]]:
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

    def replace(value: object) -> object:
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
