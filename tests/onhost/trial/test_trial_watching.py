"""A trial whose pools are lost: it is interrupted, and its sentence is about them."""

from __future__ import annotations

import io
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ztune.onhost.events import Events
from ztune.onhost.host import zfs as host_zfs
from ztune.onhost.host.interrupt import asked, signals_as_interrupt
from ztune.onhost.host.zfs import Commands, Zfs
from ztune.onhost.trial import watching
from ztune.onhost.trial.kernel_pools import KernelPools
from ztune.onhost.trial.watching import LossWatch


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of the pool tank."""
    monkeypatch.setattr(host_zfs, "_KSTAT", tmp_path)
    monkeypatch.setattr(watching, "_GRACE_S", 0.0)
    (tmp_path / "tank").mkdir()
    (tmp_path / "tank" / "state").write_text("ONLINE\n")
    return tmp_path / "tank" / "state"


def test_a_suspended_pool_interrupts_what_waits_for_it_and_is_named(state: Path) -> None:
    """A trial waited for its job's time to run out, and then said that the job had not ended."""
    pools: Any = KernelPools.__new__(KernelPools)
    pools._gone, pools.zfs = "", Zfs(SimpleNamespace())  # type: ignore[arg-type]
    pools.spec = SimpleNamespace(
        place=SimpleNamespace(kind="parent", parents={"main": "tank/a", "x": "none"})
    )
    assert pools.gone() == ""
    with signals_as_interrupt():
        watch = LossWatch(lambda: bool(pools.gone()))
        with pytest.raises(KeyboardInterrupt):
            state.write_text("SUSPENDED\n")
            time.sleep(60)
        watch.end()
        assert not asked(), "nobody did: the run goes on with what is left"
    state.write_text("ONLINE\n")
    assert pools.gone().startswith('pool "tank" is suspended since the trial began: it waits for its disks; ')


def test_who_has_ended_is_not_interrupted(state: Path) -> None:
    lost = threading.Event()
    with signals_as_interrupt():
        watch = LossWatch(lost.is_set)
        watch.end()
        lost.set()
        time.sleep(3 * watching._LOOK_S)


def test_a_command_on_a_lost_pool_is_not_waited_for(tmp_path: Path) -> None:
    """Else an interrupt waits for its time to run out, which for a sync is half an hour."""
    command = tmp_path / "zpool"
    command.write_text("#!/bin/sh\nexec sleep 600\n")
    command.chmod(0o755)
    commands = Commands(Events(io.StringIO()))
    commands._paths["zpool"] = str(command)
    commands.in_vain = lambda: True
    with signals_as_interrupt():
        main = threading.main_thread().ident
        threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGTERM)).start()
        with pytest.raises(KeyboardInterrupt):
            commands(["zpool", "sync", "tank"], timeout=600)
