"""What a power cut loses of a database, as those who know it declare it: a workload, or a user in TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ztune.onhost.words import DurabilityClass

if TYPE_CHECKING:
    KnownClass = DurabilityClass
else:
    # A class that somebody can ask for or declare: all but "not-known".
    KnownClass = Annotated[
        Literal["nothing-acknowledged", "last-seconds", "corrupt"], AfterValidator(DurabilityClass)
    ]

ANY = "*"
"""Whatever value a setting has."""
TOGETHER = 100
"""Operations that one sync may acknowledge where nobody says: a sync of a group of waiting clients."""


class Declared(BaseModel):
    """What is declared of a database. What is not is *not known*, and ztune promises nothing of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    known: bool = Field(
        default=False,
        description="The database is one whose settings ztune knows, such as PostgreSQL, MariaDB or SQLite.",
    )
    default: KnownClass | None = Field(
        default=None,
        description="The class of the database before a layout changes its settings; none: not known.",
    )
    settings: dict[str, dict[str, KnownClass]] = Field(
        default_factory=dict,
        description="Setting → value → the class that the value brings; `*` stands for any other value.",
    )
    neutral: tuple[str, ...] = Field(
        default=(), description="Settings that make no difference to durability, whatever their value."
    )
    together: int | None = Field(
        default=None, ge=0, le=10**9,
        description="The most operations that one sync acknowledges, such as the number of clients; 0: they "
        "are not acknowledged one by one, such as the rows of an import.",
    )  # fmt: skip
    own: dict[str, str] = Field(
        default_factory=dict,
        description="The settings that `default` speaks of, with their values; ztune fills it.",
    )

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
        )

    def beside(self, own: Mapping[str, str]) -> Declared:
        """Return this declaration, made of a database with the settings ``own``."""
        return self if self.own or self.known else self.model_copy(update={"own": dict(own)})


KNOWN = Declared(known=True)
"""A database whose settings ztune knows itself (``study/durability.py``)."""
