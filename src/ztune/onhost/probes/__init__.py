"""Probes: what is measured while a trial's job runs, besides the measure itself (``measure``).

``start(context)`` begins all that the spec's ``probes`` asks for; the ``RunningProbes`` returned ends them.
A probe that can't be used, or fails, is a warning and is left out; it never ends a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ztune.errors import InputError
from ztune.onhost.probes.calls import SizesProbe, SyscallsProbe
from ztune.onhost.probes.context import Context
from ztune.onhost.probes.counters import (
    CpuProbe,
    DatasetsProbe,
    DisksProbe,
    IostatProbe,
    KstatProbe,
    SeriesProbe,
    TxgsProbe,
)
from ztune.onhost.probes.mount import MountProbe
from ztune.onhost.probes.probe import Probe
from ztune.onhost.probes.space import SpaceProbe
from ztune.onhost.probes.zdb import ZdbProbe

# In the order in which they begin: those that take long to attach first, those whose readings should lie
# closest to the measure's last. They are frozen the other way round.
PROBES: dict[str, type[Probe]] = {
    p.name: p
    for p in (
        *(SizesProbe, SyscallsProbe, ZdbProbe, SpaceProbe, CpuProbe, SeriesProbe),
        *(KstatProbe, TxgsProbe, DatasetsProbe, IostatProbe, DisksProbe, MountProbe),
    )
}


def resolve(wanted: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the probes that are on, with their options, in the order in which they begin.

    ``wanted``: name → true, false, or an object of options (which means on). What is not named is as by
    default. Raises InputError naming an unknown probe, an unknown option or a value that is not fit.
    """
    for name, value in wanted.items():
        if name not in PROBES:
            raise InputError(f'probes: there is no probe "{name}"; there are: {", ".join(sorted(PROBES))}')
        if isinstance(value, bool):
            continue
        if not isinstance(value, Mapping):
            raise InputError(f"probes.{name}: {value!r} is neither true nor false nor an object of options")
        options = PROBES[name].options
        for key, given in value.items():
            if key not in options:
                known = ", ".join(sorted(options)) or "none"
                raise InputError(f'probes.{name}: there is no option "{key}"; there are: {known}')
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0.01 <= given <= 1e6:
                raise InputError(f"probes.{name}.{key}: {given!r} is not a number from 0.01 to 1000000")
    found: dict[str, dict[str, float]] = {}
    for name, probe in PROBES.items():
        value = wanted.get(name, probe.default)
        if value is not False:
            found[name] = dict(value) if isinstance(value, Mapping) else {}
    return found


class RunningProbes:
    """Probes at work, from ``start``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._live: dict[str, Probe] = {}
        self._frozen = False
        self._results: dict[str, Any] | None = None

    def _try(self, name: str, probe: Probe, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            self._live.pop(name, None)
            self._context.warn(
                f"probe {name} is left out: {' '.join(str(error).split()) or type(error).__name__}"
            )
            try:
                probe.abandon()
            except Exception as another:
                self._context.warn(f"probe {name} could not be ended: {another}")
            return None
        except BaseException:
            # A signal: the trial ends, and so must what the probe started.
            probe.abandon()
            raise

    def begin(self, name: str, options: Mapping[str, float]) -> None:
        """Begin one probe."""
        kind = PROBES[name]
        reason = kind.available(self._context)
        if reason is not None:
            # Silent for what is only on by default: an ext4 layout has no ARC, and need not say so.
            if self._context.options.get(name):
                self._context.warn(f"probe {name} is left out: {reason}")
            return
        probe = kind(self._context, options)
        self._live[name] = probe
        if kind.cost == "large":
            self._context.log(f"probe {name} begins")
        self._try(name, probe, probe.begin)

    def freeze(self) -> None:
        """End the window: what happens from now on is not measured. A second call does nothing."""
        if self._frozen:
            return
        self._frozen = True
        for name, probe in reversed(list(self._live.items())):
            self._try(name, probe, probe.freeze)

    def stop(self) -> dict[str, Any]:
        """Freeze, if that was not done, and return what each probe found, by name. May be called again."""
        self.freeze()
        if self._results is None:
            self._results = {}
            for name, probe in list(self._live.items()):
                if probe.cost in ("large", "after"):
                    self._context.log(f"probe {name} finds its result")
                found = self._try(name, probe, probe.finish)
                if found is not None:
                    self._results[name] = found
        return self._results

    def abandon(self) -> None:
        """End all that runs, for no result."""
        for probe in self._live.values():
            try:
                probe.abandon()
            except Exception as error:
                self._context.warn(f"probe {probe.name} could not be ended: {error}")
        self._live.clear()
        self._frozen = True


def start(context: Context, wanted: Mapping[str, Any] | None = None) -> RunningProbes:
    """Begin the probes that ``wanted`` asks for, ``context.options`` unless given; see ``resolve``.

    Raises InputError for an unknown probe or option.
    """
    running = RunningProbes(context)
    try:
        for name, options in resolve(context.options if wanted is None else wanted).items():
            running.begin(name, options)
    except BaseException:
        running.abandon()
        raise
    return running
