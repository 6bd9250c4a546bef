"""What tests need of this machine, each as the sentence that says why it is not here; empty where it is."""

from __future__ import annotations

import os
import subprocess

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


def same_addresses() -> str:
    """Return why a program's memory can't be at the same addresses each time here."""
    try:
        done = subprocess.run(["setarch", "--addr-no-randomize", "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return "setarch is missing"
    return "this kernel or container refuses to fix addresses" if done.returncode else ""
