"""What helps whoever wrote a wrong key in a study."""

from __future__ import annotations

from ztune.onhost.age import Age
from ztune.onhost.declared import Declared
from ztune.onhost.layout import Dataset, Layout, Pool, Vdev
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import suggest
from ztune.study.profile import FlashProfile, HddProfile
from ztune.study.study import NamedLayout, Objective, Study
from ztune.study.tables import fields_of
from ztune.toml.reading import Hints, Loc

# Which model describes the table at a path (numbers left out), for "did you mean".
_MODELS: dict[tuple[str, ...], type] = {
    (): Study,
    ("objective",): Objective,
    ("layout",): Layout,
    ("layout", "pool"): Pool,
    ("layout", "pool", "vdev"): Vdev,
    ("layout", "dataset"): Dataset,
    ("layout", "durability"): Declared,
    ("layout", "age"): Age,
    ("layouts",): NamedLayout,
}


def _model(loc: Loc) -> type | None:
    return _MODELS.get(tuple(p for p in loc if isinstance(p, str)))


def _keys(loc: Loc) -> list[str]:
    model = _model(loc[:-1])
    if model is None:
        return sorted({*HddProfile.model_fields, *FlashProfile.model_fields})
    names = [field.alias or name for name, field in fields_of(model).items()]
    return [*names, *PROPERTIES] if model is Dataset else names


def _near(loc: Loc) -> str:
    name = str(loc[-1])
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


HINTS = Hints(_keys, _near, _description)
