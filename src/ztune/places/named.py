"""From the word after ``--on`` to a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ztune.errors import InputError
from ztune.native import openzfs as native_openzfs
from ztune.onhost.fields import from_json
from ztune.onhost.host.mounted import MountOptions
from ztune.places import rack
from ztune.places.channel import Place
from ztune.places.placing import Placing
from ztune.places.rack import Rack
from ztune.store.records import Run


def make(
    on: str,
    placing: Placing | None,
    openzfs: str | None = None,
    dilation: float | None = None,
    mounting: MountOptions | None = None,
) -> Place:
    """Return the place called ``lab``, ``mount``, ``local`` or ``ssh://…``, not yet up. Raises InputError.

    ``placing``: where pools go, for all but the lab and a mount, which bring their own disks. ``openzfs``: a
    version or its beginning, for the lab and a mount. ``dilation``: for the lab. ``mounting``: for a mount.
    """
    if mounting is not None and on != "mount":
        raise InputError(f"--disks and --page-cache are for --on mount; {on} has disks of its own")
    if on in ("lab", "mount") and placing is not None:
        what = "the lab" if on == "lab" else "a mount"
        raise InputError(
            f"{what} makes its own disks from the profiles of the layouts; "
            "leave --pool, --disk and --files out"
        )
    if on == "lab":
        from ztune.places.lab import Lab

        return Lab(openzfs=openzfs, dilation=dilation)
    here = "a mount" if on == "mount" else on
    if dilation is not None:
        keeps = "'s disks keep real time" if on == "mount" else " has disks of its own, which keep their time"
        raise InputError(f"--dilation is for the lab; {here}{keeps}")
    if on == "mount":
        from ztune.places.mount import MountPlace

        return MountPlace(mounting, openzfs)
    if openzfs is not None:
        raise InputError(f"--openzfs is for the lab and a mount; {on} has the version that its kernel has")
    if on != "local" and not on.startswith("ssh://"):
        raise InputError(
            f'--on is "{on}"; write lab, mount, local, ssh://HOST or a file of hosts such as fleet.toml'
        )
    if placing is None:
        placing = Placing.parse()  # says what is missing
    if on == "local":
        from ztune.places.local import Local

        return Local(placing)
    from ztune.places.ssh import Ssh

    return Ssh(on, placing)


def make_all(
    on: str,
    placing: Placing | None,
    openzfs: str | None = None,
    dilation: float | None = None,
    mounting: MountOptions | None = None,
) -> Place | Rack:
    """Return what ``make`` does, or the hosts of a file. Raises InputError."""
    if not rack.is_file(on):
        return make(on, placing, openzfs, dilation, mounting)
    if any(given is not None for given in (placing, openzfs, dilation, mounting)):
        raise InputError(f"{on} says for each host where its pools go; leave --pool, --disk and the like out")
    return rack.read(Path(on))


def again(run: Run) -> Place | Rack:
    """Return the place, or the hosts, that a stored run ran at. Raises InputError."""
    target: dict[str, Any] = run.target
    if target.get("kind") == rack.KIND:
        return Rack.of(target)
    name = str(target.get("name", ""))
    if name == "lab":
        # The same version, whatever is the newest now, and the same pace.
        version = run.versions.get("openzfs", "").partition("-")[0] or None
        return make("lab", None, version, float(target.get("dilation") or 1.0))
    if name == "mount":
        options = {k: target[k] for k in ("disks", "cache", "page_cache") if k in target}
        # With its OpenZFS if that is here, else this machine's own, which who compares them then refuses.
        version = run.versions.get("openzfs", "")
        known = version if native_openzfs.library(version) else None
        return make("mount", None, known, mounting=MountOptions(**options))
    return make(name, from_json(Placing, target.get("place", {})))
