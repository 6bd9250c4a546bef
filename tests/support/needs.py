"""What tests need of this machine, each as the sentence that says why it is not here; empty where it is."""

from __future__ import annotations

import os

from ztune.errors import MissingError
from ztune.places import mount_program


def mount() -> str:
    """Return why nothing can be mounted here."""
    if os.geteuid() != 0:
        return "mounting takes root here"
    try:
        mount_program.check()
    except MissingError as error:
        return str(error)
    return ""
