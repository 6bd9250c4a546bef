"""The processors of the database's host, as ``--cores`` and ``--processor`` name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ztune.places import calibration
from ztune.places.calibration import HostProcessors
from ztune.places.engine import Engine
from ztune.runs.options import ScreenOptions


def on_host(
    options: ScreenOptions, engine: Engine, cores: int | None, processor: str | None
) -> ScreenOptions:
    """Return ``options`` for a host of ``cores`` processors that are as fast as file ``processor`` says.

    Calibrates this machine, where that was not done yet: what a replay takes here is put on the other host by
    the two. Raises InputError for a file that is no calibration, and where this machine is busy.
    """
    if processor is None:
        return replace(options, cores=cores)
    theirs = calibration.read(Path(processor))
    host = HostProcessors.like(theirs, calibration.own(engine), cores)
    return replace(options, cores=cores, processor=host.to_json())
