"""Recorders: ways to see the file I/O of processes. ``choose`` chooses one."""

from __future__ import annotations

from ztune.errors import InputError, MissingError
from ztune.trace.recorders.kernel import RECORDER
from ztune.trace.recorders.recorder import Recorder, RecorderSession, Start
from ztune.trace.recorders.strace import StraceSession, problem


def _ebpf(start: Start) -> RecorderSession:
    from ztune.trace.recorders.ebpf import EbpfSession  # here, as only what records takes NumPy and Arrow

    return EbpfSession(start)


RECORDERS = (
    Recorder("ebpf", RECORDER.problem, _ebpf, in_kernel=True),
    Recorder("strace", problem, StraceSession),
)
"""All of them, the better one first."""
NAMES = ("auto", *(recorder.name for recorder in RECORDERS))


def choose(name: str = "auto") -> tuple[Recorder, str]:
    """Return the recorder called ``name``, and a sentence on why it was taken if that needs saying.

    ``auto`` is eBPF where it is allowed, else strace. Raises InputError for an unknown name, MissingError if
    the recorder can't work here.
    """
    if name not in NAMES:
        raise InputError(f"there is no recorder {name!r}; it should be one of {', '.join(NAMES)}")
    reasons: list[str] = []
    for recorder in RECORDERS:
        if name not in ("auto", recorder.name):
            continue
        reason = recorder.unavailable()
        if reason is None:
            said = f"recording with {recorder.name}, since " + "; ".join(reasons) if reasons else ""
            return recorder, said
        reasons.append(f"{recorder.name} is not possible: {reason}")
    raise MissingError("can't record: " + "; ".join(reasons))
