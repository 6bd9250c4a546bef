"""How busy the recording's host was, from counts made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ztune.onhost.probes import procfs
from ztune.onhost.probes.procfs import HostCounters
from ztune.trace.host_busy import HostBusy, recorded


class Host:
    """Two processors whose counts a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = HostCounters(
            user_s=100, system_s=50, idle_s=1000, iowait_s=10, steal_s=5, context_switches=0, forks=0
        )
        self.recorder = 3.0
        monkeypatch.setattr(procfs, "host", lambda: self.counts)
        monkeypatch.setattr(procfs, "parse_pid_stat", lambda text: self)

    @property
    def user_s(self) -> float:
        return self.recorder

    system_s = 0.0

    def goes_on(self, used: float, idle: float, steal: float = 0.0, recorder: float = 0.0) -> None:
        now = self.counts
        self.counts = replace(
            now, user_s=now.user_s + used, idle_s=now.idle_s + idle, steal_s=now.steal_s + steal
        )
        self.recorder += recorder


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_all_but_the_recorder_counts_and_what_a_hypervisor_took(host: Host) -> None:
    busy = HostBusy(1)
    host.goes_on(used=5, idle=14, steal=1, recorder=2)
    assert busy.share() == pytest.approx(4 / 20)


def test_only_what_is_recorded_counts(host: Host) -> None:
    busy = HostBusy(1)
    host.goes_on(used=5, idle=15)
    busy.turn(False)
    host.goes_on(used=1000, idle=0)
    busy.turn(True)
    host.goes_on(used=15, idle=5)
    busy.turn(False)
    host.goes_on(used=1000, idle=0)
    assert busy.share() == pytest.approx(0.5)


def test_of_less_than_a_second_nothing_is_said(host: Host) -> None:
    busy = HostBusy(1)
    host.goes_on(used=0.5, idle=0.4)
    assert busy.share() is None


def test_a_recorder_that_is_gone_took_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    monkeypatch.undo()
    monkeypatch.setattr(procfs, "host", lambda: host.counts)
    busy = HostBusy(2**22 + 1)  # above the highest number of a process
    assert not Path(f"/proc/{2**22 + 1}").exists()
    host.goes_on(used=5, idle=15)
    assert busy.share() == pytest.approx(0.25)


@pytest.mark.parametrize("share", [None, True, "much", -0.1, 1.5, float("nan")])
def test_what_no_recorder_writes_is_not_known(share: object) -> None:
    assert recorded({"cpus_busy": share}) is None
    assert recorded({}) is None
    assert recorded({"cpus_busy": 0.25}) == 0.25
