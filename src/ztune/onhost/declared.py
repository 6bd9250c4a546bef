"""What a power cut loses of a database, as those who know it declare it: a workload, or a user in TOML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from ztune.onhost.fields import described
from ztune.onhost.words import DurabilityClass

if TYPE_CHECKING:
    KnownClass = DurabilityClass
else:
    # A class that somebody can ask for or declare: all but "not-known".
    KnownClass = Literal["nothing-acknowledged", "last-seconds", "corrupt"]

ANY = "*"
"""Whatever value a setting has."""
TOGETHER = 100
"""Operations that one sync may acknowledge where nobody says: a sync of a group of waiting clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is declared of a database. What is not is *not known*, and ztune promises nothing of it."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid"}

    known: bool = field(
        default=False,
        metadata=described(
            "The database is one whose settings ztune knows, such as PostgreSQL, MariaDB or SQLite."
        ),
    )
    default: KnownClass | None = field(
        default=None,
        metadata=described(
            "The class of the database before a layout changes its settings; none: not known."
        ),
    )
    settings: dict[str, dict[str, KnownClass]] = field(
        default_factory=dict,
        metadata=described(
            "Setting → value → the class that the value brings; `*` stands for any other value."
        ),
    )
    neutral: tuple[str, ...] = field(
        default=(),
        metadata=described("Settings that make no difference to durability, whatever their value."),
    )
    together: int | None = field(
        default=None,
        metadata=described(
            "The most operations that one sync acknowledges, such as the number of clients; 0: they are "
            "not acknowledged one by one, such as the rows of an import.",
            ge=0,
            le=10**9,
        ),
    )
    own: dict[str, str] = field(
        default_factory=dict,
        metadata=described(
            "The settings, with their values, that `default` speaks of, "
            "or that others are judged with; ztune fills it."
        ),
    )
    parameters: dict[str, dict[str, dict[str, str]]] = field(
        default_factory=dict,
        metadata=described(
            "Parameter of the workload → value → the settings of the database that it makes, as far as they "
            "bear on durability; ztune fills it."
        ),
    )

    def __post_init__(self) -> None:
        """Take the classes' words too. Raises ValueError for one that nobody can declare."""
        if self.default is not None:
            object.__setattr__(self, "default", _class(self.default))
        classes = {n: {v: _class(c) for v, c in by.items()} for n, by in self.settings.items()}
        object.__setattr__(self, "settings", classes)

    def made_by(self, workload: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of the database that the workload's parameters ``workload`` make, as far as
        they bear on durability."""
        found: dict[str, str] = {}
        for name, value in workload.items():
            found |= self.parameters.get(name, {}).get(value, {})
        return found

    def answer(self, name: str, value: str) -> DurabilityClass | None:
        """Return the class that a setting's value brings, or None where nobody has declared it."""
        answers = {given.lower(): klass for given, klass in self.settings.get(name, {}).items()}
        return answers.get(value.lower(), answers.get(ANY))

    def with_more(self, more: Declared | None) -> Declared:
        """Return this declaration with what ``more`` adds to it or says otherwise."""
        if more is None:
            return self
        return Declared(
            known=self.known or more.known,
            default=more.default if more.default is not None else self.default,
            settings={**self.settings, **more.settings},
            neutral=tuple(dict.fromkeys((*self.neutral, *more.neutral))),
            together=more.together if more.together is not None else self.together,
            own={**self.own, **more.own},
            parameters={**self.parameters, **more.parameters},
        )

    def beside(self, own: Mapping[str, str]) -> Declared:
        """Return this declaration, made of a database with the settings ``own``."""
        return self if self.own or self.known else replace(self, own=dict(own))


def _class(word: str) -> DurabilityClass:
    found = DurabilityClass(word)
    if found is DurabilityClass.NOT_KNOWN:
        raise ValueError(f'"{found}" is what nobody has declared; leave it out')
    return found


KNOWN = Declared(known=True)
"""A database whose settings ztune knows itself (``study/durability.py``)."""
