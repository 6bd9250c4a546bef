"""``command``: what can be asked of it. ``ztune.databases.command.onhost.commands`` does it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError

from ztune.databases import workload as base
from ztune.databases.command.onhost import commands as command
from ztune.databases.workload import param, read_text
from ztune.errors import InputError
from ztune.onhost.declared import Declared
from ztune.onhost.jobs.job import Job
from ztune.onhost.words import suggest
from ztune.toml.reading import Hints, explain


class CommandParameters(base.Parameters):
    """The parameters of ``command``."""

    file: str = param("", meaning="Path of the TOML file that describes your database.")
    file_text: str = param(
        "", meaning="The file itself instead of its path: this is how it is kept with results."
    )
    seed: int = param(1, ge=0, le=2**30 - 1, meaning="Given to the commands as `$ZTUNE_SEED`.")


class Command(base.JobWorkload):
    """Any database, by the commands that load, start, measure and stop it."""

    name: ClassVar[str] = "command"
    summary: ClassVar[str] = "your own database: load, start, measure and stop commands in a TOML file"
    Parameters: ClassVar[type[base.Parameters]] = CommandParameters
    job_class: ClassVar[type[Job]] = command.Command
    roles_from: ClassVar[str] = "as your file says"

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

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with the file read in: it may not be where the job runs."""
        found = super().resolved()
        if found["file"] and not found["file_text"]:
            found["file_text"] = read_text(Path(found["file"]), "command file")
        return found


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
