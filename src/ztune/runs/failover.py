"""Hosts of a run that are lost, slow, hang or come back: who is waited for, who goes on with their blocks."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import interrupt
from ztune.places.channel import Lost
from ztune.runs import at_work
from ztune.runs import trial as trials
from ztune.runs.at_work import HostAtWork
from ztune.runs.dealing import Dealing
from ztune.runs.open_run import OpenRun
from ztune.runs.refusals import check_there, require_same, versions_of
from ztune.store.records import Trial

RECONNECT = 3  # attempts to bring a lost place up again
LOST_TRIALS = 2  # so often may a trial take its place down before it counts as failed
PAUSE_S = 5.0
AGAIN_S = 30.0  # between two looks for a host that did not come back
SLOW = 3.0
LEAST_SLOW_S = 60.0
"""A block that takes so many times the usual, and at least so long, is cut where all others wait for it."""
CLEAN_S = 600.0  # on one of several hosts, before a run goes on without it
STILL_S = 120.0
"""So long is waited for a trial of this run that still runs on a host: one whose connection was cut ends, and
destroys what it made, once its host has noticed."""
STOP_S = 120.0
"""A trial that was told to stop and has not ended after so long is left: its host hangs."""


class _StillRunsError(Lost):
    """A host can be reached, but a trial whose connection was lost does not end there."""


class Failover:
    """Keeps a run going where one of its hosts does not."""

    def __init__(self, going: OpenRun, dealing: Dealing) -> None:
        self._going, self._dealing = going, dealing
        self._lost: dict[int, int] = {}

    # --- what a host is

    def meet(self) -> None:
        """Learn what each host that is up is; note it with the run, and set aside what does not fit."""
        if self._going.hosts.rack is not None:
            for host in self._going.hosts.up:
                self._know(host, host.about)

    def _know(self, host: HostAtWork, about: Mapping[str, Any]) -> None:
        """Take ``host`` as it is now. Results under another kernel are another host's; raises InputError for
        another OpenZFS, and for another kernel where there is but this host.
        """
        going = self._going
        host.about = dict(about)
        if going.hosts.rack is None:
            require_same(going.run, versions_of(host.about, going.job), host.place.name)
            return
        version = at_work.openzfs(host.about)
        if version != going.run.versions.get("openzfs", ""):
            has, wanted = version or "none", going.run.versions.get("openzfs") or "none"
            host.doing = "out"
            going.warn(f"{host.place.name} is not used: it has OpenZFS {has}, this run {wanted}")
            return
        target = dict(going.run.target)
        rows = [dict(row) for row in target["hosts"]]
        row = next(row for row in rows if row["name"] == host.place.name)
        kernel = str(host.about.get("kernel", ""))
        was = row.setdefault("kernel", kernel)
        host.label = host.place.name
        if kernel != was:
            host.label += f" (kernel {kernel.replace(',', ' ')})"
            going.warn(
                f"{host.place.name} has kernel {kernel}, its results so far are from {was}: what follows "
                "counts as another host's"
            )
        row.update({key: host.about.get(key) for key in ("machine", "cpu", "cpus", "memory")})
        kernels = at_work.kernels([*({"kernel": r["kernel"]} for r in rows if "kernel" in r), host.about])
        going.note(target={**target, "hosts": rows}, versions={**going.run.versions, "kernel": kernels})

    # --- what trials left there

    def clean(self, host: HostAtWork) -> None:
        """Destroy what dead trials left on ``host``; say what stayed. Raises Lost."""
        self._say_left(self._clean(host))

    def _clean(self, host: HostAtWork) -> list[str]:
        """Destroy what dead trials left on ``host`` and return what stayed. Raises Lost, also where a trial
        of this run does not end.
        """
        going = self._going
        program = host.place.put(going.bundle)
        until = time.monotonic() + STILL_S
        while True:
            found = trials.clean(host.place, program, lambda _: None, going.patience, waits=self._say)
            if going.run.id not in found.running:
                return found.stayed
            interrupt.check()
            if time.monotonic() > until or going.hosts.gone.wait(PAUSE_S):
                raise _StillRunsError(f"a trial of this run still runs on {host.place.name}")

    def _say(self, sentence: str) -> None:
        self._going.say(f"clean-up: {sentence}")

    def _say_left(self, left: Iterable[str]) -> None:
        for sentence in left:
            self._say(sentence)

    def tidy(self, host: HostAtWork) -> None:
        """Begin to destroy what a trial left that ended without a word."""
        self._going.hosts.begin(host, "returning", functools.partial(self._tidy, host))

    def _tidy(self, host: HostAtWork) -> list[str]:
        """Destroy what a trial left; return what stayed. Raises Lost."""
        try:
            return self._clean(host)
        except ZtuneError as error:
            if self._going.hosts.rack is None:
                raise
            return self._reconnect(host, str(error))

    # --- lost, and back

    def lose(self, host: HostAtWork, trial: Trial, ended: trials.Ended) -> None:
        """The host went away under a trial: bring it up again, tidy up, and let the trial wait for its
        turn.
        """
        why = ended.error or f"{host.place.name} is gone"
        self._lost[trial.id] = self._lost.get(trial.id, 0) + 1
        self._going.store.reset_trial(trial.id, why)
        self._going.say(f"trial {trial.number} was cut: {why}")
        host.trial = trial
        self._going.hosts.begin(host, "returning", functools.partial(self._reconnect, host, why))

    def _reconnect(self, host: HostAtWork, why: str) -> list[str]:
        """Bring a host up again and tidy up there; return what stayed. Raises Lost."""
        last: ZtuneError = Lost(why)
        for attempt in range(RECONNECT):
            with contextlib.suppress(ZtuneError):
                host.place.__exit__(None, None, None)
            if attempt and self._going.hosts.gone.wait(PAUSE_S * 3**attempt):
                break
            try:
                return self._up_again(host)
            except ZtuneError as error:
                interrupt.check()
                last = error
                if isinstance(error, _StillRunsError):
                    break  # that took its time; the next attempt would take it again
        raise Lost(f"{last}; `ztune run --resume {self._going.run.id}` goes on where it was cut")

    def _up_again(self, host: HostAtWork) -> list[str]:
        host.place.__enter__()
        host.place.about_host()
        return self._clean(host)

    def look_for(self, host: HostAtWork) -> None:
        """Look for a host that is away, as long as the run goes on."""
        self._going.hosts.begin(host, "away", functools.partial(self._await, host))

    def _await(self, host: HostAtWork) -> list[str]:
        """Wait until a host is there again; return what stayed there."""
        while not self._going.hosts.gone.wait(AGAIN_S):
            with contextlib.suppress(ZtuneError):
                host.place.__exit__(None, None, None)
            with contextlib.suppress(ZtuneError):
                return self._up_again(host)
        raise Lost(f"{host.place.name} did not come back")

    def back(self, host: HostAtWork, said: Any) -> None:
        """A host is back, with ``said`` what stayed there; or it is not, and ``said`` is why."""
        going = self._going
        trial, host.trial = host.trial, None
        again = None if trial is None else going.store.trial(going.run.id, trial.number)
        if isinstance(said, Lost) and len(going.hosts.usable) > 1:
            self._dealing.leave(host, f"{host.label} was lost")
            going.warn(f"{host.label} is left out until it is back: {said}")
            self.look_for(host)
            return
        if isinstance(said, BaseException):
            raise said
        was = host.label
        if host.doing == "away":
            going.say(f"{host.label} is back")
        host.doing = "nothing"
        self._say_left(said)
        self._know(host, host.place.about_host())
        if going.hosts.rack is not None and host.usable:
            try:
                for layout in going.layouts:
                    check_there(going.hosts, host, going.run.resolved_study, layout, going.job)
            except (InputError, MissingError) as error:
                host.doing = "out"
                going.warn(f"{host.label} is not used: {error}")
        if host.label != was or not host.usable:
            self._dealing.leave(host, f"{was} came back as another")
        if again is not None and again.status == "pending" and self._lost[again.id] >= LOST_TRIALS:
            times, why = self._lost[again.id], again.attempts[-1]["error"]
            going.store_failure(again, f"it was cut {times} times: {why}")

    # --- slow, or hanging

    def hurry(self, *, over: bool) -> None:
        """Cut the block of a host that all others wait for, far beyond what blocks take; leave a host that
        does not end what it was told to.
        """
        if self._going.hosts.rack is None:
            return
        now = time.monotonic()
        for host in self._going.hosts.all:
            if host.doing == "returning" and now - host.since > CLEAN_S:
                # It answers, and yet what it is asked to do does not end.
                self._going.hosts.abandon(host)
                host.trial = None
                self._going.warn(f"{host.label} did not come back within {CLEAN_S:.0f} s: it is left out")
                self._dealing.leave(host, f"{host.label} was lost")
            elif host.doing == "trial" and host.cut:
                if now - host.cut > STOP_S:
                    self._give_up(host)
            elif host.doing == "trial":
                self._cut_if_slow(host, now, over=over)

    def _give_up(self, host: HostAtWork) -> None:
        threading.Thread(target=host.stop.give_up, daemon=True).start()
        self._going.hosts.abandon(host)
        assert host.trial is not None
        trial, host.trial = host.trial, None
        self._going.warn(f"{host.label} does not answer: it is left out")
        self.was_cut(host, trial)

    def _cut_if_slow(self, host: HostAtWork, now: float, *, over: bool) -> None:
        others = [one for one in self._going.hosts.usable if one is not host]
        done = over or self._dealing.dealt() >= self._dealing.most
        if not done or not others or any(one.doing != "nothing" for one in others):
            return
        usual = median(self._dealing.took) if self._dealing.took else math.inf
        if now - host.began > max(LEAST_SLOW_S, SLOW * usual):
            self._going.warn(
                f"{host.label} takes {now - host.began:.0f} s for a block, others {usual:.0f} s: it is "
                "stopped, and not used any more"
            )
            host.cut = now
            host.stop.ask()

    def was_cut(self, host: HostAtWork, trial: Trial) -> None:
        """A slow host's trial was stopped: another host runs its block, if it is still wanted."""
        self._going.store.reset_trial(trial.id, f"{host.label} was too slow")
        if host.doing != "away":
            host.doing = "out"
        self._dealing.leave(host, f"{host.label} was too slow")

    def lacks(self, host: HostAtWork, trial: Trial, error: str) -> None:
        """A trial failed for what its host lacks: it is not used any more, where there are others."""
        self._going.store.reset_trial(trial.id, f"{host.label}: {error}")
        host.doing = "out"
        self._going.warn(f"{host.label} is not used any more: {error}")
        self._dealing.leave(host, f"{host.label} could not go on with it: {error}")

    def say_what_may_be_left(self) -> None:
        """Name the hosts that are gone with what a trial made there."""
        going = self._going
        if gone := [host for host in going.hosts.all if host.doing in ("away", "returning")]:
            which = at_work.names(gone)
            going.warn(
                f"{which} can't be reached: `ztune clean --run {going.run.id} --yes` destroys what is left "
                "there of a trial that was cut, once it can be"
            )
