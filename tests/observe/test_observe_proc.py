"""Observing where the kernel can't be asked with eBPF: what /proc tells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ztune.advice.findings import unknown_roles
from ztune.observe import live as observe_live
from ztune.observe import watch as observe_watch
from ztune.observe.live import LiveObservation
from ztune.observe.live_groups import NO_ROLE, FilePlace
from ztune.observe.live_kernel import SeenFile, Unfit
from ztune.observe.model import Group, ObservedTransfers
from ztune.observe.subjects import choose
from ztune.trace.roles import RoleRules

HOLDER = """
import os, sys
kept = [open(path, "ab") for path in sys.argv[1:]]
os.unlink(sys.argv[-1])
print(flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process with a file open in each of two folders, and one that is deleted."""
    for name in ("data/base/1", "log/pg_wal/2", "data/base/deleted"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(8192))
    names = [str(tmp_path / name) for name in ("data/base/1", "log/pg_wal/2", "data/base/deleted")]
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", HOLDER, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline()
    yield process.pid
    process.communicate(b"\n")


def no_ebpf(*_: Any) -> None:
    raise Unfit("it has no BTF")


@pytest.mark.parametrize("by", ["pid", "path"])
def test_open_files_tell_datasets_and_roles(
    by: str, holder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None was known: a layout that was in place was "not seen" by --expect, and no file was looked at."""
    asked: list[Any] = []

    class Watched:
        def freeze(self) -> None:
            pass

        def state(self, _: object, datasets: dict[str | None, set[str]]) -> tuple[None, tuple[str, ...]]:
            asked.append({name: sorted(roles) for name, roles in datasets.items() if name})
            return None, ()

    def place(self: LiveObservation, file: SeenFile) -> FilePlace:
        inside = Path(file.path).is_relative_to(tmp_path)
        dataset = f"tank/{Path(file.path).relative_to(tmp_path).parts[0]}" if inside else None
        return FilePlace(self._role(file), dataset, "zfs")

    monkeypatch.setattr(observe_live, "ObserverSession", no_ebpf)
    monkeypatch.setattr(LiveObservation, "_place", place)
    monkeypatch.setattr(observe_watch, "zfs_state", SimpleNamespace(ZfsWatch=Watched))
    rules = RoleRules.parse([f"{tmp_path}/data/**=data", f"{tmp_path}/log/**=wal"])
    subject = choose(pid=holder) if by == "pid" else choose(path=tmp_path)
    seen = observe_watch.watch(subject, 0.1, rules)
    assert asked == [{"tank/data": ["data"], "tank/log": ["wal"]}]
    assert {one.role: one.count for one in seen.files} == {"data": 1, "wal": 1}
    # Nothing is made up of what was done with them.
    assert not seen.of_kind("file")
    assert any("told by the files that were found open" in limit for limit in seen.limits)
    some = Group(kind="role", name=NO_ROLE, writes=ObservedTransfers(calls=9, bytes=9))
    assert unknown_roles(seen.model_copy(update={"groups": (some,)})) == "", "roles are known"
