"""How busy the recording's host was: whether its processors have room for what a layout asks of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.onhost.probes import procfs

KEY = "cpus_busy"
"""Where a trace's ``environment`` keeps the share of all its ``cpus`` that was in use."""


def recorded(environment: Mapping[str, Any]) -> float | None:
    """Return the share that the ``environment`` of a trace has; None where it has none, or no share."""
    share = environment.get(KEY)
    known = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
    return share if known else None


class HostBusy:
    """The share of the host's processors that is in use while something is recorded, by whomever, but for
    the process ``recorder``. It counts from the beginning; ``turn`` says when nothing is recorded, and when
    it goes on."""

    def __init__(self, recorder: int) -> None:
        self._recorder = recorder
        self._used = self._all = 0.0
        self._since: tuple[float, float] | None = self._now()

    def turn(self, on: bool) -> None:
        """Go on counting, or leave it."""
        if self._since is not None:
            used, all_ = self._now()
            self._used += used - self._since[0]
            self._all += all_ - self._since[1]
        self._since = self._now() if on else None

    def share(self) -> float | None:
        """Return it, of what was counted; None of less than a second."""
        self.turn(self._since is not None)
        return min(1.0, max(0.0, self._used / self._all)) if self._all >= 1 else None

    def _now(self) -> tuple[float, float]:
        """Return the seconds in use of all processors, and all their seconds; what a hypervisor gave to
        others (steal) was not free either."""
        host = procfs.host()
        try:
            own = procfs.parse_pid_stat(Path(f"/proc/{self._recorder}/stat").read_text(errors="replace"))
            mine = own.user_s + own.system_s
        except (OSError, ValueError):  # it ended: what it took is not known any more
            mine = 0.0
        used = host.user_s + host.system_s + host.steal_s
        return used - mine, used + host.idle_s
