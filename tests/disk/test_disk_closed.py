"""A disk that may not be opened: who may, and what to do, is said truly."""

from __future__ import annotations

import os

import pytest

from ztune.errors import MissingError
from ztune.onhost.host import devices


@pytest.mark.parametrize(
    ("user", "says"), [(0, "not even root may open it here"), (1000, "only root may use it; run as root")]
)
def test_why_a_disk_is_closed(monkeypatch: pytest.MonkeyPatch, user: int, says: str) -> None:
    def closed(*_args: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(MissingError, match=says) as caught:
        devices._size("/dev/vda")
    assert ("run as root" in str(caught.value)) == (user != 0)
