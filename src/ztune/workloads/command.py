"""``command``: what can be asked of it. ``ztune.trial.jobs.command`` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from ztune.trial.jobs import command
from ztune.trial.jobs.base import Job
from ztune.workloads import base
from ztune.workloads.base import param, read_text


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

    def resolved(self) -> dict[str, Any]:
        """Return the parameters with the file read in: it may not be where the job runs."""
        found = super().resolved()
        if found["file"] and not found["file_text"]:
            found["file_text"] = read_text(Path(found["file"]), "command file")
        return found
