"""ztune's own observations, as ``ztune observe --json`` writes them."""

from __future__ import annotations

import json
import math
import re

from pydantic import ValidationError

from ztune.errors import InputError
from ztune.observe.model import FORMAT, VERSION, Observation
from ztune.observe.sources.base import Source
from ztune.observe.sources.collect import Collected


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number")
    return number


class Own:
    """Recognises them; ``files.read_files`` returns them whole, since they are the result already."""

    name = "ztune"
    what = "ztune observe --json"

    def recognise(self, head: str) -> bool:
        """True if the document says that it is one."""
        return bool(re.search(rf'"format"\s*:\s*"{FORMAT}"', head))

    def read(self, source: Source, into: Collected) -> None:
        """Add what can be added up with other files: groups, calls, pools' histograms, disks."""
        observation = self.whole(source)
        into.add_observation(observation, source.name)

    def whole(self, source: Source) -> Observation:
        """Return the document; raises InputError."""
        try:
            document = json.loads(source.text(), parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError) as error:
            where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InputError(f"{source.path} is cut or not JSON{where}; write it again with --json") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{source.path} is not an observation: its format should be {FORMAT!r}")
        if document.get("version") != VERSION:
            raise InputError(
                f"{source.path} is version {document.get('version')!r} of the format; this ztune reads"
                f" {VERSION}"
            )
        try:
            return Observation.model_validate(document)
        except (ValidationError, RecursionError) as error:
            at = ""
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                at = f": {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(f"{source.path} is not a valid observation{at}") from None
