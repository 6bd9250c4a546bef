"""Writing a report's files: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ztune.errors import InputError


def write(path: Path, text: str, executable: bool = False) -> None:
    """Write ``text`` to ``path`` in one step, replacing what is there; nothing is left behind on failure.

    ``executable`` sets the execute bits that the umask allows. Raises InputError with the reason.
    """
    umask = os.umask(0)
    os.umask(umask)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod((0o777 if executable else 0o666) & ~umask)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
