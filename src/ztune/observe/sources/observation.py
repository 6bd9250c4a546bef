"""ztune's own observations, as ``ztune observe`` writes them with ``--save`` and ``--json``."""

from __future__ import annotations

import json
import math
import re

from pydantic import ValidationError

from ztune.errors import InputError
from ztune.observe.model import FORMAT, VERSION, Observation
from ztune.observe.sources.source import Source, one_line

_LARGEST = (1 << 64) - 1  # the kernel's own counters


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number")
    return number


def _unsound(value: object, where: str) -> str:
    """Return what no observation holds: a number that no counter has, or half of a character."""
    if isinstance(value, dict):
        for key, one in value.items():
            at = f"{where}.{key}" if where else str(key)
            if wrong := _unsound(key, at) or _unsound(one, at):
                return wrong
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            if wrong := _unsound(one, f"{where}[{i}]"):
                return wrong
    elif isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            return f"{where} holds half a character, which is no text"
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        return f"{where} is larger than 2^64 - 1, which no counter is"
    return ""


class ObservationFile:
    """Recognises them; ``files.read_files`` returns them whole, since they are the result already."""

    name = "ztune"
    what = "ztune observe --save and --json"

    def recognise(self, head: str) -> bool:
        """True if the document says that it is one."""
        return bool(re.search(rf'"format"\s*:\s*"{FORMAT}"', head))

    def read(self, source: Source) -> None:
        """Add what can be added up with other files: groups, calls, pools' histograms, disks."""
        observation = self.whole(source)
        source.into.add_observation(observation, source.name)

    def whole(self, source: Source) -> Observation:
        """Return the document; raises InputError."""
        try:
            document = json.loads(source.text(), parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{source.path} is cut or not JSON{where}; write it again with --json") from None
        if isinstance(document, dict) and isinstance(document.get("observation"), dict):
            document = document["observation"]  # of --json, which has the findings beside it
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{source.path} is not an observation: its format should be {FORMAT!r}")
        if document.get("version") != VERSION:
            version = one_line(repr(document.get("version")), 40)
            raise InputError(f"{source.path} is version {version} of the format; this ztune reads {VERSION}")
        try:
            found = Observation.model_validate(document)
        except (ValidationError, RecursionError) as error:
            at = ""
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                at = one_line(f": {'.'.join(map(str, first['loc']))}: {first['msg']}")
            raise InputError(f"{source.path} is not a valid observation{at}") from None
        if wrong := _unsound(found.model_dump(), ""):
            raise InputError(f"{source.path} is not a valid observation: {one_line(wrong)}")
        return found
