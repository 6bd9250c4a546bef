"""Absurd sizes: every parameter that makes a workload's data larger is refused before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ztune.databases import registry
from ztune.databases.workload import JobWorkload, running
from ztune.errors import InputError
from ztune.onhost.host import room

BYTES = ("size", "document_size", "redo_size", "write_buffer", "max_wal_size")
COUNTS = ("scale", "documents", "entries", "triples", "numjobs", "keys")
"""Parameters that say how much data or log there is."""


def _sized() -> list[tuple[str, str, str]]:
    """Return workload, parameter, and an absurd value, for all that there are."""
    found = []
    for name in registry.names():
        fields = registry.get(name).Parameters.model_fields
        found += [(name, one, "9999999999T") for one in BYTES if one in fields]
        found += [(name, one, "9" * 30) for one in COUNTS if one in fields]
    return found


def test_every_workload_is_there() -> None:
    # The sizes of `command` are its own commands'; what can't be told is the watch's.
    assert {name for name, _, _ in _sized()} >= set(registry.names()) - {"command"}


@pytest.mark.parametrize(("name", "parameter", "value"), _sized())
def test_an_absurd_size_is_refused_before_anything_is_written(
    name: str, parameter: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Whether its database is installed here does not matter for this.
    monkeypatch.setattr(registry.get(name), "check", lambda self: "1.0")
    with pytest.raises(InputError) as refused, running(registry.get(name)({parameter: value})):
        pytest.fail("it was begun")
    text = str(refused.value)
    assert name in text and "\n" not in text
    assert "are needed below" in text or f"parameter '{parameter}'" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in registry.names() if name != "command"])
def test_every_job_says_what_its_default_takes(name: str) -> None:
    """A size that nobody can tell would be found by the watch alone, when most of the disk is written."""
    workload: Any = registry.get(name)({})
    assert isinstance(workload, JobWorkload)
    needed = room.needed_by(workload.job)
    assert sum(needed.values()) > 0, name


def test_with_too_little_room_the_sentence_has_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(registry.get("sqlite"), "check", lambda self: "1.0")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, used=97 << 30, free=3 << 30)
    )
    with pytest.raises(InputError) as refused, running(registry.get("sqlite")({"size": "2G"})):
        pytest.fail("it was begun")
    assert str(refused.value) == (
        f"workload sqlite: about 2.0 GiB are needed below {tmp_path}, where 3.0 GiB are free, 2.0 GiB of "
        "which stay so; ask for less data, or set TMPDIR to a roomier place"
    )
