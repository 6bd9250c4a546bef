"""What a job's program was told, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ztune.onhost.jobs.conversation import Client


def overheard(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return what fills from now on: for each command, its last arguments and the answer to them."""
    said: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    do = client.do

    def listen(word: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        answer = do(word, arguments, **more)
        said[word] = (dict(arguments or {}), answer)
        return answer

    monkeypatch.setattr(client, "do", listen)
    return said
