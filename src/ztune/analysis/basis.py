"""What the numbers of a run rest on, and what they leave out because of where it ran."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ztune.analysis.metrics import Basis, Raw, number_at
from ztune.analysis.results import LayoutResult
from ztune.store.records import Run


def basis(run: Run) -> Basis:
    """Say what the run's numbers rest on: "emulated" where its lab had no hardware virtualisation."""
    if not run.measured:
        return "modelled"
    return "emulated" if run.target.get("accel") == "tcg" else "measured"


def in_user_space(run: Run) -> bool:
    """Whether the run's pools were on a mount: OpenZFS in user space."""
    return run.target.get("kind") == "mount"


def limits(run: Run, cells: Sequence[LayoutResult] = ()) -> str | None:
    """Say what the run's seconds leave out because of where it ran; None where it ran on the real thing."""
    if run.target.get("kind") == "lab":
        return "Measured in a virtual machine with disks after a profile: not the absolute speed of yours."
    if not in_user_space(run):
        return None
    disks = (
        "with disks as fast as this machine: no disk is waited for"
        if run.target.get("disks") == "instant"
        else "with disks modelled after a profile: not the absolute speed of yours"
    )
    text = (
        "Measured on OpenZFS in user space, behind FUSE: time is real time on this machine's processors, "
        f"{disks}."
    )
    found = [s for c in cells for r in c.results.values() if (s := _processors(r)) is not None]
    if found:
        mount, busy = (median(pair[i] for pair in found) for i in (0, 1))
        text += f" The processors were {busy:.0%} busy; ZFS and FUSE in the mount took {mount:.0%} of them."
    return text


def _processors(result: Raw) -> tuple[float, float] | None:
    """Return the shares of all processors that the mount took, and that were in use."""
    seconds, cpus = number_at(result, "measure", "seconds"), number_at(result, "environment", "cpus")
    names = ("mount_user_s", "mount_system_s")
    own = [number_at(result, "measure", "cpu", name) for name in names]
    host = [number_at(result, "measure", "cpu", "host", name) for name in ("user_s", "system_s")]
    if not seconds or not cpus or None in own or None in host:
        return None
    whole = seconds * cpus
    return sum(filter(None, own)) / whole, min(1.0, sum(filter(None, host)) / whole)
