"""``command``: what can be asked of it. ``ztune.databases.command.onhost.commands`` does it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ztune.databases import workload as base
from ztune.databases.command.onhost import commands as command
from ztune.databases.workload import Seed
from ztune.errors import InputError
from ztune.onhost.declared import Declared
from ztune.onhost.words import suggest
from ztune.toml.reading import Hints, explain


class CommandParameters(base.Parameters):
    """The parameters of ``command``."""

    file: str = ""
    """Path of the TOML file that describes your database."""
    file_text: str = ""
    """The file itself instead of its path: this is how it is kept with results."""
    seed: Seed = 1
    """Given to the commands as `$ZTUNE_SEED`."""


class Command(base.JobWorkload):
    """Any database, by the commands that load, start, measure and stop it."""

    name = "command"
    summary = "your own database: load, start, measure and stop commands in a TOML file"
    Parameters = CommandParameters
    job_class = command.Command
    read_in = ("file", "command file")
    roles_from = "as your file says"
    roles_declared = True

    def __init__(
        self,
        values: Mapping[str, object] | None = None,
        *,
        database: Mapping[str, str] | None = None,
        patience: float | None = None,
    ) -> None:
        super().__init__(values, database=database, patience=patience)
        self._declared = _declared(self.job.params, self.job.recipe)

    def declared(self) -> Declared:
        """Return what [durability] of the file says of the database with the file's own settings."""
        return self._declared


class _Named(BaseModel):
    durability: Declared = Declared()


def _declared(params: Mapping[str, Any], recipe: command.Recipe) -> Declared:
    """Return what the file declares. Raises InputError, with file, line and key."""
    text, where = str(params["file_text"]), Path(str(params["file"] or "the file"))
    raw = tomllib.loads(text)
    try:
        found = _Named.model_validate(raw).durability
    except ValidationError as error:
        hints = Hints.of([one.name for one in fields(Declared) if one.name != "own"])
        raise InputError(explain(error, raw, text, where, hints, "[durability]")) from None
    if found.own:
        raise InputError(f"{where}: durability.own is not to be given: it is what [settings] has")
    for name in (*found.settings, *found.neutral):
        if name not in recipe.settings:
            raise InputError(
                f"{where}: durability speaks of {name!r}, which [settings] does not have."
                f"{suggest(name, list(recipe.settings))}"
            )
    return replace(found, own=dict(recipe.settings))
