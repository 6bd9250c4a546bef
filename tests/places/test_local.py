from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ztune.errors import MissingError
from ztune.places.local import Local
from ztune.places.placing import Placing


def test_who_may_not_be_root_hears_what_needs_no_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MissingError) as refused, Local(Placing(files="/"), state=str(tmp_path)):
        pass
    assert str(refused.value).startswith("--on local needs root: ")
    assert str(refused.value).endswith("--on mount and --on lab need neither")
