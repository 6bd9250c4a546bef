"""Finds the replay engine and asks it whether it works here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ztune import native
from ztune.errors import MissingError
from ztune.native import openzfs

_SELFCHECK_S = 120.0


@dataclass(frozen=True)
class Engine:
    """An engine that passed its self-check. Results of different versions are never mixed."""

    path: Path
    version: str
    openzfs: str


def check(path: Path | None = None) -> Engine:
    """Run the engine's self-check and return the engine. Raises MissingError with the engine's own words."""
    path = path or native.ENGINE.find()
    answers: dict[str, str] = {}
    for command in ("version", "selfcheck"):
        try:
            done = subprocess.run(
                [path, command],
                capture_output=True,
                text=True,
                timeout=_SELFCHECK_S,
                stdin=subprocess.DEVNULL,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise MissingError(
                f"the engine {path} did not answer `{command}` in {_SELFCHECK_S:.0f} s"
            ) from None
        except OSError as error:
            raise MissingError(f"the engine {path} can't be run: {error.strerror}") from None
        if done.returncode != 0:
            words = last_line(done.stderr) or f"exit code {done.returncode}"
            raise MissingError(f"the engine {path} fails its {command}: {words}; `ztune doctor` says more")
        try:
            answer = json.loads(done.stdout)
            answers.update({k: str(v) for k, v in answer.items() if k in {"version", "openzfs"}})
            if answer.get("ok") is False:
                raise MissingError(f"the engine {path} does not match this machine's OpenZFS library")
        except (ValueError, AttributeError):
            raise MissingError(
                f"the engine {path} answers `{command}` with something else than JSON"
            ) from None
    if "version" not in answers or "openzfs" not in answers:
        raise MissingError(f"the engine {path} does not say its version and that of OpenZFS")
    return Engine(path, answers["version"], answers["openzfs"])


def of_version(wanted: str) -> Engine:
    """Return the engine with OpenZFS ``wanted``, a version (2.4.4) or a series (2.4): this machine's own if
    it is that, else the newest of those that ``ztune setup openzfs`` brought, built where it is not.

    Raises MissingError where there is none, with the command that brings one; InputError where none can be.
    """
    try:
        own: Engine | None = check()
    except MissingError:
        own = None
    library = openzfs.chosen(wanted, own.openzfs if own else "", "engine")
    return check(native.ENGINE.against(library).find()) if library else own or check()


def of_run(versions: Mapping[str, str]) -> Engine:
    """Return the engine to go on with a run of these ``versions``: with its OpenZFS if that is here, else
    this machine's own, which is then refused by who compares them. Raises MissingError.
    """
    asked = versions.get("openzfs", "")
    own = check()
    library = None if openzfs.matches(own.openzfs, asked) else openzfs.library(asked)
    return own if library is None else check(native.ENGINE.against(library).find())


def last_line(text: str) -> str:
    """Return the last line of ``text`` that is not empty and no progress report."""
    for line in reversed(text.splitlines()):
        if line.strip() and not line.lstrip().startswith("{"):
            return line.strip()
    return ""
