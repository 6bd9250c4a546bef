"""The class of a job, by the name that a trial's spec gives: ``module:Class``.

Specs and runs of earlier versions call ztune's own by short names; the databases' facts translate those.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import cast

from ztune import shipped
from ztune.errors import InputError
from ztune.onhost.jobs.job import Job

_METHODS = (
    *("check", "roles", "prepare", "load", "adopt", "start", "pids", "run", "verify", "stop", "cleanup"),
    *("role_paths", "page_sizes", "info"),
)


def get(name: str) -> type[Job]:
    """Return the class of the job ``name``.

    Raises:
        InputError: there is none, or it can't be imported here.
    """
    module, colon, attribute = _whole(name).partition(":")
    if not colon:
        known = shipped.jobs()
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"write module:Class, or one of {', '.join(known)}"
        raise InputError(f"there is no job {name!r}; {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(
            f"job {name!r} can't be imported: {error}; its workload must name every module that it needs"
        ) from None
    lacking = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or lacking:
        raise InputError(f"{name!r} is not a job: it has no {', '.join(lacking) or 'class'}")
    return cast(type[Job], found)


def shown(name: str) -> str:
    """Return what people read, and what a saved state is marked with: of ztune's own jobs the short name.

    Raises InputError as ``get`` does.
    """
    return get(name).name if _whole(name).startswith("ztune.databases.") else name


def _whole(name: str) -> str:
    return shipped.jobs().get(name, name)
