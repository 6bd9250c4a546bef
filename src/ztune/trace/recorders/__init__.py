"""Recorders: ways to see the file I/O of processes. ``pick`` chooses one."""

from __future__ import annotations

from ztune.errors import InputError, MissingError
from ztune.trace.recorders.ebpf import EbpfRecorder
from ztune.trace.recorders.recorder import Recorder
from ztune.trace.recorders.strace import StraceRecorder

NAMES = ("auto", "ebpf", "strace")


def recorders() -> list[Recorder]:
    """Return all recorders, the better one first."""
    return [EbpfRecorder(), StraceRecorder()]


def pick(name: str = "auto") -> Recorder:
    """Return the recorder called ``name``; see ``choose``."""
    return choose(name)[0]


def choose(name: str = "auto") -> tuple[Recorder, str]:
    """Return the recorder called ``name``, and a sentence on why it was taken if that needs saying.

    ``auto`` is eBPF where it is allowed, else strace. Raises InputError for an unknown name, MissingError if
    the recorder can't work here.
    """
    if name not in NAMES:
        raise InputError(f"there is no recorder {name!r}; it should be one of {', '.join(NAMES)}")
    reasons: list[str] = []
    for recorder in recorders():
        if name not in ("auto", recorder.name):
            continue
        reason = recorder.unavailable()
        if reason is None:
            said = f"recording with {recorder.name}, since " + "; ".join(reasons) if reasons else ""
            return recorder, said
        reasons.append(f"{recorder.name} is not possible: {reason}")
    raise MissingError("can't record: " + "; ".join(reasons))
