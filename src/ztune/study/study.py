"""Study: one workload × a space of layouts × an objective, as a TOML file says it.

A study, once loaded, says everything that a trial needs except the trace: the profiles in use are part of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import Field, model_validator

from ztune.databases.database import AllowedClass
from ztune.onhost.fields import KeyedError
from ztune.onhost.layout import Layout
from ztune.onhost.words import OBJECTIVES, DurabilityClass, suggest
from ztune.study.layout import LayoutTable, plain, with_settings
from ztune.study.profile import FlashProfile, HddProfile, Profile
from ztune.study.tables import Strict


class Objective(Strict):
    """What makes one layout better than another. Durability always comes first."""

    minimise: tuple[str, ...] = Field(
        default=("modelled_s", "allocated", "written"), min_length=1,
        description="Metrics, the first decides; the next decides among layouts within `within` of the best.",
    )  # fmt: skip
    within: float = Field(
        default=0.05, ge=0, le=1, description="How near the best counts as equal: 0.05 is 5 %."
    )
    durability: AllowedClass = Field(
        default=DurabilityClass.NOTHING, description="The worst class allowed beside the baseline's own."
    )

    @model_validator(mode="after")
    def _check(self) -> Objective:
        known = list(OBJECTIVES)
        for i, metric in enumerate(self.minimise):
            if metric not in known:
                raise KeyedError(
                    ("minimise", i),
                    f'"{metric}" is not a metric; the metrics are '
                    f"{', '.join(known)}.{suggest(metric, known)}",
                )
            if metric in self.minimise[:i]:
                raise KeyedError(("minimise", i), f'"{metric}" is named twice')
        return self


class NamedLayout(Strict):
    """A further layout: a name, and what it changes of the base."""

    name: str = Field(min_length=1, max_length=200, description="Unique in the study.")
    description: str = Field(default="", description="One line for people.")
    set: dict[str, str | int] = Field(min_length=1, description="Factors and their values, as in `axes`.")


class Study(Strict):
    """A question: one workload × a space of layouts × an objective."""

    name: str = Field(min_length=1, max_length=100, description="The study's name.")
    description: str = Field(default="", description="One line for people.")
    workload: str | None = Field(
        default=None, description="The workload that it runs, and whose traces it suits; none: any."
    )
    parameters: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Parameters of the workload where the study is run for real; flags go first.",
    )
    seed: int = Field(default=1, ge=0, lt=1 << 31, description="Seed of everything random.")
    objective: Objective = Field(default_factory=Objective, description="What makes a layout better.")
    layout: LayoutTable = Field(description="The base layout, which is also the baseline.")
    axes: dict[str, tuple[str | int, ...]] = Field(
        default_factory=dict, description="Factor → values, each tried alone on the base."
    )
    cross: tuple[tuple[str, ...], ...] = Field(
        default=(), description="Lists of axes whose values are tried in every combination, 10,000 at most."
    )
    layouts: tuple[NamedLayout, ...] = Field(default=(), description="Further layouts.")
    notes: tuple[str, ...] = Field(
        default=(),
        description="Sentences that the results repeat; ztune adds its own: what it left out, and why.",
    )
    profiles: dict[str, Profile] = Field(
        default_factory=dict,
        description="Profiles given in the study itself; filled with all in use once loaded.",
    )

    @model_validator(mode="after")
    def _check(self) -> Study:
        for key, values in self.axes.items():
            if not values:
                raise KeyedError(("axes", key), "an axis needs at least one value")
            if key.startswith("age."):
                raise KeyedError(("axes", key), 'write whole ages: age = ["used", "fill 90% rewrites 3"]')
            for i, value in enumerate(values):
                try:
                    with_settings(self.layout, {key: value})
                except ValueError as error:
                    raise KeyedError(("axes", key, i), plain(error)) from None
        for i, keys in enumerate(self.cross):
            if "age" in keys:
                raise KeyedError(
                    ("cross", i), "age is no part of a cross: it is tried last, on the best layouts"
                )
            for key in keys:
                if key not in self.axes:
                    raise KeyedError(
                        ("cross", i), f'"{key}" is not an axis of this study.{suggest(key, self.axes)}'
                    )
            if len(keys) < 2 or len(set(keys)) != len(keys):
                raise KeyedError(("cross", i), "a cross names two or more different axes")
            for values in itertools.product(*(self.axes[key] for key in keys)):
                together = dict(zip(keys, values, strict=True))
                try:
                    with_settings(self.layout, together)
                except ValueError as error:
                    said = ", ".join(f"{k}={v}" for k, v in together.items())
                    raise KeyedError(("cross", i), f"{said} do not go together: {plain(error)}") from None
        names = {self.layout.name}
        for i, named in enumerate(self.layouts):
            if named.name in names:
                raise KeyedError(("layouts", i, "name"), f'two layouts are called "{named.name}"')
            names.add(named.name)
            if any(key.partition(".")[0] == "age" for key in named.set):
                raise KeyedError(
                    ("layouts", i, "set"),
                    "an age is the base's own ([layout.age]) or an axis, tried on the best",
                )
            try:
                with_settings(self.layout, named.set)
            except ValueError as error:
                raise KeyedError(("layouts", i, "set"), plain(error)) from None
        for name, profile in self.profiles.items():
            if profile.name != name:
                raise KeyedError(
                    ("profiles", name, "name"), f'the profile "{name}" calls itself "{profile.name}"'
                )
        return self

    @property
    def varied(self) -> dict[str, list[str | int]]:
        """Factor → the values that an axis or a named layout gives it, beside the base's own."""
        found = {key: list(values) for key, values in self.axes.items()}
        for named in self.layouts:
            for key, value in named.set.items():
                found.setdefault(key, []).append(value)
        return found

    def with_arcs(self) -> Iterator[tuple[tuple[str | int, ...], Layout]]:
        """Give each layout that says how large its ARC is, and where in the study that stands."""
        yield ("layout", "arc"), self.layout
        for i, value in enumerate(self.axes.get("arc", ())):
            yield ("axes", "arc", i), with_settings(self.layout, {"arc": value})
        for i, named in enumerate(self.layouts):
            if "arc" in named.set:
                yield ("layouts", i, "set", "arc"), with_settings(self.layout, {"arc": named.set["arc"]})

    def check_roles(self, roles: set[str]) -> None:
        """Raise ValueError unless every role in ``roles`` has a dataset in the layout."""
        for role in sorted(roles):
            if self.layout.dataset_of(role) is None:
                raise ValueError(
                    f'role {role} has no dataset in layout "{self.layout.name}" of study "{self.name}"; '
                    f"add it to a dataset's roles"
                )

    def profile(self, name: str) -> HddProfile | FlashProfile:
        """Return a profile in use; KeyError without it."""
        return self.profiles[name]

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``Study.model_validate`` takes back, fully resolved."""
        return self.model_dump(mode="json", by_alias=True)
