"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_S = 120.0


def until(true: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + wait_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)
    return found
