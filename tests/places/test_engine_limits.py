"""What all engines together may take of this machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import psutil
import pytest

from ztune.errors import InputError
from ztune.places import engine as engines
from ztune.places import engine_limits
from ztune.places.engine_run import limits
from ztune.places.replay import Replay
from ztune.runs import screening
from ztune.runs.options import ScreenOptions
from ztune.store.db import Store
from ztune.store.records import Trial
from ztune.study import generic
from ztune.trace.reader import Trace

pytestmark = pytest.mark.usefixtures("home")

GIB = 1 << 30


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_memory_heeds_the_groups_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    group(proc, cgroup="0::/user/ztune")
    stat = f"anon 5\ninactive_file {GIB}"
    group(cgroups / "user", memory__max=str(4 * GIB), memory__current=str(3 * GIB), memory__stat=stat)
    group(cgroups / "user/ztune", memory__max="max", memory__current=str(GIB), memory__stat=stat)
    # 4 GiB less 3 in use, of which 1 is cached pages of files.
    assert engine_limits.memory_bytes(proc, cgroups) == int(engine_limits.MEMORY_SHARE * 2 * GIB)
    (cgroups / "user/memory.max").write_text("max\n")
    assert engine_limits.memory_bytes(proc, cgroups) == int(engine_limits.MEMORY_SHARE * 16 * GIB)


def test_memory_heeds_the_first_kind_of_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=16 * GIB))
    group(tmp_path / "proc", cgroup="5:cpu,cpuacct:/\n4:memory:/docker/abc")
    # Inside a container its own group is the root.
    group(
        tmp_path / "cgroup/memory",
        memory__limit_in_bytes=str(2 * GIB),
        memory__usage_in_bytes=str(GIB),
        memory__stat="total_inactive_file 0",
    )
    assert engine_limits.memory_bytes(tmp_path / "proc", tmp_path / "cgroup") == int(
        engine_limits.MEMORY_SHARE * GIB
    )


def test_a_full_disk_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=100 * GIB, used=90 * GIB, free=10 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert engine_limits.disk_bytes(tmp_path) == 8 * GIB
    usage.free = GIB
    assert engine_limits.disk_bytes(tmp_path) == 0


def test_engines_share_what_there_is(stand_in_engine: Path, trace: Trace, tmp_path: Path) -> None:
    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check(), jobs=2)
    target.memory = 3 * GIB
    spec = target.spec(study, study.layout, 1)
    found = limits(target.work(spec), target.room, spec, tmp_path, "memory")
    assert found["memory_limit"] == 3 * GIB // 2
    target.memory = 300 << 20
    with pytest.raises(InputError, match="2 at once may take 300 MiB"):
        limits(target.work(spec), target.room, spec, tmp_path, "memory")


def test_an_image_of_pools_in_files_needs_as_much_room_again(
    stand_in_engine: Path, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check(), jobs=2)
    spec = target.spec(study, study.layout, 1)
    work = target.work(spec)
    free = 3 * (work.contents + work.filler)
    monkeypatch.setattr(engine_limits, "disk_bytes", lambda _: free)
    limits(work, target.room, spec, tmp_path, "file")
    with pytest.raises(InputError, match=r"pools of 2 layouts at once may take up to .* use fewer --jobs, -"):
        limits(work, target.room, spec, tmp_path, "file", loads=True)
    # Of one there are no fewer.
    alone = replace(target.room, jobs=1)
    monkeypatch.setattr(engine_limits, "disk_bytes", lambda _: free // 3)
    with pytest.raises(
        InputError, match=r"pools of a layout may take .* free\); use --sample 1/2 with an --arc of 128M or"
    ):
        limits(work, alone, spec, tmp_path, "file", loads=True)
    with pytest.raises(InputError, match="use a smaller --sample"):
        limits(work, alone, {**spec, "arc_max": 128 << 20}, tmp_path, "file", loads=True)
    limits(work, target.room, spec, tmp_path, "memory", loads=True)


def test_a_limit_that_is_reached_names_the_way_out(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "limit=tank")
    study = generic.build({"data", "wal"})
    target = Replay(trace, engines.check(), jobs=2)
    outcome = target.run(target.spec(study, study.layout, 1), None, Event())
    assert outcome.result is None
    assert outcome.error is not None
    assert outcome.error.startswith("The replay needs more than the 9 MiB")
    assert "--jobs" in outcome.error
    assert "ZTUNE_HOME" in outcome.error
    target.jobs = 1
    alone = target.run(target.spec(study, study.layout, 1), None, Event()).error
    assert alone is not None and "ZTUNE_HOME" in alone and "--jobs" not in alone


def screened(trace: Trace, monkeypatch: pytest.MonkeyPatch, takes: int) -> list[Trial]:
    """Return what a screening by two engines within 3 GiB found, each of which takes ``takes`` bytes."""
    monkeypatch.setattr(engine_limits, "memory_bytes", lambda: 3 * GIB)
    monkeypatch.setenv("STAND_IN", f"takes={takes}")
    with Store.open() as store:
        study = generic.build({"data", "wal"})
        options = ScreenOptions(budget=4, jobs=2, only=True)
        run = screening.start(store, trace, study, engines.check(), options)
        return store.trials(run.id)


def test_what_needs_more_than_its_share_is_done_by_itself(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [t.error for t in screened(trace, monkeypatch, 2 * GIB)] == [None] * 4


def test_what_needs_more_than_all_says_so(
    stand_in_engine: Path, trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [str(t.error) for t in screened(trace, monkeypatch, 4 * GIB)]
    assert all("more than the 9 MiB" in e and "--jobs" not in e for e in errors) and len(errors) == 4
