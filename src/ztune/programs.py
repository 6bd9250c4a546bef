"""Where ztune's own compiled programs are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import ztune
from ztune.errors import MissingError


def find(program: str, folder: str, variable: str, what: str) -> Path | None:
    """Return one of ztune's programs, None if it is not built.

    The one that the environment ``variable`` names; else the one built in ``folder`` beside the package, the
    one in the package, the one in PATH. Raises MissingError where the variable names no program; ``what`` it
    should name is part of the sentence.
    """
    own = os.environ.get(variable)
    if own:
        if not os.access(own, os.X_OK) or Path(own).is_dir():
            raise MissingError(f"{variable} names {own}, which is no program; unset it or name {what}")
        return Path(own)
    package = Path(ztune.__file__).resolve().parent
    on_path = shutil.which(program)
    for path in (
        package.parents[1] / folder / "build" / program,
        package / "bin" / program,
        *([Path(on_path)] if on_path else []),
    ):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
