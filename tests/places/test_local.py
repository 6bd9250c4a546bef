from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from invoked import invoke

from ztune import paths, temporary
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


def test_clean_names_what_no_run_goes_with_also_without_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Local) -> Local:
        raise MissingError("--on local needs root")

    monkeypatch.setenv("ZTUNE_HOME", str(tmp_path))
    monkeypatch.setattr(temporary, "left_here", lambda: [])
    monkeypatch.setattr(temporary, "remove_left_here", lambda: None)
    monkeypatch.setattr(Local, "__enter__", refused)
    left = paths.traces() / "left.trace"
    left.mkdir()
    for words in ((), ("--yes",)):
        code, out, err = invoke("clean", *words)
        assert (code, out) == (3, "")
        named, advice, why = err.splitlines()
        assert named.endswith(f"goes with {left}") and advice.startswith("remove it")
        assert why == (
            "ztune: what trials left on this host was not looked at, since that takes root: `sudo ztune "
            "clean` looks; `ztune clean --on mount` names what trials on a mount left, without root"
        )
    code, out, _ = invoke("clean", "--json")
    found = json.loads(out)
    assert code == 3 and found["orphans"] == [str(left)] and found["trials"] is found["datasets"] is None
    assert left.exists()
