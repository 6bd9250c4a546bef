"""Module parameters of ZFS: set for a trial, put back after it. The size of the ARC is one of them.

``zfs_arc_max`` and ``zfs_arc_min`` need care (arc_tuning_update in arc.c): 0 means "leave it", so that
writing the previous 0 back does not bring the previous size back; a maximum must be above the present
minimum, a minimum at most the present maximum; what does not fit is ignored without an error. So the sizes in
force are read from arcstats, set in the right order, and read again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ztune.errors import InputError, MissingError, ZtuneError
from ztune.onhost.host import zfs_versions
from ztune.units import format_size

PARAMETERS = Path("/sys/module/zfs/parameters")
ARCSTATS = Path("/proc/spl/kstat/zfs/arcstats")
ARC_MAX, ARC_MIN = "zfs_arc_max", "zfs_arc_min"
LEAST_ARC = 64 << 20
"""MIN_ARC_MAX in arc.c."""
_LEAST_MIN = 32 << 20
TIMES = (
    *("zfs_txg_timeout", "l2arc_feed_secs", "l2arc_feed_min_ms", "zfs_delay_scale", "zil_min_commit_timeout"),
    *("zfs_arc_min_prefetch_ms", "zfs_arc_min_prescient_prefetch_ms"),
    *("zfetch_min_sec_reap", "zfetch_max_sec_reap"),
    *("zio_slow_io_ms", "zfs_deadman_synctime_ms", "zfs_deadman_ziotime_ms"),
)
"""Parameters that are durations: zfs(4)."""


def _path(name: str) -> Path:
    # A name may come from a journal: it is one of a parameter, and leads nowhere else.
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ZtuneError(f"{name!r} is no name of a module parameter; nothing was set")
    return PARAMETERS / name


def read(name: str) -> str | None:
    """Return a parameter's value; None when there is no such parameter."""
    try:
        return _path(name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def arc_limits() -> tuple[int, int]:
    """Return the ARC's minimum and maximum in force, bytes. Raises MissingError without ZFS."""
    found = {}
    try:
        for line in ARCSTATS.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[0] in ("c_min", "c_max"):
                found[fields[0]] = int(fields[2])
        return found["c_min"], found["c_max"]
    except (OSError, KeyError, ValueError):
        raise MissingError(f"{ARCSTATS}: the ARC's sizes can't be read; is the ZFS module loaded?") from None


def slower(values: Mapping[str, int], dilation: float) -> dict[str, int]:
    """Return ``values`` with all times × ``dilation``, the module's own where ``values`` names none.

    On disks that are slower by that factor as many transaction groups, feeds and so on belong to the same
    work then. Unchanged for 1.
    """
    if dilation == 1:
        return dict(values)
    found = dict(values)
    for name in TIMES:
        own = read(name)
        value = values[name] if name in values else int(own) if own and own.isdigit() else 0
        if value:
            found[name] = max(1, round(value * dilation))
    return found


def plan(
    arc: int, values: Mapping[str, int], version: tuple[int, ...], dilation: float = 1.0
) -> dict[str, Any]:
    """Return what setting the ARC's size and ``values`` will change, with all that putting it back needs.

    ``dilation``: what times among the parameters are multiplied by, see ``slower``.

    Raises:
        InputError: a parameter does not exist here, or the kernel would not take the size.
    """
    for name in values:
        if name in (ARC_MAX, ARC_MIN):
            raise InputError(f"tunable {name}: the ARC's size is the layout's arc, not a tunable")
        if read(name) is None:
            raise InputError(zfs_versions.check_tunable(name, version))
    if arc < LEAST_ARC:
        raise InputError(f"layout.arc is {format_size(arc)}; the kernel's ARC takes 64M and more")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if arc >= memory:
        raise InputError(
            f"layout.arc is {format_size(arc)}, but this host has {format_size(memory)} of memory"
        )
    values = slower(values, dilation)
    low, high = arc_limits()
    names = [*values, ARC_MAX, ARC_MIN]
    return {
        "previous": {name: read(name) or "0" for name in names},
        "new": {
            **{name: str(number) for name, number in values.items()},
            ARC_MAX: str(arc),
            ARC_MIN: str(arc),
        },
        "arc": {"min": low, "max": high},
    }


def write(name: str, value: str) -> None:
    """Set one parameter. Raises ZtuneError when the kernel refuses it, MissingError without the right."""
    try:
        _path(name).write_text(value, encoding="ascii")
    except PermissionError:
        raise MissingError(f"{PARAMETERS / name}: only root may set it; run as root") from None
    except OSError as error:
        raise ZtuneError(f"tunable {name}: the kernel does not take {value}: {error.strerror}") from None


def apply(facts: Mapping[str, Any]) -> None:
    """Set what ``plan`` planned: the ARC to a fixed size, then the rest. Raises ZtuneError on failure."""
    for name, value in facts["new"].items():
        if name not in (ARC_MAX, ARC_MIN):
            write(name, value)
    size = int(facts["new"][ARC_MAX])
    _set_arc(size, size)
    low, high = arc_limits()
    if (low, high) != (size, size):
        raise ZtuneError(
            f"the ARC was set to {format_size(size)}, but the kernel keeps it between {format_size(low)} and "
            f"{format_size(high)}"
        )


def _set_arc(low: int, high: int) -> None:
    # The minimum out of the way, the maximum, then the minimum.
    write(ARC_MIN, str(_LEAST_MIN))
    write(ARC_MAX, str(high))
    write(ARC_MIN, str(low))


def restore(facts: Mapping[str, Any]) -> list[str]:
    """Put back what ``apply`` set, wholly or in part; return a sentence for each parameter left alone.

    A parameter that has neither the previous value nor ours was changed by somebody else and stays: by the
    administrator, or by the clean-up of another trial that was dead, too.
    """
    left = []
    previous, new = facts["previous"], facts["new"]
    passing = {ARC_MAX: (), ARC_MIN: (str(_LEAST_MIN),)}
    arc_ours = True
    for name, value in previous.items():
        now = read(name)
        if now is None:
            continue  # the module is gone, and its settings with it
        if now not in (value, new[name], *passing.get(name, ())):
            left.append(f"tunable {name} stays {now}: somebody set it to that since the trial did")
            arc_ours = arc_ours and name not in passing
        elif name not in passing and now != value:
            write(name, value)
    if arc_ours and read(ARC_MAX) is not None:
        low, high = int(facts["arc"]["min"]), int(facts["arc"]["max"])
        if arc_limits() != (low, high):
            _set_arc(low, high)
        for name in (ARC_MAX, ARC_MIN):
            if read(name) != previous[name]:
                write(name, previous[name])
    return left
