"""Asks the trial program at a place what that host is: its command ``hello``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ztune.errors import MissingError, ZtuneError
from ztune.places.channel import Place, ask


def said_of_host(place: Place, where: str, program: Path) -> dict[str, Any]:
    """Return the answer of ``hello`` at ``place``; ``where``: its name in sentences.

    Raises MissingError if the trial program does not run there, Lost if the connection goes.
    """
    code, out, errors = ask(place, ["python3", place.put(program), "hello"])
    if code != 0:
        words = errors.splitlines()[-1] if errors else f"exit code {code}"
        raise MissingError(f"the trial program does not run on {where}: {words}")
    try:
        answer = json.loads(out.splitlines()[-1])
        if not isinstance(answer, dict):
            raise ValueError
    except (ValueError, IndexError):
        raise ZtuneError(f"the trial program on {where} answers with something else than JSON") from None
    return answer
