"""What the tests in the lab's guests share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from ztune.lab import Guest

Resume = Callable[..., AbstractContextManager[Guest]]
"""A function with the arguments of ``Guest.resume``; use what it returns in a ``with`` statement."""
