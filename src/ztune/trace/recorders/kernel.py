"""The programs that put eBPF into the kernel (``recorder/``, C): where they are, and whether they work."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ztune import native
from ztune.errors import ZtuneError

BTF = Path("/sys/kernel/btf/vmlinux")
CHECK_SECONDS: Final = 60.0
"""For loading, which takes a third of a second; a busy host more."""


def untyped() -> str | None:
    """Return why eBPF can't work on a kernel without type information; None if it has it."""
    if not BTF.exists():
        return f"it has no type information ({BTF}): it was built without CONFIG_DEBUG_INFO_BTF"
    return None


@dataclass(frozen=True)
class Helper:
    """One of these programs."""

    program: native.NativeProgram

    def path(self) -> Path:
        """Return its path. Raises MissingError where there is none, or it can't be built."""
        return self.program.find()

    def problem(self) -> str | None:
        """Return why it does not work here and now, None if it does. Loads its programs for a moment."""
        try:
            path = self.path()
            if why := untyped():
                return f"the kernel can't: {why}"
            done = subprocess.run(
                [os.fspath(path), "check"], capture_output=True, text=True, timeout=CHECK_SECONDS, check=False
            )
            answer = json.loads(done.stdout.splitlines()[0])
            return None if answer["state"] == "ok" else str(answer["message"])
        except ZtuneError as error:
            return str(error)
        except (OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            return f"{self.program.name} does not run ({error})"


RECORDER: Final = Helper(native.RECORDER)
OBSERVER: Final = Helper(native.OBSERVER)
