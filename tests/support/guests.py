"""What the tests in the lab's guests share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import ztune
from ztune.lab import Guest

SOURCE = f"/host{Path(ztune.__file__).resolve().parents[1]}"
"""Our modules, as a guest sees them."""
PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A guest's programs."""
Resume = Callable[..., AbstractContextManager[Guest]]
"""A function with the arguments of ``Guest.resume``; use what it returns in a ``with`` statement."""
